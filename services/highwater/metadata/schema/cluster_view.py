"""The cluster as etcd holds it: a snapshot, and the changes after it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from highwater.metadata.schema.keys import (
    BrokerIdKey,
    BrokerTailKey,
    ControllerEpochKey,
    ControllerKey,
    DeleteTopicKey,
    IsrChangeKey,
    Keys,
    ParsedKey,
    StateKey,
    TopicConfigKey,
    TopicKey,
)
from highwater.metadata.schema.models import (
    KEEP_ALL_RECORDS,
    TOPIC_ID_BYTES,
    BrokerRegistration,
    ControllerRegistration,
    IsrNotification,
    LiveBroker,
    PartitionState,
    TopicAssignment,
    VersionedState,
    VersionedTopic,
    bounded_config,
    config_from_json,
    notified_partitions,
)
from highwater.metadata.schema.reading import CorruptMetadataError, counter, readable
from highwater.metadata.store.transactions import Entry, Event, Listing
from highwater.model.topic_name import is_legal_topic_name


@dataclass(frozen=True, slots=True)
class BrokerChange:
    broker_id: int
    broker: LiveBroker | None  # None: no longer registered. Another broker epoch than before: it restarted (RULES 1.5)
    revision: int


@dataclass(frozen=True, slots=True)
class BrokerTailChange:
    broker_id: int
    broker_epoch: int | None  # whose lost tail has been noted everywhere (RULES 7.2); None: the key was deleted
    revision: int


@dataclass(frozen=True, slots=True)
class TopicChange:
    topic: str
    value: VersionedTopic | None
    revision: int


@dataclass(frozen=True, slots=True)
class StateChange:
    topic: str
    partition: int
    value: VersionedState | None
    revision: int


@dataclass(frozen=True, slots=True)
class TopicConfigChange:
    topic: str
    config: dict[str, str] | None
    revision: int
    dropped: tuple[str, ...] = ()  # keys with too large a value, which are not in `config`


@dataclass(frozen=True, slots=True)
class DeletionChange:
    """The deletion marker of a topic was put (`topic_id`) or removed (None)."""

    topic: str
    topic_id: bytes | None
    revision: int


@dataclass(frozen=True, slots=True)
class IsrNotificationChange:
    notification: IsrNotification | None  # None: one was removed
    revision: int


@dataclass(frozen=True, slots=True)
class ControllerChange:
    controller: ControllerRegistration | None
    create_revision: int  # 0 where there is none
    revision: int


@dataclass(frozen=True, slots=True)
class ControllerEpochChange:
    controller_epoch: int
    revision: int


Change = (
    BrokerChange
    | BrokerTailChange
    | TopicChange
    | StateChange
    | TopicConfigChange
    | DeletionChange
    | IsrNotificationChange
    | ControllerChange
    | ControllerEpochChange
)


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """Everything as of `revision`. It replaces whatever was known before."""

    revision: int
    brokers: dict[int, LiveBroker]
    broker_tails: dict[int, int]  # broker epoch (RULES 7.2)
    topics: dict[str, VersionedTopic]
    states: dict[tuple[str, int], VersionedState]
    topic_configs: dict[str, dict[str, str]]
    deletions: dict[str, bytes]  # topic id
    isr_notifications: tuple[IsrNotification, ...]
    controller: ControllerRegistration | None
    controller_epoch: int


@dataclass(frozen=True, slots=True)
class ClusterChanges:
    """Changes since the snapshot or the changes before, in the order of the revisions."""

    revision: int
    changes: tuple[Change, ...]


def decode_event(keys: Keys, event: Event) -> Change | None:
    """The change that an event is; None for a key that this view does not hold. Raises `CorruptMetadataError`."""
    parsed = keys.parse(event.key)
    if parsed is None:
        return None
    entry = event.entry
    if entry is None:
        return _decode(parsed, None, event.revision)
    return readable(entry, lambda each: _decode(parsed, each, event.revision))


class Unreadable(Protocol):
    """Is told of entries that cannot be taken, and of those that can."""

    def found(self, key: str, why: str) -> None: ...
    def read(self, key: str) -> None: ...


def decode_events(keys: Keys, events: Iterable[Event], unreadable: Unreadable | None = None) -> tuple[Change, ...]:
    """The changes of those events that can be read; without `unreadable` one that cannot raises
    `CorruptMetadataError`."""
    changes = []
    for event in events:
        try:
            change = decode_event(keys, event)
        except CorruptMetadataError as error:
            if unreadable is None:
                raise
            unreadable.found(event.key, str(error))
            continue
        if unreadable is not None:
            if isinstance(change, TopicConfigChange) and change.dropped:
                dropped = ", ".join(change.dropped)
                unreadable.found(event.key, f"etcd's key {event.key} has too large a value: {dropped} is left out")
            else:
                unreadable.read(event.key)
        if change is not None:
            changes.append(change)
    return tuple(changes)


def decode_snapshot(keys: Keys, listing: Listing, unreadable: Unreadable | None = None) -> ClusterSnapshot:
    """The view of a listing of `keys.everything`; as `decode_events`. In place of a configuration that cannot be read
    there is one by which no record is deleted."""
    listed = ListedCluster(keys, listing.revision, unreadable)
    listed.take(listing.entries)
    return listed.snapshot()


class ListedCluster:
    """`decode_snapshot` of a listing that is taken a piece at a time, as of `revision`."""

    def __init__(self, keys: Keys, revision: int, unreadable: Unreadable | None = None) -> None:
        self._keys = keys
        self._unreadable = unreadable
        self._notifications: list[IsrNotification] = []
        self._found = ClusterSnapshot(revision, {}, {}, {}, {}, {}, {}, (), None, 0)

    def take(self, entries: Sequence[Entry]) -> None:
        """Entries of the listing, each once. Raises `CorruptMetadataError` as `decode_events` does."""
        events = (Event(each.key, each, each.mod_revision) for each in entries)
        for change in decode_events(self._keys, events, self._unreadable):
            self._hold(change)
        configs = self._found.topic_configs
        for entry in entries:
            if entry.key.startswith(self._keys.topic_configs):
                configs.setdefault(entry.key.removeprefix(self._keys.topic_configs), dict(KEEP_ALL_RECORDS))

    def snapshot(self) -> ClusterSnapshot:
        """Returns what has been taken; nothing more may be."""
        return replace(self._found, isr_notifications=tuple(self._notifications))

    def _hold(self, change: Change) -> None:
        found = self._found
        match change:
            case BrokerChange(broker_id, LiveBroker() as broker):
                found.brokers[broker_id] = broker
            case BrokerTailChange(broker_id, int(epoch)):
                found.broker_tails[broker_id] = epoch
            case TopicChange(topic, VersionedTopic() as versioned):
                found.topics[topic] = versioned
            case StateChange(topic, partition, VersionedState() as state):
                found.states[topic, partition] = state
            case TopicConfigChange(topic, dict(config)):
                found.topic_configs[topic] = config
            case DeletionChange(topic, bytes(topic_id)):
                found.deletions[topic] = topic_id
            case IsrNotificationChange(IsrNotification() as notification):
                self._notifications.append(notification)
            case ControllerChange(ControllerRegistration() as controller):
                self._found = replace(found, controller=controller)
            case ControllerEpochChange(epoch):
                self._found = replace(found, controller_epoch=epoch)


def _decode(parsed: ParsedKey, entry: Entry | None, revision: int) -> Change:
    match parsed:
        case TopicKey(topic) | StateKey(topic) | TopicConfigKey(topic) | DeleteTopicKey(topic) if (
            entry is not None and not is_legal_topic_name(topic)
        ):
            raise ValueError("no topic may have this name")
        case BrokerIdKey(broker_id):
            broker = _of(entry, live_broker)
            if broker is not None and broker.registration.broker_id != broker_id:
                raise ValueError(f"it is the registration of broker {broker.registration.broker_id}")
            return BrokerChange(broker_id, broker, revision)
        case BrokerTailKey(broker_id):
            return BrokerTailChange(broker_id, _of(entry, counter), revision)
        case TopicKey(topic):
            versioned = _of(entry, versioned_topic)
            if versioned is not None and versioned.assignment.topic != topic:
                raise ValueError("it is the assignment of another topic")
            return TopicChange(topic, versioned, revision)
        case StateKey(topic, partition):
            return StateChange(topic, partition, _of(entry, versioned_state), revision)
        case TopicConfigKey(topic):
            if entry is None:
                return TopicConfigChange(topic, None, revision)
            config, dropped = bounded_config(config_from_json(entry.value))
            return TopicConfigChange(topic, config, revision, dropped)
        case DeleteTopicKey(topic):
            return DeletionChange(topic, _of(entry, marked_topic_id), revision)
        case IsrChangeKey(broker_id, epoch, sequence):
            return IsrNotificationChange(
                _of(entry, lambda each: IsrNotification(broker_id, epoch, sequence, notified_partitions(each.value))),
                revision,
            )
        case ControllerKey():
            controller = _of(entry, lambda each: ControllerRegistration.from_json(each.value))
            return ControllerChange(controller, 0 if entry is None else entry.create_revision, revision)
        case ControllerEpochKey():
            return ControllerEpochChange(0 if entry is None else counter(entry), revision)


_Value = TypeVar("_Value")


def _of(entry: Entry | None, decode: Callable[[Entry], _Value]) -> _Value | None:
    return None if entry is None else decode(entry)


def live_broker(entry: Entry) -> LiveBroker:
    return LiveBroker(BrokerRegistration.from_json(entry.value), entry.create_revision, entry.mod_revision)


def versioned_topic(entry: Entry) -> VersionedTopic:
    return VersionedTopic(TopicAssignment.from_json(entry.value), entry.create_revision, entry.mod_revision)


def versioned_state(entry: Entry) -> VersionedState:
    return VersionedState(PartitionState.from_json(entry.value), entry.mod_revision)


def marked_topic_id(entry: Entry) -> bytes:
    topic_id = bytes.fromhex(entry.value.decode())
    if len(topic_id) != TOPIC_ID_BYTES:
        raise ValueError(f"it has {len(topic_id)} bytes of a topic id")
    return topic_id
