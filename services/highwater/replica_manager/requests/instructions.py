"""The controller's instructions, and what became of them, as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from highwater.errors import ErrorCode
from highwater.metadata.schema.models import VersionedState
from highwater.model.partition import PartitionKey


@dataclass(frozen=True, slots=True)
class Sender:
    """The controller that instructs, and the registration that it means."""

    controller_id: int
    controller_epoch: int
    broker_epoch: int | None = None  # None: whichever (UpdateMetadata)


@dataclass(frozen=True, slots=True)
class PartitionInstruction:
    topic: str
    key: PartitionKey
    state: VersionedState
    replicas: tuple[int, ...]
    config: Mapping[str, str]
    offline_replicas: tuple[int, ...] = ()
    topic_revision: int = 0  # at which the topic was created


@dataclass(frozen=True, slots=True)
class StopInstruction:
    key: PartitionKey
    leader_epoch: int  # -1: of a deleted topic
    delete_log: bool


@dataclass(frozen=True, slots=True)
class InstructionOutcome:
    key: PartitionKey
    error: ErrorCode
    message: str = ""
    last_epoch: int = -1  # of the log, as log-storage last answered
    log_end_offset: int = -1
    log_offline: bool = False  # with an error: until log-storage is started again (RULES 7.7)
    # With an error: until it counts for nothing and can be mended; without: it serves as it is (RULES 7.6).
    log_damaged: bool = False


@dataclass(frozen=True, slots=True)
class Outcomes:
    error: ErrorCode
    message: str = ""
    partitions: Sequence[InstructionOutcome] = field(default_factory=tuple)
