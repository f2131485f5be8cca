"""Values that a follower is told (events) and asks for in return (actions): frozen values, no I/O.

Offsets are record offsets, epochs are leader epochs (-1: none), times are monotonic milliseconds. `generation` names
one stretch of a follower's life in which nothing was dropped: an answer that carries another one is of no account.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from highwater.errors import ErrorCode
from highwater.model.leader_epochs import EpochEntry
from highwater.model.log_state import LogState


@dataclass(frozen=True, slots=True)
class Followed:
    """One partition's part of WatchFollowing. The fence with role FOLLOWER at `leader_epoch` is set (RULES 3.3)."""

    leader: int
    leader_epoch: int
    unclean_epoch: int  # RULES 4.4; -1: none
    log_storage_incarnation: str  # the one that this broker is registered with


# Events: what comes back.


@dataclass(frozen=True, slots=True)
class FenceAnswer:
    """log-storage's answer to `Fence`. `log` is None where there is an error."""

    generation: int
    incarnation: str
    log: LogState | None
    epochs: tuple[EpochEntry, ...] = ()  # oldest first
    error: ErrorCode = ErrorCode.NONE
    message: str = ""


class LogAnswer(NamedTuple):
    """log-storage's answer to `Append`, `TruncateTo` or `TruncateFullyAndStartAt`. `log`: after it; None on error."""

    generation: int
    incarnation: str
    log: LogState | None
    error: ErrorCode = ErrorCode.NONE
    message: str = ""


@dataclass(frozen=True, slots=True)
class FetchedRecords:
    """The whole batches of one response, in order."""

    base_offset: int  # of the first batch
    next_offset: int  # after the last batch
    last_epoch: int  # leader epoch of the last batch
    records: Any  # handed on to `Append` unread: `bytes` in the service


@dataclass(frozen=True, slots=True)
class DivergingEpoch:
    """The leader's largest epoch at or below the follower's last, and its end (RULES 4.3). -1: it has none."""

    leader_epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """The leader's answer for one partition. `position` is the one that was asked for (RULES 4.7).

    High watermark, log start and log end are the leader's; they count with OFFSET_OUT_OF_RANGE too."""

    position: FetchPosition
    high_watermark: int
    log_start_offset: int
    log_end_offset: int
    fetched: FetchedRecords | None = None
    diverging: DivergingEpoch | None = None
    error: ErrorCode = ErrorCode.NONE
    message: str = ""


# What a follower asks of its leader.


@dataclass(frozen=True, slots=True)
class FetchPosition:
    """One partition's part of a fetch request (RULES 4.1). Invariant: acked_offset <= fetch_offset."""

    generation: int
    leader_epoch: int
    fetch_offset: int
    acked_offset: int
    last_epoch: int  # of the last batch below fetch_offset, -1: none
    log_start_offset: int


# Actions: what a follower asks of its log-storage, or wants to be known.


@dataclass(frozen=True, slots=True)
class Fence:
    """FenceEpoch with role FOLLOWER; answered by `Follower.fenced`."""

    generation: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class Append:
    """Answered by `Follower.appended`, in the order of the appends. No records: high watermark and log start only."""

    generation: int
    leader_epoch: int
    expected_offset: int  # the log end offset that it continues (RULES 3.4)
    records: Any | None
    leader_high_watermark: int
    leader_log_start_offset: int
    traceparents: tuple[str, ...] = ()  # of the traces that the records are a part of; the follower has none


@dataclass(frozen=True, slots=True)
class TruncateTo:
    """Answered by `Follower.truncated`.

    The log must still end as it did when this was decided, else OFFSET_MISMATCH: a truncation that was given up for
    lost must not cut what has been acknowledged since."""

    generation: int
    leader_epoch: int
    offset: int
    unclean_epoch: int
    expected_log_end_offset: int
    expected_last_epoch: int


@dataclass(frozen=True, slots=True)
class TruncateFullyAndStartAt:
    """Answered by `Follower.truncated`. Guarded as `TruncateTo` is."""

    generation: int
    leader_epoch: int
    offset: int
    unclean_epoch: int
    expected_log_end_offset: int
    expected_last_epoch: int


@dataclass(frozen=True, slots=True)
class Delayed:
    """For the log: nothing is fetched for `retry_in_ms`, or until the next Following message."""

    error: ErrorCode
    message: str
    retry_in_ms: int


@dataclass(frozen=True, slots=True)
class WentOffline:
    """For the log, loudly: this replica would have to drop what was committed (RULES 4.4)."""

    message: str


Action = Fence | Append | TruncateTo | TruncateFullyAndStartAt | Delayed | WentOffline
