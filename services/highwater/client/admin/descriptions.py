"""Arguments and results of `Admin`: frozen values, no protobuf."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from highwater.client.exceptions import HighwaterError
from highwater.client.notebook import ShownAsTable


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to make. `None` for partitions or replication factor: the cluster's default."""

    topic: str
    partitions: int | None = None
    replication_factor: int | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    assignment: Sequence[Sequence[int]] = ()  # broker ids of each partition, preferred leader first; empty: balanced


@dataclass(frozen=True, slots=True)
class TopicResult(ShownAsTable):
    """The outcome of one topic of a request; `error` is None on success."""

    topic: str
    topic_id: bytes
    partitions: int
    replication_factor: int
    error: HighwaterError | None


@dataclass(frozen=True, slots=True)
class ConfigValue(ShownAsTable):
    """One key of a topic's configuration as it counts now."""

    value: str | None  # None: each broker's own setting counts, which the controller does not know
    source: str
    """"topic": set there; "cluster", "broker-defaults": set for the cluster, for all brokers; "controller", "brokers":
    their setting is the default; "default": no setting changes it."""

    @property
    def is_default(self) -> bool:
        return self.source != "topic"


@dataclass(frozen=True, slots=True)
class PartitionDescription(ShownAsTable):
    partition: int
    leader: int | None  # None: no leader now
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicDescription(ShownAsTable):
    topic: str
    topic_id: bytes
    partitions: tuple[PartitionDescription, ...]
    config: Mapping[str, str]
    internal: bool


@dataclass(frozen=True, slots=True)
class BrokerDescription(ShownAsTable):
    broker_id: int
    broker_epoch: int
    address: str
    rack: str
    shutting_down: bool
    tail_lost: bool  # the ends of its logs may be gone, after a crash of the machine (RULES 7.2)
    leaders: int
    replicas: int


@dataclass(frozen=True, slots=True)
class ClusterDescription(ShownAsTable):
    cluster_id: str
    controller_id: int | None
    controller_epoch: int
    brokers: tuple[BrokerDescription, ...]
    topics: int
    partitions: int
    offline_partitions: int
    under_replicated_partitions: int


@dataclass(frozen=True, slots=True)
class BrokerReach:
    """The outcome of trying one broker at the address that clients are told."""

    broker_id: int
    address: str  # of the listener that this client came in by; empty: the broker does not have it
    seconds: float | None  # until it answered
    problem: str | None


@dataclass(frozen=True, slots=True)
class LogDirReplica:
    """A replica in a log directory, or the copy of one that moves there."""

    topic: str
    partition: int
    size_bytes: int
    is_future: bool  # the copy
    offset_lag: int  # of a copy: how many offsets it is behind
    error: str | None  # why it is offline


@dataclass(frozen=True, slots=True)
class LogDirDescription(ShownAsTable):
    broker_id: int
    path: str
    directory_id: str
    error: str | None  # why it is offline
    full: bool
    total_bytes: int  # of the volume; 0 where it is offline
    usable_bytes: int
    replicas: tuple[LogDirReplica, ...]
