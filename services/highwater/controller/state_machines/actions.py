"""Output of the controller's state machines: writes to make in etcd, and instructions to send to brokers. Pure.

Nothing here is a promise: a write may be refused (someone else wrote first), an instruction is sent again until it is
answered, and its content is read (`Cluster.instruction`) when it is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from highwater.controller.state_machines.election import LogTail
from highwater.errors import ErrorCode
from highwater.metadata.schema.models import PartitionState, VersionedState
from highwater.model.partition import PartitionKey


@dataclass(frozen=True, slots=True)
class WriteState:
    """Put the state where its mod revision is still `compare_revision` (RULES 2.2).

    0: where there is none yet, and only while the topic's key is the one that was read; so a write that comes late
    leaves no state behind of a topic that was deleted meanwhile.
    """

    topic: str
    key: PartitionKey
    state: PartitionState
    compare_revision: int


@dataclass(frozen=True, slots=True)
class RecordTail:
    """Put the broker epoch into `/brokers/tail/<id>`: every state has taken note of the lost tail (RULES 7.2)."""

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class RemoveStates:
    """Delete the states of a topic that is marked for deletion (RULES 9.2)."""

    topic: str
    topic_id: bytes


@dataclass(frozen=True, slots=True)
class RemoveTopic:
    """Delete topic, configuration and marker in one transaction: the end of a deletion (RULES 9.2)."""

    topic: str
    topic_id: bytes


@dataclass(frozen=True, slots=True)
class SendLeaderAndIsr:
    """The desired state of these partitions changed for this broker, or it has not been told yet."""

    broker_id: int
    broker_epoch: int
    keys: tuple[PartitionKey, ...]
    leading: frozenset[PartitionKey] = frozenset()  # those of them that it is to lead


@dataclass(frozen=True, slots=True)
class StopPartition:
    key: PartitionKey
    leader_epoch: int  # of the state that was read, -1 for a dead topic id (RULES 9.3)
    delete_log: bool


@dataclass(frozen=True, slots=True)
class SendStopReplica:
    broker_id: int
    broker_epoch: int
    partitions: tuple[StopPartition, ...]


@dataclass(frozen=True, slots=True)
class SendMetadata:
    """Tell this broker who is live, and of these partitions, which changed, with the configuration of their topics;
    with `full` of all there are."""

    broker_id: int
    broker_epoch: int
    full: bool = False
    keys: tuple[PartitionKey, ...] = ()
    deleted_topic_ids: frozenset[bytes] = frozenset()


Write = WriteState | RecordTail | RemoveStates | RemoveTopic
Send = SendLeaderAndIsr | SendStopReplica | SendMetadata
Action = Write | Send


@dataclass(frozen=True, slots=True)
class PartitionInstruction:
    """One partition's part of LeaderAndIsr: state and revision order it (RULES 1.3)."""

    topic: str
    key: PartitionKey
    versioned: VersionedState
    replicas: tuple[int, ...]
    config: Mapping[str, str]
    offline_replicas: tuple[int, ...] = ()  # whose logs are offline (RULES 7.7)
    topic_revision: int = 0  # at which the topic was created


@dataclass(frozen=True, slots=True)
class InstructionAnswer:
    """A broker's answer to LeaderAndIsr for one partition, with what it was told."""

    key: PartitionKey
    leader_epoch: int
    error: ErrorCode = ErrorCode.NONE
    tail: LogTail | None = None
    log_offline: bool = False  # with an error: until log-storage is started again
    # With an error: until it is in neither ISR nor `elr`; without: it serves as it is (RULES 7.6).
    log_damaged: bool = False
