"""Values for what log-storage is told and for what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from highwater.errors import ErrorCode
from highwater.model.leader_epochs import EpochEntry
from highwater.model.log_state import LogState
from highwater.model.partition import PartitionKey
from highwater.rpc.embedding import Piece


class StorageUnavailableError(Exception):
    """log-storage did not answer: the stream or the call broke, or took too long. Whether it has done what it was asked
    is not known."""


@dataclass(frozen=True, slots=True)
class StorageError:
    """A refusal of log-storage, and its sentence about it."""

    code: ErrorCode
    message: str = ""


@dataclass(slots=True)
class Append:
    """One partition's part of a message. A follower's hands on its leader's high watermark and log start, and may have
    no records; -1 in a leader's own."""

    key: PartitionKey
    leader_epoch: int
    expected_offset: int  # the log end offset that it continues (RULES 3.4)
    records: Piece
    leader_high_watermark: int = -1
    leader_log_start_offset: int = -1
    traceparents: Sequence[str] = ()  # of the traces that the records are a part of


class AppendAnswer(NamedTuple):
    """log-storage's answer for one append. Offsets are -1 where `error` is set, those of the log excepted."""

    error: ErrorCode
    message: str
    base_offset: int
    last_offset: int
    duplicate: bool
    log_append_time_ms: int
    log: LogState  # after the append
    incarnation: str
    offline: bool = False  # the log takes nothing any more until log-storage is started again (RULES 7.7)


class FencedLog(NamedTuple):
    """log-storage's answer for one fence (RULES 3.2). `log` and `epochs` count where there is no error."""

    error: StorageError
    log: LogState
    epochs: tuple[EpochEntry, ...]  # the leader epoch cache, ascending
    incarnation: str
    offline: bool


class TruncatedLog(NamedTuple):
    """`log`: after the truncation; it counts where there is no error."""

    error: StorageError
    log: LogState
    incarnation: str


class NewLog(NamedTuple):
    """A log to be made or found."""

    topic: str
    key: PartitionKey
    config: Mapping[str, str]  # what the topic sets
    newer_than_incarnation: str = ""  # of log-storage, where the topic is newer than that


@dataclass(frozen=True, slots=True)
class CreateAnswer:
    error: StorageError
    incarnation: str = ""  # that has the configuration now; empty: no answer


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    error: StorageError
    records: bytes
    log_end_offset: int
    log_start_offset: int
    incarnation: str
    offline: bool = False


class OffsetLookup(NamedTuple):
    key: PartitionKey
    timestamp: int  # ms since the epoch, or -1: the latest, -2: the earliest, -3: the greatest timestamp
    max_offset: int  # only records below it count; -1: no bound


@dataclass(frozen=True, slots=True)
class OffsetAnswer:
    incarnation: str
    error: StorageError
    offset: int  # -1: none
    timestamp: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class LogDescription:
    key: PartitionKey
    topic: str
    log: LogState
    offline: bool = False


@dataclass(frozen=True, slots=True)
class Description:
    incarnation: str
    logs: tuple[LogDescription, ...]
    tail_lost: bool  # in any log directory (RULES 7.2)
    cluster_ids: frozenset[str]  # of the log directories; "" where one in use has none yet (RULES 9.3)
    # Ids of log directories: of those that may have lost what was written since the start, and of those in use that
    # have not (RULES 7.2).
    doubted_dirs: frozenset[str] = frozenset()
    sound_dirs: frozenset[str] = frozenset()
