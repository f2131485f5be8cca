"""The values kept in etcd, as frozen dataclasses with their JSON form. Pure: no etcd in here.

`keys` has the keys; the fields of a partition's state are those of RULES 2.1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from highwater.metadata.schema.reading import broker_ids, json_object, number, text_of
from highwater.model.leader_epochs import NO_EPOCH
from highwater.model.written_json import checked

NO_LEADER = -1

# Of one topic's configuration, and of one value in it. Metadata of all topics, which has them, is to fit one message.
MAX_CONFIG_BYTES = 8 << 10
MAX_CONFIG_VALUE_BYTES = 4 << 10
# Of a registration, and of a partition's state: all of them together are told to every broker.
MAX_ENTRY_BYTES = 64 << 10
TOPIC_ID_BYTES = 16

# A topic's configuration that cannot be read: what might be its own must not be deleted by the defaults.
KEEP_ALL_RECORDS = {"retention.bytes": "-1", "retention.ms": "-1"}


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A partition's state in etcd (RULES 2.1). Brokers are named by id; sets are sorted tuples without repeats, the
    ISR too (the assignment, in the topic's key, is what holds the order of preference)."""

    leader: int  # NO_LEADER where there is none
    leader_epoch: int
    leader_broker_epoch: int  # the leader's broker epoch when it was elected (RULES 7.1); 0 with NO_LEADER
    isr: tuple[int, ...]
    elr: tuple[int, ...] = ()  # left the ISR below the minimum, and hold everything committed (RULES 7.3)
    lost: tuple[int, ...] = ()  # taken out of ISR and `elr`, as the ends of their logs may be gone (RULES 7.2)
    unclean_epoch: int = NO_EPOCH  # leader epoch of the last election by log, or unclean one (RULES 7.4)
    controller_epoch: int = 0

    def with_(self, **changes: Any) -> PartitionState:
        return replace(self, **changes)

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":"), sort_keys=True).encode()

    @classmethod
    def from_json(cls, text: bytes | str) -> PartitionState:
        values = _known_fields(cls, text)
        for name in ("leader", "leader_epoch", "leader_broker_epoch", "unclean_epoch", "controller_epoch"):
            if name in values:
                number(values[name], name, least=-1)
        for name in ("isr", "elr", "lost"):
            if name in values:
                values[name] = broker_ids(values[name], name)
        return checked(cls(**values))


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
        values = json_object(text)
        topic_id = bytes.fromhex(text_of(values["topic_id"], "topic_id"))
        if len(topic_id) != TOPIC_ID_BYTES:
            raise ValueError(f"topic_id has {len(topic_id)} bytes")
        if not isinstance(values["replicas"], list):
            raise ValueError("replicas is not a list")
        replicas = tuple(broker_ids(each, "replicas") for each in values["replicas"])
        return checked(cls(values["topic"], topic_id, replicas))


@dataclass(frozen=True, slots=True)
class VersionedTopic:
    """A topic as it stands in etcd."""

    assignment: TopicAssignment
    create_revision: int
    revision: int  # mod revision


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """`/brokers/ids/<id>` (lease). Its create revision is the broker epoch (RULES 1.4); it stands beside it."""

    broker_id: int
    address: (
        str  # of the internal listener, `host:port` or `unix:/path`; of brokers before there were any, the only one
    )
    incarnation: str  # random id of this start of the replica-manager
    log_storage_incarnation: str
    rack: str = ""
    tail_lost: bool = False  # the ends of its logs may be gone (RULES 7.2)
    shutting_down: bool = False
    leaving_since: int = 0  # mod revision under which `shutting_down` was set; 0: that of this very write
    offline_log_reports: int = 0  # grows whenever more of its logs went offline: ask it which (RULES 7.7)
    extra: dict[str, str] = field(default_factory=dict)
    # Advertised address by name; empty: written by an older broker.
    listeners: dict[str, str] = field(default_factory=dict)
    host_address: str = ""  # `host:port` of this very process, by its host's own address; empty: not given

    @property
    def probed_address(self) -> str:
        """The address at which a refused connection means that the process is gone (RULES 8.3)."""
        return self.host_address or self.address

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":"), sort_keys=True).encode()

    @classmethod
    def from_json(cls, text: bytes | str) -> BrokerRegistration:
        values = _known_fields(cls, text)
        for name in ("broker_id", "leaving_since", "offline_log_reports"):
            number(values.get(name, 0), name)
        return checked(cls(**values))


@dataclass(frozen=True, slots=True)
class LiveBroker:
    registration: BrokerRegistration
    broker_epoch: int  # create revision of the key
    revision: int = field(default=0, compare=False)  # mod revision: when it was last written

    @property
    def leaving_since(self) -> int:
        """The revision at which it said that it shuts down; the same however often it is written anew."""
        return self.registration.leaving_since or self.revision


@dataclass(frozen=True, slots=True)
class ControllerRegistration:
    """`/controller` (lease): who acts as the controller, and under which controller epoch (RULES 1.2)."""

    controller_id: int
    address: str  # of the Controller service
    controller_epoch: int
    incarnation: str  # random id of this start of the controller

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":"), sort_keys=True).encode()

    @classmethod
    def from_json(cls, text: bytes | str) -> ControllerRegistration:
        values = _known_fields(cls, text)
        for name in ("controller_id", "controller_epoch"):
            number(values.get(name, 0), name, least=-1)
        return checked(cls(**values))


@dataclass(frozen=True, slots=True)
class IsrNotification:
    """An entry under `/isr_change_notification` (RULES 2.5): a leader changed these partitions' states."""

    broker_id: int
    broker_epoch: int
    sequence: int
    partitions: tuple[tuple[str, int], ...]  # (topic, partition)

    def to_json(self) -> bytes:
        """Only the partitions: the rest stands in the key."""
        return json.dumps({"partitions": self.partitions}, separators=(",", ":")).encode()


def notified_partitions(text: bytes | str) -> tuple[tuple[str, int], ...]:
    """Reads what `IsrNotification.to_json` wrote."""
    partitions = json_object(text)["partitions"]
    return tuple((text_of(topic, "a topic"), number(partition, "a partition")) for topic, partition in partitions)


def config_to_json(config: Mapping[str, str]) -> bytes:
    """The value of a `/config/...` key: Kafka's keys, with their values as text."""
    return json.dumps(dict(config), separators=(",", ":"), sort_keys=True).encode()


def config_from_json(text: bytes | str) -> dict[str, str]:
    return {key: text_of(value, key[:100]) for key, value in json_object(text).items()}


def bounded_config(config: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The configuration without what is too large, and the keys of that: of versions that took any value."""
    kept: dict[str, str] = {}
    dropped = []
    size = 0
    for key, value in sorted(config.items(), key=lambda item: len(item[1])):
        size += len(key.encode()) + len(value.encode(errors="surrogatepass"))
        if len(value) > MAX_CONFIG_VALUE_BYTES or size > MAX_CONFIG_BYTES:
            dropped.append(key)
        else:
            kept[key] = value
    return kept, tuple(sorted(dropped))


def _known_fields(cls: type[Any], text: bytes | str) -> dict[str, Any]:
    """The fields that this version knows: in a rolling update a newer one may have written more."""
    if len(text) > MAX_ENTRY_BYTES:
        raise ValueError(f"it has {len(text)} bytes, {MAX_ENTRY_BYTES} are the most")
    known = {each.name for each in fields(cls)}
    return {name: value for name, value in json_object(text).items() if name in known}
