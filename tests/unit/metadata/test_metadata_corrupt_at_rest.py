"""Every kind of key in etcd replaced by garbage, emptied, made huge and removed, one at a time: everything else of a
listing is read, and what cannot be read is named once, with what to do."""

from __future__ import annotations

import dataclasses
import json
import logging

import pytest

from highwater.metadata.schema.cluster_view import (
    ClusterSnapshot,
    CorruptMetadataError,
    decode_events,
    decode_snapshot,
)
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import (
    KEEP_ALL_RECORDS,
    BrokerRegistration,
    ControllerRegistration,
    IsrNotification,
    PartitionState,
    TopicAssignment,
    config_to_json,
)
from highwater.metadata.schema.reading import MOST_SAID
from highwater.metadata.state.unreadable_entries import UnreadableEntries
from highwater.metadata.store.transactions import Entry, Event, Listing

KEYS = Keys("test")
MOST_BYTES = 1_500_000  # etcd takes no larger request
ID = b"\1" * 16


def _topic(name: str) -> bytes:
    return TopicAssignment(name, ID, ((1, 2),)).to_json()


SOUND: dict[str, bytes] = {
    KEYS.broker(1): BrokerRegistration(1, "h:1", "a", "b").to_json(),
    KEYS.broker(2): BrokerRegistration(2, "h:2", "a", "b").to_json(),
    KEYS.broker_tail(1): b"3",
    KEYS.broker_tail(2): b"3",
    KEYS.topic("bad"): _topic("bad"),
    KEYS.topic("other"): _topic("other"),
    KEYS.state("bad", 0): PartitionState(1, 0, 3, (1, 2)).to_json(),
    KEYS.state("other", 0): PartitionState(1, 0, 3, (1, 2)).to_json(),
    KEYS.topic_config("bad"): config_to_json({"min.insync.replicas": "2"}),
    KEYS.topic_config("other"): config_to_json({"min.insync.replicas": "2"}),
    KEYS.delete_topic("bad"): ID.hex().encode(),
    KEYS.delete_topic("other"): ID.hex().encode(),
    KEYS.isr_change(1, 3, 1): IsrNotification(1, 3, 1, (("bad", 0),)).to_json(),
    KEYS.isr_change(1, 3, 2): IsrNotification(1, 3, 2, (("other", 0),)).to_json(),
    KEYS.controller: ControllerRegistration(9, "h:9", 4, "c").to_json(),
    KEYS.controller_epoch: b"4",
    KEYS.cluster_id: b"2b0f6c1e",
    KEYS.producer_ids: b'{"next": 1000}',
    KEYS.doubted_dir("d"): b"",
}
# One of each kind is harmed; these are no part of the view, whoever asks for them reads them by themselves.
READ_ALONE = [KEYS.cluster_id, KEYS.producer_ids, KEYS.doubted_dir("d")]
HARMED = [
    KEYS.broker(1),
    KEYS.broker_tail(1),
    KEYS.topic("bad"),
    KEYS.state("bad", 0),
    KEYS.topic_config("bad"),
    KEYS.delete_topic("bad"),
    KEYS.isr_change(1, 3, 1),
    KEYS.controller,
    KEYS.controller_epoch,
    *READ_ALONE,
]


def _of_strange_types(value: bytes) -> bytes:
    try:
        fields = json.loads(value)
    except ValueError:
        return b'"x"'
    return json.dumps({name: {"x": [1.5]} for name in fields} if isinstance(fields, dict) else [fields]).encode()


def _huge_fields(value: bytes) -> bytes:
    """What is read as JSON, with more in each field than any may have."""
    fields = json.loads(value) if value.startswith(b"{") else {}
    for name, each in fields.items():
        fields[name] = each * (MOST_BYTES // 100) if isinstance(each, str | list) and each else each
    return json.dumps(fields | {"more": "x" * MOST_BYTES}).encode()[:MOST_BYTES]


HARMS = {
    "garbage": lambda value: b"\x93garbage\x00\xff\x1b[2J" * 41,
    "emptied": lambda value: b"",
    "huge": lambda value: b"7" * MOST_BYTES,
    "huge bytes": lambda value: b"\xff" * MOST_BYTES,
    "deep": lambda value: b"[" * MOST_BYTES,
    "deep in a field": lambda value: b'{"leader": ' + b"[" * (MOST_BYTES - 11),
    "huge fields": _huge_fields,
    "another type": _of_strange_types,
    "a number out of range": lambda value: b'{"next": 1e999, "leader": 1e999}',
    "null": lambda value: b"null",
    "removed": lambda value: None,
}


def _listing(entries: dict[str, bytes]) -> Listing:
    return Listing(tuple(Entry(key, value, 3, 5) for key, value in sorted(entries.items())), revision=11)


def _parts(snapshot: ClusterSnapshot) -> dict[str, object]:
    return {each.name: getattr(snapshot, each.name) for each in dataclasses.fields(snapshot)}


def test_every_kind_of_key_is_harmed() -> None:
    kinds = {type(KEYS.parse(key)) for key in SOUND}
    assert kinds == {type(KEYS.parse(key)) for key in HARMED}
    assert {key for key in SOUND if KEYS.parse(key) is None} == set(READ_ALONE)


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("key", HARMED)
def test_a_listing_with_one_bad_entry(key: str, harm: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    value = HARMS[harm](SOUND[key])
    entries = {name: each for name, each in SOUND.items() if name != key}
    without = decode_snapshot(KEYS, _listing(entries), UnreadableEntries())
    if value is not None:
        entries[key] = value
    unreadable = UnreadableEntries()
    for _ in range(2):
        found = decode_snapshot(KEYS, _listing(entries), unreadable)
    told = [each.getMessage() for each in caplog.records if key in each.getMessage()]
    if key in READ_ALONE or value is None:
        assert (found, told) == (without, [])
        return
    expected = _parts(without)
    if key == KEYS.topic_config("bad"):
        kept = found.topic_configs["bad"]
        if told:
            assert all(name in kept for name in KEEP_ALL_RECORDS) or "too large a value" in told[0]
        expected["topic_configs"] = without.topic_configs | {"bad": kept}
    if _parts(found) != expected:  # it could be read: what it says is what stands there
        assert (harm, key) in (
            ("huge fields", KEYS.topic("bad")),
            ("huge fields", KEYS.isr_change(1, 3, 1)),
            ("huge fields", KEYS.topic_config("bad")),
        ), found
        return
    assert len(told) == 1, told
    assert "repair or delete it; everything else is served" in told[0] or "is left out" in told[0]
    assert len(told[0]) < MOST_SAID + 300
    assert told[0].isprintable()


def test_what_is_changed_to_garbage_while_it_is_watched_stays_what_it_was() -> None:
    unreadable = UnreadableEntries()
    for key in HARMED:
        event = Event(key, Entry(key, b"\xff", 3, 12), 12)
        assert decode_events(KEYS, (event,), unreadable) == ()


@pytest.mark.parametrize(
    "key",
    [
        f"{KEYS.broker_ids}{'9' * 5000}",
        f"{KEYS.topics}t/partitions/{'9' * 5000}/state",
        f"{KEYS.topics}t/partitions/١/state",  # a digit, elsewhere
        f"{KEYS.prefix}/strange",
    ],
)
def test_keys_that_are_nobodys_are_passed_over(key: str) -> None:
    assert decode_events(KEYS, (Event(key, Entry(key, b"{}", 3, 5), 5),)) == ()


@pytest.mark.parametrize(
    "key", [f"{KEYS.topics}a b", f"{KEYS.topic_configs}..", f"{KEYS.topics}a b/partitions/0/state"]
)
def test_a_name_that_no_topic_may_have_is_unreadable(key: str) -> None:
    with pytest.raises(CorruptMetadataError, match="no topic may have this name"):
        decode_events(KEYS, (Event(key, Entry(key, _topic("a b"), 3, 5), 5),))


def test_an_entry_that_belongs_under_another_key_is_unreadable() -> None:
    for key, value in ((KEYS.topic("t"), _topic("u")), (KEYS.broker(7), SOUND[KEYS.broker(1)])):
        with pytest.raises(CorruptMetadataError, match=key):
            decode_events(KEYS, (Event(key, Entry(key, value, 3, 5), 5),))
