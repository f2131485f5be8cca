"""The values kept in etcd, as frozen dataclasses with their JSON form. Pure: no etcd in here.

DESIGN §5 has the keys, RULES 2.1 the fields of a partition's state.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple
from uuid import UUID

NO_LEADER = -1
NO_EPOCH = -1


class PartitionKey(NamedTuple):
    """Names a partition below the client API (RULES 1.1)."""

    topic_id: bytes  # 16 bytes
    partition: int

    def __str__(self) -> str:
        return f"{UUID(bytes=self.topic_id)}-{self.partition}"


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A partition's state in etcd (RULES 2.1). Brokers are named by id; sets are sorted tuples without repeats, the
    ISR too (the assignment, in the topic's key, is what holds the order of preference)."""

    leader: int  # NO_LEADER where there is none
    leader_epoch: int
    leader_broker_epoch: int  # the leader's broker epoch when it was elected (RULES 7.1); 0 with NO_LEADER
    isr: tuple[int, ...]
    elr: tuple[int, ...] = ()  # RULES 7.3
    lost: tuple[int, ...] = ()  # RULES 7.2
    unclean_epoch: int = NO_EPOCH  # RULES 7.4
    controller_epoch: int = 0

    def with_(self, **changes: Any) -> PartitionState:
        return replace(self, **changes)

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":"), sort_keys=True).encode()

    @classmethod
    def from_json(cls, text: bytes | str) -> PartitionState:
        fields = json.loads(text)
        for name in ("isr", "elr", "lost"):
            fields[name] = tuple(fields[name])
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class VersionedState:
    """A state with the etcd mod revision it was read at: the *state revision* (RULES 1.3)."""

    state: PartitionState
    revision: int


@dataclass(frozen=True, slots=True)
class TopicAssignment:
    """`/brokers/topics/<topic>`: the topic's id and who hosts each partition, preferred leader first."""

    topic: str
    topic_id: bytes
    replicas: tuple[tuple[int, ...], ...]  # index = partition

    def to_json(self) -> bytes:
        return json.dumps(
            {"topic": self.topic, "topic_id": self.topic_id.hex(), "replicas": self.replicas}, separators=(",", ":")
        ).encode()

    @classmethod
    def from_json(cls, text: bytes | str) -> TopicAssignment:
        fields = json.loads(text)
        return cls(fields["topic"], bytes.fromhex(fields["topic_id"]), tuple(tuple(r) for r in fields["replicas"]))


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """`/brokers/ids/<id>` (lease). Its create revision is the broker epoch (RULES 1.4); it stands beside it."""

    broker_id: int
    address: str  # of the Broker and ReplicaControl services, `host:port` or `unix:/path`
    incarnation: str  # random id of this start of the replica-manager
    log_storage_incarnation: str
    rack: str = ""
    tail_lost: bool = False  # RULES 7.2
    shutting_down: bool = False
    extra: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":"), sort_keys=True).encode()

    @classmethod
    def from_json(cls, text: bytes | str) -> BrokerRegistration:
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class LiveBroker:
    registration: BrokerRegistration
    broker_epoch: int  # create revision of the key
