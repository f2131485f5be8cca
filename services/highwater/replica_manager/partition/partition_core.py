"""What a partition on one broker is, and what it answers without changing. Pure, as `Partition` is. The numbers in this
file are RULES'.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from highwater.errors import ErrorCode
from highwater.log_storage.fence import Role
from highwater.metadata.models import NO_LEADER, PartitionKey, VersionedState
from highwater.replica_manager.partition.actions import DivergingEpoch, LiveBrokers, PartitionSettings
from highwater.replica_manager.partition.leadership import Leadership
from highwater.replica_manager.partition.replica import Replica

ACKS_ALL = -1
ACKS = frozenset({0, 1, ACKS_ALL})
NO_BROKERS = LiveBrokers()


class Phase(Enum):
    OFFLINE = "offline"  # nothing instructed, or not assigned here
    FENCING = "fencing"  # instructed; the fence is not answered yet
    UNFENCED = "unfenced"  # the fence failed; the instruction sent again tries again
    LEADER = "leader"
    SETTLING = "settling"  # leader whose log end is being read again after an append of unknown outcome (3.4)
    FOLLOWER = "follower"
    RESIGNED = "resigned"  # gave leadership up; leads again only under a higher leader epoch (3.5)


class PartitionCore:
    """`Partition`'s fields, which its events change, and its answers to requests."""

    def __init__(self, key: PartitionKey, topic: str, broker_id: int, settings: PartitionSettings) -> None:
        self.key = key
        self.topic = topic
        self.broker_id = broker_id
        self.settings = settings

        self._phase = Phase.OFFLINE
        self._role = Role.FOLLOWER  # of the fence asked for last
        self._state: VersionedState | None = None  # the latest known, where it is not led here
        self._replicas: tuple[int, ...] = ()  # the assignment
        self._min_insync_replicas = 1  # min(configured, assigned), at least 1 (5.2)
        self._highest_epoch_seen = -1  # in an instruction or in etcd
        self._live = NO_BROKERS
        self._leadership: Leadership | None = None
        # Ids go on over leader epochs, so that a late outcome of an old proposal is never taken for a new one's. Not
        # where a replica is evicted: its topic id is dead or it is assigned elsewhere (9.3), for good.
        self._next_proposal_id = 1
        self._incarnation = ""  # log-storage's, as last fenced or announced; "" before either
        # As last fenced, and while this broker leads the leadership's. The high watermark is of the present lineage,
        # the one since the last unclean election (7.4), or 0, and only grows within it (invariant 2).
        self._log_start_offset = 0
        self._log_end_offset = 0
        self._high_watermark = 0
        # While settling: when to fence again after one that failed. None while its answer is awaited: there is never
        # more than one under way, so that the answer is always the one asked for after the latest unknown append.
        self._refence_from_ms: int | None = None

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def leadership(self) -> Leadership | None:
        """Where this broker answers as the leader: followers, proposals, epoch start. Read only."""
        return self._leadership

    @property
    def committed(self) -> VersionedState | None:
        """The latest state known under the leader epoch instructed last; None before the first instruction."""
        return self._leadership.proposals.committed if self._leadership is not None else self._state

    @property
    def leader(self) -> int:
        """The leader as this broker last heard, NO_LEADER where there is none."""
        return self._state.state.leader if self._state is not None else NO_LEADER

    @property
    def leader_epoch(self) -> int:
        """Of the instruction taken last; -1 before the first."""
        return self._state.state.leader_epoch if self._state is not None else -1

    @property
    def replicas(self) -> tuple[int, ...]:
        """The assignment, preferred leader first."""
        return self._replicas

    @property
    def min_insync_replicas(self) -> int:
        """min(configured, assigned replicas) (5.2)."""
        return self._min_insync_replicas

    @property
    def maximal_isr(self) -> frozenset[int]:
        """The committed ISR and that of every pending proposal (5.1); empty where this broker does not lead."""
        return self._leadership.proposals.maximal_isr if self._leadership is not None else frozenset()

    @property
    def followers(self) -> Mapping[int, Replica]:
        """What the leader knows of the others; empty where this broker does not lead. Read only."""
        return self._leadership.followers if self._leadership is not None else {}

    @property
    def high_watermark(self) -> int:
        """The leader's; on a follower as it was when it was fenced."""
        return self._leadership.high_watermark if self._leadership is not None else self._high_watermark

    @property
    def log_end_offset(self) -> int:
        """The leader's own; on a follower as it was when it was fenced. Reads for replicas are bounded by it:
        log-storage may hold more, whose append is not answered yet, and a replica that acknowledged that would be out
        of range."""
        return self._leadership.log_end_offset if self._leadership is not None else self._log_end_offset

    @property
    def log_start_offset(self) -> int:
        return self._leadership.log_start_offset if self._leadership is not None else self._log_start_offset

    @property
    def incarnation(self) -> str:
        """log-storage's, under which this partition is fenced."""
        return self._incarnation

    def produce_admission(self, acks: int) -> ErrorCode:
        """Whether an append may be handed to log-storage now (5.3). A duplicate passes the same check (6.1)."""
        if acks not in ACKS:
            return ErrorCode.INVALID_REQUIRED_ACKS
        if self._leadership is None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self._phase is Phase.SETTLING:
            return ErrorCode.LOG_STORAGE_ERROR
        if acks == ACKS_ALL and not self._leadership.enough_certain_replicas:
            return ErrorCode.NOT_ENOUGH_REPLICAS
        return ErrorCode.NONE

    def produce_outcome(self, leader_epoch: int, required_offset: int) -> ErrorCode | None:
        """Of an `acks=all` produce appended under `leader_epoch` whose last record is at `required_offset` - 1 (a
        duplicate's old one, 6.1): None, wait on. Whoever waits is failed by `LeadershipInterrupted`: after an append
        of unknown outcome the same epoch may lead on (3.4), and this would not know of the interruption (5.4)."""
        if self._leadership is None or self._phase is not Phase.LEADER or leader_epoch != self._leadership.leader_epoch:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self._leadership.high_watermark < required_offset:
            return None
        if not self._leadership.enough_committed_replicas:
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return ErrorCode.NONE

    def check_client_epoch(self, leader_epoch: int) -> ErrorCode:
        """Of a consumer's Fetch or ListOffsets; -1: the client does not know it (5.7)."""
        if leader_epoch >= 0 and leader_epoch != self.leader_epoch:
            lower = leader_epoch < self.leader_epoch
            return ErrorCode.FENCED_LEADER_EPOCH if lower else ErrorCode.UNKNOWN_LEADER_EPOCH
        return ErrorCode.NONE if self._leadership is not None else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def check_consumer_fetch(self, leader_epoch: int, fetch_offset: int) -> ErrorCode:
        """Between the high watermark and the log end there is nothing to read, and no error (5.7)."""
        error = self.check_client_epoch(leader_epoch)
        if error is ErrorCode.NONE and not self.log_start_offset <= fetch_offset <= self.log_end_offset:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        return error

    def consumer_bound(self) -> int:
        """Consumers read below it (invariant 3)."""
        return self.high_watermark

    def latest_for_consumer(self) -> int | ErrorCode:
        """`latest`, or OFFSET_NOT_AVAILABLE: after an election the high watermark may be behind what an earlier leader
        had shown (5.7)."""
        leadership = self._leadership
        if leadership is None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        known = leadership.high_watermark >= leadership.epoch_start
        return leadership.high_watermark if known else ErrorCode.OFFSET_NOT_AVAILABLE

    def end_offset_for_epoch(self, leader_epoch: int) -> DivergingEpoch:
        """OffsetForLeaderEpoch: the largest epoch at or below `leader_epoch` and its end (4.3); (-1, -1): none, or this
        broker does not lead."""
        if self._leadership is None:
            return DivergingEpoch(-1, -1)
        end = self._leadership.epochs.end_offset_for(leader_epoch, self._leadership.log_end_offset)
        return DivergingEpoch(end.leader_epoch, end.end_offset)
