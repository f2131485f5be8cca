"""One partition on one broker: leader or follower, high watermark, ISR, and what a fetch of a replica is answered.

Pure: one event in, actions out, in the order in which they are to be carried out. No clock, no I/O. The order of events
is the caller's; late and repeated answers are recognised and ignored. RULES explains why; the numbers in this
file are its.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from highwater.errors import ErrorCode
from highwater.log_storage.epochs import LeaderEpochCache
from highwater.metadata.models import NO_LEADER, PartitionKey, VersionedState
from highwater.replica_manager.actions import (
    NO_ACTIONS,
    Action,
    DivergingEpoch,
    Fence,
    FenceAnswer,
    FetchSession,
    FetchVerdict,
    Follow,
    FollowerFetch,
    HighWatermarkAdvanced,
    Instructed,
    Instruction,
    LeadershipInterrupted,
    LeadershipStarted,
    LiveBrokers,
    LogStartRaised,
    PartitionSettings,
    ReadState,
    Role,
    StopFollowing,
    WriteIsr,
)
from highwater.replica_manager.isr import IsrProposals, next_state
from highwater.replica_manager.replica import NEVER_MS, Replica

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


_LEADING = frozenset({Phase.LEADER, Phase.SETTLING})
_AWAITING_FENCE = frozenset({Phase.FENCING, Phase.UNFENCED})


class Partition:
    """Invariants: the leader epoch only grows; log start ≤ high watermark ≤ log end offset while leading; the high
    watermark is at or below the acked offset of every counted replica at the moment it advances (DESIGN §6: 2)."""

    def __init__(self, key: PartitionKey, topic: str, broker_id: int, settings: PartitionSettings) -> None:
        self.key = key
        self.topic = topic
        self.broker_id = broker_id
        self.settings = settings

        self._phase = Phase.OFFLINE
        self._role = Role.FOLLOWER  # of the fence asked for last
        self._replicas: tuple[int, ...] = ()  # the assignment
        self._min_insync_replicas = 1  # min(configured, assigned) (5.2)
        # The latest state known, and under leadership the proposals over it. None before the first instruction.
        self._proposals: IsrProposals | None = None
        self._next_proposal_id = 1
        self._highest_epoch_seen = -1  # in an instruction or in etcd
        self._live = NO_BROKERS

        self._incarnation = ""  # log-storage's, as last fenced or announced; "" before either
        self._log_start_offset = 0
        self._log_end_offset = 0  # own; as log-storage last answered under this leadership
        self._high_watermark = 0  # only grows, unclean elections aside
        self._epoch_start = 0  # log end offset at which this leadership's epoch began (3.2)
        self._epochs = LeaderEpochCache()

        # Of the leader: by broker id, all assigned but itself.
        self._followers: dict[int, Replica] = {}
        self._follower_list: tuple[Replica, ...] = ()
        self._high_watermark_rests = True  # 5.2
        self._propose_from_ms = NEVER_MS  # no proposal and no re-read before: back-off
        self._refence_from_ms = NEVER_MS  # the same for a fence while settling

    # ---------------------------------------------------------------------------------------------------- queries

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def is_leader(self) -> bool:
        """Whether appends are taken. While settling (3.4) replicas' fetches are still served and this is False."""
        return self._phase is Phase.LEADER

    @property
    def serves_fetches(self) -> bool:
        """Whether this broker answers for the partition's leader: reads, `latest`, high watermark."""
        return self._phase in _LEADING

    @property
    def leader(self) -> int:
        """The leader as this broker last heard, NO_LEADER where there is none."""
        return self._proposals.committed.state.leader if self._proposals is not None else NO_LEADER

    @property
    def leader_epoch(self) -> int:
        """Of the latest state known; -1 before the first."""
        return self._proposals.committed.state.leader_epoch if self._proposals is not None else -1

    @property
    def committed(self) -> VersionedState | None:
        """The latest state known to be in etcd under the leader epoch instructed last."""
        return self._proposals.committed if self._proposals is not None else None

    @property
    def replicas(self) -> tuple[int, ...]:
        return self._replicas

    @property
    def min_insync_replicas(self) -> int:
        """min(configured, assigned replicas) (5.2)."""
        return self._min_insync_replicas

    @property
    def maximal_isr(self) -> frozenset[int]:
        """The committed ISR and that of every pending proposal (5.1)."""
        return self._proposals.maximal_isr if self._proposals is not None else frozenset()

    @property
    def pending_proposal(self) -> WriteIsr | None:
        """The one in flight."""
        return self._proposals.in_flight if self._proposals is not None else None

    @property
    def high_watermark(self) -> int:
        return self._high_watermark

    @property
    def high_watermark_rests(self) -> bool:
        return self._high_watermark_rests

    @property
    def log_end_offset(self) -> int:
        """The leader's own. Reads for replicas are bounded by it: log-storage may hold more, whose append is not
        answered yet, and a replica that acknowledged that would be out of range here."""
        return self._log_end_offset

    @property
    def log_start_offset(self) -> int:
        return self._log_start_offset

    @property
    def epoch_start_offset(self) -> int:
        """Log end offset at which this leadership's epoch began."""
        return self._epoch_start

    @property
    def incarnation(self) -> str:
        """log-storage's, under which this partition is fenced."""
        return self._incarnation

    @property
    def followers(self) -> Mapping[int, Replica]:
        """What the leader knows of the others; empty on a follower. Read only."""
        return self._followers

    def produce_admission(self, acks: int) -> ErrorCode:
        """Whether an append may be handed to log-storage now (5.3). A duplicate passes the same check (6.1)."""
        if acks not in ACKS:
            return ErrorCode.INVALID_REQUIRED_ACKS
        if self._phase is not Phase.LEADER:
            settling = self._phase is Phase.SETTLING
            return ErrorCode.LOG_STORAGE_ERROR if settling else ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert self._proposals is not None
        if acks == ACKS_ALL and self._proposals.certain_isr_size < self._min_insync_replicas:
            return ErrorCode.NOT_ENOUGH_REPLICAS
        return ErrorCode.NONE

    def produce_outcome(self, leader_epoch: int, required_offset: int) -> ErrorCode | None:
        """Of an `acks=all` produce appended under `leader_epoch` whose last record is at `required_offset` - 1 (a
        duplicate's old one, 6.1): None, wait on. Whoever waits is failed by `LeadershipInterrupted`: after leadership
        is taken up again under the same epoch (3.4) this answers as if it had not been interrupted (5.4)."""
        if self._phase is not Phase.LEADER or leader_epoch != self.leader_epoch:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self._high_watermark < required_offset:
            return None
        assert self._proposals is not None
        if len(self._proposals.committed.state.isr) < self._min_insync_replicas:
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return ErrorCode.NONE

    def check_client_epoch(self, leader_epoch: int) -> ErrorCode:
        """Of a consumer's Fetch or ListOffsets; -1: the client does not know it (5.7)."""
        if leader_epoch >= 0 and leader_epoch != self.leader_epoch:
            return self._epoch_error(leader_epoch)
        return ErrorCode.NONE if self._phase in _LEADING else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def check_consumer_fetch(self, leader_epoch: int, fetch_offset: int) -> ErrorCode:
        """Between the high watermark and the log end there is nothing to read, and no error (5.7)."""
        error = self.check_client_epoch(leader_epoch)
        if error is ErrorCode.NONE and not self._log_start_offset <= fetch_offset <= self._log_end_offset:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        return error

    def consumer_bound(self) -> int:
        """Consumers read below it (invariant 3)."""
        return self._high_watermark

    def latest_for_consumer(self) -> int | ErrorCode:
        """`latest`, or OFFSET_NOT_AVAILABLE: after an election the high watermark may be behind what an earlier leader
        had shown (5.7)."""
        if self._phase not in _LEADING:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return self._high_watermark if self._high_watermark >= self._epoch_start else ErrorCode.OFFSET_NOT_AVAILABLE

    def end_offset_for_epoch(self, leader_epoch: int) -> DivergingEpoch:
        """OffsetForLeaderEpoch: the largest epoch at or below `leader_epoch` and its end (4.3); (-1, -1): none."""
        end = self._epochs.end_offset_for(leader_epoch, self._log_end_offset)
        return DivergingEpoch(end.leader_epoch, end.end_offset)

    def low_watermark(self) -> int:
        """The smallest log start of the registered replicas (5.8); -1 while one of them has not fetched."""
        live = self._live.epochs
        starts = [r.log_start_offset for r in self._follower_list if r.broker_id in live]
        return min([self._log_start_offset, *starts])

    # --------------------------------------------------------------------------------------- instructions and fences

    def instruct(self, instruction: Instruction, now_ms: int) -> Instructed:
        """Ordered by (leader epoch, state revision): lower is refused, equal is applied again without effect, the same
        epoch with a higher revision updates the ISR only (1.3). The topic's configuration is taken with any of the
        latter."""
        versioned = instruction.state
        state = versioned.state
        known = self._proposals.committed if self._proposals is not None else None
        if state.leader_epoch < self._highest_epoch_seen:
            return Instructed(ErrorCode.FENCED_LEADER_EPOCH, NO_ACTIONS)
        if known is None or state.leader_epoch > known.state.leader_epoch:
            return self._change_leader_epoch(instruction)
        if versioned.revision < known.revision:
            return Instructed(ErrorCode.FENCED_LEADER_EPOCH, NO_ACTIONS)
        assert state.leader == known.state.leader  # invariant 5
        self._configure(instruction)
        if self._phase is Phase.OFFLINE:
            return Instructed(ErrorCode.REPLICA_NOT_ASSIGNED, NO_ACTIONS)
        if self._phase in _LEADING:
            return Instructed(ErrorCode.NONE, self._see_same_epoch(versioned, now_ms))
        assert self._proposals is not None
        self._proposals.seen(versioned)
        if self._phase is Phase.RESIGNED:
            return Instructed(ErrorCode.LOG_STORAGE_ERROR, NO_ACTIONS)  # 7.7
        if self._phase is Phase.UNFENCED:
            self._phase = Phase.FENCING
            return Instructed(ErrorCode.NONE, (Fence(self._role, state.leader_epoch),))
        return Instructed(ErrorCode.NONE, NO_ACTIONS)

    def _change_leader_epoch(self, instruction: Instruction) -> Instructed:
        state = instruction.state.state
        leads = state.leader == self.broker_id
        if leads and self.broker_id not in state.isr:
            return Instructed(ErrorCode.INVALID_REQUEST, NO_ACTIONS)  # invariant 6
        # 3.3: leave the leader's tables, stop the fetcher's work, fence; `fenced` publishes.
        actions = self._interrupt()
        actions.append(StopFollowing())
        if state.unclean_epoch > self.leader_epoch:
            self._high_watermark = 0  # what was known of the old lineage says nothing of the new one (7.4)
        self._replicas = instruction.replicas
        self._configure(instruction)
        self._highest_epoch_seen = state.leader_epoch
        self._proposals = IsrProposals(instruction.state, self._next_proposal_id)
        if self.broker_id not in instruction.replicas:
            self._phase = Phase.OFFLINE
            return Instructed(ErrorCode.REPLICA_NOT_ASSIGNED, actions)
        self._phase = Phase.FENCING
        self._role = Role.LEADER if leads else Role.FOLLOWER
        actions.append(Fence(self._role, state.leader_epoch))
        return Instructed(ErrorCode.NONE, actions)

    def _configure(self, instruction: Instruction) -> None:
        configured = instruction.min_insync_replicas
        if configured is None:
            configured = self.settings.min_insync_replicas
        self._min_insync_replicas = max(1, min(configured, len(self._replicas)))

    def fenced(self, answer: FenceAnswer, now_ms: int) -> Sequence[Action]:
        """log-storage's answer to the latest `Fence`; any other is late and ignored."""
        if answer.leader_epoch != self.leader_epoch or answer.role is not self._role:
            return NO_ACTIONS
        if self._phase is Phase.SETTLING:
            return self._settled(answer, now_ms)
        if self._phase not in _AWAITING_FENCE:
            return NO_ACTIONS
        # A log-storage that is gone may have answered late; `log_storage_restarted` has announced the new one.
        gone = answer.error is ErrorCode.NONE and self._incarnation not in ("", answer.incarnation)
        if gone or answer.error is not ErrorCode.NONE:
            # A leader whose fence is refused has led under this epoch in an earlier life, or is overtaken: an election
            # is needed (3.1, 3.5). Anything else may pass when the instruction is sent again.
            refused = answer.error is ErrorCode.STALE_FENCE and self._role is Role.LEADER
            self._phase = Phase.RESIGNED if refused else Phase.UNFENCED
            return NO_ACTIONS
        self._incarnation = answer.incarnation
        self._log_start_offset = answer.log_start_offset
        self._log_end_offset = answer.log_end_offset
        # log-storage's is that of the last checkpoint; this process may know better (invariant 2: it only grows).
        known = max(self._high_watermark, answer.high_watermark, answer.log_start_offset)
        self._high_watermark = min(known, answer.log_end_offset)
        self._epochs = LeaderEpochCache(answer.epochs)
        if self._role is Role.FOLLOWER:
            return self._start_following()
        return self._start_leading(now_ms)

    def _start_following(self) -> Sequence[Action]:
        assert self._proposals is not None
        self._phase = Phase.FOLLOWER
        state = self._proposals.committed.state
        if state.leader == NO_LEADER:
            return NO_ACTIONS
        return (Follow(state.leader, state.leader_epoch, state.unclean_epoch),)

    def _start_leading(self, now_ms: int) -> Sequence[Action]:
        assert self._proposals is not None
        state = self._proposals.committed.state
        # 3.2: the epoch starts at the log end that the fence answered, in an empty log too.
        self._epochs.assign(state.leader_epoch, self._log_end_offset)
        start = self._epochs.start_of(state.leader_epoch)
        assert start is not None  # invariant 5: no higher epoch is in a log that this epoch fences
        self._epoch_start = start
        self._phase = Phase.LEADER
        self._followers = {r: Replica(r) for r in self._replicas if r != self.broker_id}
        self._follower_list = tuple(self._followers.values())
        self._propose_from_ms = NEVER_MS
        actions: list[Action] = [LeadershipStarted(state.leader_epoch, self._incarnation, self._log_end_offset)]
        for member in state.isr:
            if member in self._followers:
                self._followers[member].in_sync_since_ms = now_ms  # 5.6: the lag counts from the election
        actions += self._evaluated(now_ms)
        return actions

    # ------------------------------------------------------------------------------------------------- the own log

    def appended(
        self, leader_epoch: int, incarnation: str, log_end_offset: int, log_start_offset: int, now_ms: int
    ) -> Sequence[Action]:
        """log-storage answered an append of this leadership (of a duplicate too)."""
        if self._phase not in _LEADING or leader_epoch != self.leader_epoch:
            return NO_ACTIONS
        if incarnation != self._incarnation:
            return self.log_storage_restarted(incarnation)
        if log_start_offset > self._log_start_offset:
            return self._log_changed(log_end_offset, log_start_offset, now_ms)
        if log_end_offset <= self._log_end_offset:
            return NO_ACTIONS
        self._log_end_offset = log_end_offset
        if self._advance_high_watermark(now_ms):
            return (HighWatermarkAdvanced(self._high_watermark),)
        return NO_ACTIONS

    def log_start_seen(self, leader_epoch: int, incarnation: str, log_start_offset: int) -> Sequence[Action]:
        """log-storage answered something else with its log start (a read, RaiseLogStart)."""
        if self._phase not in _LEADING or (leader_epoch, incarnation) != (self.leader_epoch, self._incarnation):
            return NO_ACTIONS
        actions: list[Action] = []
        self._raise_log_start(actions, log_start_offset)
        return actions

    def append_unknown(self, leader_epoch: int, now_ms: int) -> Sequence[Action]:
        """An append got no answer. Never tried again blindly: fence again and read the log end (3.4). Produces that
        wait are failed (5.4); the SDK's retries are recognised as duplicates where they had been written."""
        if self._phase is not Phase.LEADER or leader_epoch != self.leader_epoch:
            return NO_ACTIONS
        self._phase = Phase.SETTLING
        self._refence_from_ms = now_ms + self.settings.isr_retry_backoff_ms
        return (LeadershipInterrupted(leader_epoch), Fence(Role.LEADER, leader_epoch))

    def _settled(self, answer: FenceAnswer, now_ms: int) -> Sequence[Action]:
        if answer.error is ErrorCode.STALE_FENCE:
            return self.resign()
        if answer.error is not ErrorCode.NONE:
            return NO_ACTIONS  # `tick` fences again
        if answer.incarnation != self._incarnation:
            return self.log_storage_restarted(answer.incarnation)
        assert answer.log_end_offset >= self._log_end_offset  # one author, one incarnation: nothing is cut (3.5)
        self._phase = Phase.LEADER
        actions: list[Action] = [LeadershipStarted(self.leader_epoch, self._incarnation, answer.log_end_offset)]
        actions += self._log_changed(answer.log_end_offset, answer.log_start_offset, now_ms)
        return actions

    def _log_changed(self, log_end_offset: int, log_start_offset: int, now_ms: int) -> list[Action]:
        actions: list[Action] = []
        self._log_end_offset = max(self._log_end_offset, log_end_offset)
        if self._advance_high_watermark(now_ms):
            actions.append(HighWatermarkAdvanced(self._high_watermark))
        self._raise_log_start(actions, log_start_offset)
        return actions

    def _raise_log_start(self, actions: list[Action], log_start_offset: int) -> None:
        if log_start_offset > self._log_start_offset:
            self._log_start_offset = log_start_offset
            self._epochs.truncate_from_start(log_start_offset)
            actions.append(LogStartRaised(log_start_offset))

    # -------------------------------------------------------------------------------------------- followers' fetches

    def fetched(self, fetch: FollowerFetch, now_ms: int) -> FetchVerdict:
        """A replica's fetch (4.1-4.3, 4.5). On an error or a divergence nothing is recorded."""
        session, leader_epoch, fetch_offset, acked_offset, last_epoch, log_start_offset = fetch
        if self._phase not in _LEADING or leader_epoch != self.leader_epoch:
            differs = leader_epoch != self.leader_epoch
            return self._refuse(self._epoch_error(leader_epoch) if differs else ErrorCode.NOT_LEADER_OR_FOLLOWER)
        replica = self._followers.get(session.broker_id)
        if replica is None:
            return self._refuse(ErrorCode.REPLICA_NOT_ASSIGNED)
        if session is not replica.session:
            if session.broker_epoch < max(replica.broker_epoch, self._live.epochs.get(session.broker_id, -1)):
                return self._refuse(ErrorCode.STALE_BROKER_EPOCH)
            if replica.is_older(session):
                return self._refuse(ErrorCode.FETCH_SESSION_STALE)
        if acked_offset > fetch_offset or acked_offset < 0:
            return self._refuse(ErrorCode.INVALID_REQUEST)  # 4.1
        if not self._log_start_offset <= fetch_offset <= self._log_end_offset:
            return self._refuse(ErrorCode.OFFSET_OUT_OF_RANGE)
        if last_epoch != leader_epoch:  # of the own epoch there is nothing above the log end: it agrees
            diverging = self._epochs.diverging(last_epoch, fetch_offset, self._log_end_offset)
            if diverging is not None:
                end = diverging.end_offset if diverging.leader_epoch >= 0 else self._log_start_offset
                return self._verdict(ErrorCode.NONE, DivergingEpoch(diverging.leader_epoch, end), NO_ACTIONS)
        if session is not replica.session or replica.closed_since_ms is not None:
            replica.bind(session)
        grew = acked_offset != replica.log_end_offset
        replica.fetched(acked_offset, log_start_offset, self._log_end_offset, now_ms)
        assert self._proposals is not None
        actions: Sequence[Action] = NO_ACTIONS
        in_sync = session.broker_id in self._proposals.committed.state.isr
        if in_sync is not (acked_offset >= self._high_watermark):
            # In the ISR without all that is committed (4.5), or out of it with all of it (5.6).
            changes: list[Action] = []
            self._evaluate(changes, now_ms)
            actions = changes
        elif grew and self._advance_high_watermark(now_ms):
            actions = (HighWatermarkAdvanced(self._high_watermark),)
        return self._verdict(ErrorCode.NONE, None, actions)

    def _epoch_error(self, leader_epoch: int) -> ErrorCode:
        lower = leader_epoch < self.leader_epoch
        return ErrorCode.FENCED_LEADER_EPOCH if lower else ErrorCode.UNKNOWN_LEADER_EPOCH

    def _refuse(self, error: ErrorCode) -> FetchVerdict:
        return self._verdict(error, None, NO_ACTIONS)

    def _verdict(self, error: ErrorCode, diverging: DivergingEpoch | None, actions: Sequence[Action]) -> FetchVerdict:
        return FetchVerdict(
            error, diverging, self._high_watermark, self._log_start_offset, self._log_end_offset, actions
        )

    def session_opened(self, session: FetchSession, now_ms: int) -> Sequence[Action]:
        """A stream of a replica fetcher opened. It counts here once it fetches; where it takes the place of one that
        had, the closed one is reopened (5.6)."""
        replica = self._followers.get(session.broker_id)
        if replica is None or not replica.reopen(session):
            return NO_ACTIONS
        return self._evaluated(now_ms)

    def session_closed(self, session: FetchSession, now_ms: int) -> Sequence[Action]:
        replica = self._followers.get(session.broker_id)
        if replica is None or not replica.close(session, now_ms):
            return NO_ACTIONS
        return self._evaluated(now_ms)

    def brokers_changed(self, live: LiveBrokers, now_ms: int) -> Sequence[Action]:
        """The registrations in etcd, as far as this broker has seen them."""
        self._live = live
        return self._evaluated(now_ms)

    # ------------------------------------------------------------------------------------------------------- the ISR

    def isr_written(self, proposal_id: int, revision: int, now_ms: int) -> Sequence[Action]:
        """The proposal's transaction succeeded; `revision` is its etcd revision."""
        if self._proposals is None or not self._proposals.written(proposal_id, revision):
            return NO_ACTIONS
        return self._evaluated(now_ms)

    def isr_refused(self, proposal_id: int, now_ms: int) -> Sequence[Action]:
        """One of the proposal's compares failed: nothing was written."""
        return self._isr_failed(proposal_id, now_ms, refused=True)

    def isr_unknown(self, proposal_id: int, now_ms: int) -> Sequence[Action]:
        """Time-out or broken connection: it may have been written, or be written yet (2.4)."""
        return self._isr_failed(proposal_id, now_ms, refused=False)

    def _isr_failed(self, proposal_id: int, now_ms: int, *, refused: bool) -> Sequence[Action]:
        if self._proposals is None or not self._proposals.failed(proposal_id, refused=refused):
            return NO_ACTIONS
        if self._phase not in _LEADING:
            return NO_ACTIONS
        self._propose_from_ms = now_ms + self.settings.isr_retry_backoff_ms
        return (ReadState(),)

    def state_seen(self, state: VersionedState, now_ms: int) -> Sequence[Action]:
        """A state was read from etcd, or came by a watch. A new leader epoch ends leadership at once (2.4); what comes
        of it is the controller's to say."""
        if self._proposals is None:
            return NO_ACTIONS
        epoch = state.state.leader_epoch
        if epoch > self.leader_epoch:
            self._highest_epoch_seen = max(self._highest_epoch_seen, epoch)
            return self.resign()
        if epoch < self.leader_epoch:
            return NO_ACTIONS  # an old watch event
        assert state.state.leader == self.leader  # invariant 5
        if self._phase in _LEADING:
            return self._see_same_epoch(state, now_ms)
        self._proposals.seen(state)
        return NO_ACTIONS

    def _see_same_epoch(self, state: VersionedState, now_ms: int) -> Sequence[Action]:
        assert self._proposals is not None
        if self._proposals.seen(state) and self.broker_id not in state.state.isr:
            return self.resign()  # its tail is held to be lost (7.2)
        return self._evaluated(now_ms)

    def _count_members(self) -> None:
        """Brings what the high watermark is computed from up to date with the committed state and the proposals."""
        assert self._proposals is not None
        maximal = self._proposals.maximal_isr
        for replica in self._follower_list:
            replica.counts_for_high_watermark = replica.broker_id in maximal
        state = self._proposals.committed.state
        self._high_watermark_rests = len(state.isr) < self._min_insync_replicas or bool(state.elr)

    def _evaluated(self, now_ms: int) -> Sequence[Action]:
        """After anything but the hot paths: proposes what the ISR should become, advances the high watermark."""
        if self._phase not in _LEADING:
            return NO_ACTIONS
        self._count_members()
        actions: list[Action] = []
        self._evaluate(actions, now_ms)
        return actions

    def _evaluate(self, actions: list[Action], now_ms: int) -> None:
        # The proposal first: a joining member counts from its proposal on (5.1).
        wanted = self._next_isr_step(now_ms)
        if wanted is not None:
            actions.append(wanted)
            self._count_members()
        if self._advance_high_watermark(now_ms):
            actions.append(HighWatermarkAdvanced(self._high_watermark))

    def _next_isr_step(self, now_ms: int) -> WriteIsr | ReadState | None:
        proposals = self._proposals
        assert proposals is not None
        if proposals.in_flight is not None or now_ms < self._propose_from_ms:
            return None
        if proposals.refused:
            self._propose_from_ms = now_ms + self.settings.isr_retry_backoff_ms
            return ReadState()  # the one before had no answer
        committed = proposals.committed.state
        lost_data = [r.broker_id for r in self._follower_list if 0 <= r.log_end_offset < self._high_watermark]
        leaving = [r.broker_id for r in self._follower_list if r.broker_id in committed.isr and self._leaves(r, now_ms)]
        joining = [r for r in self._follower_list if r.broker_id not in committed.isr and self._joins(r)]
        isr = frozenset(committed.isr).difference(leaving, lost_data).union(r.broker_id for r in joining)
        assert self.broker_id in isr  # invariant 6
        wanted = next_state(committed, isr, frozenset(lost_data), self._min_insync_replicas)
        # With an outcome unknown even an unchanged state is written: only another write over the same revision makes
        # sure that the unknown one is not written later (2.4).
        if wanted == committed and not proposals.unknown:
            return None
        return proposals.propose(wanted, {r.broker_id: r.broker_epoch for r in joining})

    def _leaves(self, replica: Replica, now_ms: int) -> bool:
        closed = replica.closed_since_ms
        if closed is not None and now_ms - closed >= self.settings.session_grace_ms:
            return True
        return replica.lags(self.settings.replica_lag_time_max_ms, now_ms)

    def _joins(self, replica: Replica) -> bool:
        """5.6; 2.3: under the registration that its fetches name, as far as is known here."""
        return (
            replica.log_end_offset >= max(self._high_watermark, self._epoch_start)
            and replica.session_open
            and self._live.epochs.get(replica.broker_id) == replica.broker_epoch
            and replica.broker_id not in self._live.shutting_down
        )

    def _advance_high_watermark(self, now_ms: int) -> bool:
        """5.1, 5.2. Whether it advanced."""
        if self._high_watermark_rests:
            return False
        lowest = self._log_end_offset
        current = self._high_watermark
        for replica in self._follower_list:
            if replica.log_end_offset < lowest and (
                replica.counts_for_high_watermark or self._is_about_to_join(replica, now_ms)
            ):
                lowest = replica.log_end_offset
        if lowest <= current:
            return False  # invariant 2: it only grows
        self._high_watermark = lowest
        return True

    def _is_about_to_join(self, replica: Replica, now_ms: int) -> bool:
        """Caught up lately, so that the high watermark must not run away from it; a killed one must not hold it
        (5.1)."""
        return (
            now_ms - replica.last_caught_up_ms <= self.settings.replica_lag_time_max_ms
            and replica.session_open
            and self._live.epochs.get(replica.broker_id) == replica.broker_epoch
        )

    # ------------------------------------------------------------------------------------------------- time and ends

    def tick(self, now_ms: int) -> Sequence[Action]:
        """Time has passed. To be called several times in `session_grace_ms` and in `isr_retry_backoff_ms`: every 100
        ms."""
        if self._phase not in _LEADING:
            return NO_ACTIONS
        actions: list[Action] = []
        if self._phase is Phase.SETTLING and now_ms >= self._refence_from_ms:
            self._refence_from_ms = now_ms + self.settings.isr_retry_backoff_ms
            actions.append(Fence(Role.LEADER, self.leader_epoch))
        self._evaluate(actions, now_ms)
        return actions or NO_ACTIONS

    def log_storage_restarted(self, incarnation: str) -> Sequence[Action]:
        """log-storage answers under another incarnation. A leader leads again only under a higher epoch (3.5); a
        follower is fenced anew, as the log may not be the one that had been fenced."""
        if incarnation == self._incarnation:
            return NO_ACTIONS
        self._incarnation = incarnation
        if self._role is Role.LEADER:
            return self.resign()
        if self._phase is not Phase.FOLLOWER and self._phase not in _AWAITING_FENCE:
            return NO_ACTIONS
        self._phase = Phase.FENCING
        return (StopFollowing(), Fence(Role.FOLLOWER, self.leader_epoch))

    def registration_lost(self) -> Sequence[Action]:
        """This broker's own key in etcd is gone or another's (1.4)."""
        return self.resign()

    def resign(self) -> Sequence[Action]:
        """Gives leadership up, or the way to it. It is taken up again under a higher leader epoch only."""
        if self._phase not in _LEADING and not (self._role is Role.LEADER and self._phase in _AWAITING_FENCE):
            return NO_ACTIONS
        actions = self._interrupt()
        self._phase = Phase.RESIGNED
        return actions

    def stop(self) -> Sequence[Action]:
        """StopReplica: neither leads nor follows, until an instruction under a higher leader epoch."""
        actions = self._interrupt()
        actions.append(StopFollowing())
        self._phase = Phase.OFFLINE
        return actions

    def _interrupt(self) -> list[Action]:
        """Drops all that belongs to a leadership. While settling its produces have been failed already."""
        actions: list[Action] = []
        if self._phase is Phase.LEADER:
            actions.append(LeadershipInterrupted(self.leader_epoch))
        if self._proposals is not None:
            self._next_proposal_id = self._proposals.next_id
            self._proposals = IsrProposals(self._proposals.committed, self._next_proposal_id)
        self._followers = {}
        self._follower_list = ()
        self._high_watermark_rests = True
        return actions

    def check_invariants(self) -> None:
        """Asserted after every step of a simulated run."""
        if self._phase not in _LEADING:
            assert not self._followers
            return
        assert self._proposals is not None
        committed = self._proposals.committed.state
        assert committed.leader == self.broker_id  # invariant 5
        assert self._highest_epoch_seen == committed.leader_epoch  # a leader that saw a higher one has stopped (2.4)
        assert self.broker_id in committed.isr  # invariant 6
        assert not set(committed.isr) & set(committed.elr)
        assert self._log_start_offset <= self._high_watermark <= self._log_end_offset
        in_flight = self._proposals.in_flight
        assert in_flight is None or in_flight.compare_revision == self._proposals.committed.revision
        for replica in self._follower_list:
            assert replica.log_end_offset <= self._log_end_offset  # 4.2
            assert replica.counts_for_high_watermark == (replica.broker_id in self._proposals.maximal_isr)
