"""Values that go into a `Partition` (events) and come out of it (actions). Pure values, no behaviour.

The server (or the simulation) hands events to the partition, one at a time, and carries out the actions of each answer
in the order given. Times are `now_ms`, milliseconds of any monotonic clock. Offsets are records' offsets; an *end*
offset is one past the last record. Epochs are -1 where there is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from highwater.errors import ErrorCode
from highwater.metadata.schema.models import PartitionState, VersionedState
from highwater.model.fence_role import Role
from highwater.model.partition import PartitionKey

UNKNOWN_OFFSET = -1
NEVER_MS = -(1 << 62)  # before any `now_ms`
FAR_MS = 1 << 62  # after any `now_ms`
SHORTEST_HOLD_MS = 100  # of a replica's request: below it, asking would be all that the brokers do


# ---------------------------------------------------------------------------------------------------- events' values


@dataclass(frozen=True, slots=True)
class PartitionSettings:
    """The broker's settings that a partition's decisions depend on."""

    replica_lag_time_max_ms: int = 10_000
    min_insync_replicas: int = 1  # where the topic says nothing; capped at the number of assigned replicas (RULES 5.2)
    session_grace_ms: int = 500  # how long a closed session may take to reopen before its replica leaves (RULES 5.6)
    silent_ms: int = 1_500  # without a fetch for so long, and not registered: the replica leaves (RULES 5.6)
    isr_retry_backoff_ms: int = 250  # between ISR proposals after one was refused, and between reads of an unknown one

    @property
    def session_silent_ms(self) -> int:
        """Without a request for so long, what a session repeats is looked at by its time: before, its next request may
        yet be in time for all of it (RULES 5.6)."""
        return min(self.silent_ms, self.replica_lag_time_max_ms)

    @property
    def longest_hold_ms(self) -> int:
        """No request of a replica is held back for longer, or one in sync with nothing to read would seem silent (RULES
        4.11); a third of the time is for the way of the next one."""
        return max(2 * self.session_silent_ms // 3, SHORTEST_HOLD_MS)


@dataclass(frozen=True, slots=True)
class Instruction:
    """One partition's part of LeaderAndIsr. The controller epoch and the broker epoch of the request are the
    server's to check first (RULES 1.2, 1.4)."""

    state: VersionedState
    replicas: tuple[int, ...]  # the assignment, preferred leader first
    min_insync_replicas: int | None = None  # the topic's; None: the broker's default


class Instructed(NamedTuple):
    """The answer to an instruction.

    `error`: NONE, taken or already known (a `Fence` among the actions may still fail: its error is the answer then);
    FENCED_LEADER_EPOCH, older than what is known (RULES 1.3), without effect; REPLICA_NOT_ASSIGNED, this broker is not
    in the assignment; INVALID_REQUEST, a leader outside its own ISR; LOG_STORAGE_ERROR, leadership under this
    epoch was given up here and is not taken up again (RULES 3.5): another election is needed (RULES 7.7).
    """

    error: ErrorCode
    actions: Sequence[Action]


@dataclass(frozen=True, slots=True)
class FenceAnswer:
    """log-storage's answer to a `Fence` (RULES 3.2); on an error (a broken connection is LOG_STORAGE_ERROR) only
    `role`, `leader_epoch` and `error` count."""

    role: Role
    leader_epoch: int
    error: ErrorCode = ErrorCode.NONE
    log_end_offset: int = 0
    last_epoch: int = -1  # of the last batch
    log_start_offset: int = 0
    high_watermark: int = 0
    incarnation: str = ""  # log-storage's
    epochs: tuple[tuple[int, int], ...] = ()  # the leader epoch cache: (leader epoch, start offset), ascending
    offline: bool = False  # with an error: the log takes nothing any more until log-storage is started again (7.7)


@dataclass(slots=True, unsafe_hash=True)
class FetchSession:
    """One stream of one replica fetcher (RULES 4.1). The server makes one when the stream opens; `number` grows with
    every stream that this process accepts, so that the newest of two is known. It is named by the first four."""

    broker_id: int
    broker_epoch: int
    fetcher_id: int
    number: int
    # All that may be bound to it (`Replica.session`): what it fetched, and what it may have taken over from sessions
    # before it. An ordered set. What ends with the session concerns these alone.
    partitions: dict[PartitionKey, None] = field(default_factory=dict, compare=False, repr=False)
    # Of a session that names what has changed alone (RULES 4.10): when its latest request came. That repeats what was
    # said of partitions which it does not name (RULES 4.11).
    last_request_ms: int = field(default=NEVER_MS, compare=False, repr=False)
    silence_told: bool = field(default=False, compare=False, repr=False)  # to its partitions, since then

    def requested(self, now_ms: int, silent_ms: int) -> bool:
        """A request came. Tells whether its partitions had been told of a silence, or may have seen it themselves."""
        before = self.silence_told or NEVER_MS < self.last_request_ms <= now_ms - silent_ms
        self.silence_told = False
        self.last_request_ms = now_ms
        return before


class FollowerFetch(NamedTuple):
    """One partition of a replica's fetch (RULES 4.1)."""

    session: FetchSession
    leader_epoch: int
    fetch_offset: int
    acked_offset: int  # log end offset of the follower's log-storage; never above fetch_offset
    last_epoch: int  # of the last batch below fetch_offset; -1: a log without batches
    log_start_offset: int = 0
    repeated: bool = False  # by the session's next requests, until they say otherwise (RULES 4.10)


class DivergingEpoch(NamedTuple):
    """The point at which a follower's log leaves the leader's (RULES 4.3): the leader's largest epoch at or below the
    follower's last, and its end offset. Epoch -1: the leader has none; `end_offset` is then its log start."""

    leader_epoch: int
    end_offset: int


class FetchVerdict(NamedTuple):
    """The answer to a replica's fetch of one partition. With `error` NONE and no `diverging`: read from the fetch
    offset up to the log end offset. High watermark and log start go into every answer (RULES 4.6); with
    NOT_LEADER_OR_FOLLOWER and the like they are those last known and the follower takes no notice of them."""

    error: ErrorCode
    diverging: DivergingEpoch | None
    high_watermark: int
    log_start_offset: int
    log_end_offset: int
    actions: Sequence[Action]


@dataclass(frozen=True, slots=True)
class LiveBrokers:
    """The registered brokers as this one knows them from etcd. One snapshot is shared by all partitions."""

    epochs: Mapping[int, int] = field(default_factory=dict)  # broker id -> broker epoch
    shutting_down: frozenset[int] = frozenset()


# ----------------------------------------------------------------------------------------------------------- actions


@dataclass(frozen=True, slots=True)
class Fence:
    """Call FenceEpoch and hand the answer, or the error, to `Partition.fenced`. Appends of this partition wait for
    it."""

    role: Role
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class Follow:
    """Publish to WatchFollowing; the fence stands already (RULES 3.3)."""

    leader: int
    leader_epoch: int
    unclean_epoch: int


@dataclass(frozen=True, slots=True)
class StopFollowing:
    """Take the partition out of WatchFollowing. Harmless where it is not in it."""


@dataclass(frozen=True, slots=True)
class WriteIsr:
    """Put `state` if the state key's mod revision is `compare_revision` and each joining broker's registration has the
    create revision given (RULES 2.2, 2.3), with a notification (RULES 2.5). Answer with exactly one of `isr_written`,
    `isr_refused`, `isr_unknown`. Never retry it: a retry can hide that the first one was written."""

    proposal_id: int
    state: PartitionState
    compare_revision: int
    broker_epochs: Mapping[int, int]  # joining broker -> broker epoch of its fetches


@dataclass(frozen=True, slots=True)
class ReadState:
    """Read the state key (linearizable) and hand it to `state_seen`. May be dropped on an error: it is asked for
    again."""


@dataclass(frozen=True, slots=True)
class HighWatermarkAdvanced:
    """Waiting produces and consumers' fetches up to `offset` can be answered."""

    offset: int


@dataclass(frozen=True, slots=True)
class LogStartRaised:
    offset: int


@dataclass(frozen=True, slots=True)
class LeadershipStarted:
    """The fence stands: produces and fetches are taken from here on. The tail cache is bound to
    (`leader_epoch`, `incarnation`) and starts at `log_end_offset` (RULES 5.5)."""

    leader_epoch: int
    incarnation: str
    log_end_offset: int


@dataclass(frozen=True, slots=True)
class LeadershipInterrupted:
    """Fail every waiting produce of this epoch, whatever happens later (RULES 5.4); answer waiting fetches; empty the
    tail cache (RULES 5.5)."""

    leader_epoch: int


Action = (
    Fence
    | Follow
    | StopFollowing
    | WriteIsr
    | ReadState
    | HighWatermarkAdvanced
    | LogStartRaised
    | LeadershipStarted
    | LeadershipInterrupted
)

NO_ACTIONS: tuple[Action, ...] = ()
