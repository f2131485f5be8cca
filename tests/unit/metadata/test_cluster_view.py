from __future__ import annotations

import pytest

from highwater.metadata.schema.cluster_view import (
    BrokerChange,
    CorruptMetadataError,
    DeletionChange,
    StateChange,
    TopicConfigChange,
    decode_event,
    decode_events,
    decode_snapshot,
)
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import (
    KEEP_ALL_RECORDS,
    BrokerRegistration,
    ControllerRegistration,
    IsrNotification,
    LiveBroker,
    PartitionState,
    TopicAssignment,
    VersionedState,
    VersionedTopic,
    config_to_json,
)
from highwater.metadata.state.unreadable_entries import UnreadableEntries
from highwater.metadata.store.transactions import Entry, Event, Listing

KEYS = Keys("test")
BROKER = BrokerRegistration(1, "h:1", "a", "b")
TOPIC = TopicAssignment("t", b"\1" * 16, ((1,), (1,)))
STATE = PartitionState(1, 0, 3, (1,))
CONTROLLER = ControllerRegistration(9, "h:9", 4, "c")


def entry(key: str, value: bytes, created: int = 3, modified: int = 5) -> Entry:
    return Entry(key, value, created, modified)


def test_a_snapshot_holds_everything_with_its_revisions() -> None:
    notification = IsrNotification(1, 3, 8, (("t", 0),))
    snapshot = decode_snapshot(
        KEYS,
        Listing(
            (
                entry(KEYS.broker(1), BROKER.to_json()),
                entry(KEYS.broker_tail(1), b"3"),
                entry(KEYS.topic("t"), TOPIC.to_json()),
                entry(KEYS.state("t", 0), STATE.to_json()),
                entry(KEYS.topic_config("t"), config_to_json({"min.insync.replicas": "2"})),
                entry(KEYS.delete_topic("u"), (b"\2" * 16).hex().encode()),
                entry(KEYS.isr_change(1, 3, 8), notification.to_json()),
                entry(KEYS.controller, CONTROLLER.to_json()),
                entry(KEYS.controller_epoch, b"4"),
                entry(KEYS.cluster_id, b"not part of the view"),
            ),
            revision=11,
        ),
    )
    assert snapshot.revision == 11
    assert snapshot.brokers == {1: LiveBroker(BROKER, 3)}
    assert snapshot.broker_tails == {1: 3}
    assert snapshot.topics == {"t": VersionedTopic(TOPIC, 3, 5)}
    assert snapshot.states == {("t", 0): VersionedState(STATE, 5)}
    assert snapshot.topic_configs == {"t": {"min.insync.replicas": "2"}}
    assert snapshot.deletions == {"u": b"\2" * 16}
    assert snapshot.isr_notifications == (notification,)
    assert snapshot.controller == CONTROLLER
    assert snapshot.controller_epoch == 4


def test_puts_and_deletes_become_changes() -> None:
    put = Event(KEYS.broker(1), entry(KEYS.broker(1), BROKER.to_json()), 5)
    assert decode_event(KEYS, put) == BrokerChange(1, LiveBroker(BROKER, 3), 5)
    assert decode_event(KEYS, Event(KEYS.broker(1), None, 6)) == BrokerChange(1, None, 6)
    assert decode_event(KEYS, Event(KEYS.state("t", 2), None, 6)) == StateChange("t", 2, None, 6)
    assert decode_event(KEYS, Event(KEYS.delete_topic("t"), None, 6)) == DeletionChange("t", None, 6)
    assert decode_event(KEYS, Event(KEYS.producer_ids, None, 6)) is None


@pytest.mark.parametrize("value", [b"", b"{}", b"[]", b"nonsense", b'{"isr": 3}'])
def test_an_unreadable_value_names_its_key(value: bytes) -> None:
    key = KEYS.state("t", 0)
    with pytest.raises(CorruptMetadataError, match=key):
        decode_event(KEYS, Event(key, entry(key, value), 5))


def test_what_cannot_be_read_is_left_out_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    unreadable = UnreadableEntries()
    good, bad = KEYS.topic("t"), (KEYS.topic("u"), KEYS.state("t", 0), KEYS.broker(2), KEYS.topic_config("t"))
    listing = Listing((entry(good, TOPIC.to_json()), *(entry(key, b"nonsense") for key in bad)), revision=11)
    for _ in range(2):
        snapshot = decode_snapshot(KEYS, listing, unreadable)
        assert snapshot.topics == {"t": VersionedTopic(TOPIC, 3, 5)}
        assert (snapshot.states, snapshot.brokers) == ({}, {})
        assert snapshot.topic_configs == {"t": KEEP_ALL_RECORDS}
    assert len(unreadable) == 4
    for key in bad:
        assert sum(f"etcd's key {key} cannot be read" in each.getMessage() for each in caplog.records) == 1
    repaired = Event(KEYS.state("t", 0), entry(KEYS.state("t", 0), STATE.to_json(), modified=12), 12)
    removed = Event(KEYS.topic("u"), None, 13)
    (changed, _) = decode_events(KEYS, (repaired, removed), unreadable)
    assert changed == StateChange("t", 0, VersionedState(STATE, 12), 12)
    assert len(unreadable) == 2
    unreadable.listed({good})
    assert len(unreadable) == 0


def test_a_value_of_a_configuration_that_is_too_large_is_left_out_alone() -> None:
    unreadable = UnreadableEntries()
    key = KEYS.topic_config("t")
    config = {"min.insync.replicas": "2", "follower.replication.throttled.replicas": "1:1," * 400_000}
    event = Event(key, entry(key, config_to_json(config)), 5)
    (change,) = decode_events(KEYS, (event,), unreadable)
    assert isinstance(change, TopicConfigChange)
    assert change.config == {"min.insync.replicas": "2"}
    assert change.dropped == ("follower.replication.throttled.replicas",)
    assert len(unreadable) == 1
    many = {f"key-{number:02d}": "x" * 1_000 for number in range(20)}
    (change,) = decode_events(KEYS, (Event(key, entry(key, config_to_json(many)), 6),), unreadable)
    assert isinstance(change, TopicConfigChange)
    assert change.config is not None
    assert len(change.config) == 8
    assert sorted([*change.config, *change.dropped]) == sorted(many)
