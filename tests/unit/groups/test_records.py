"""The bytes of `__consumer_offsets`: as Kafka's schemas have them, and back."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.groups.records import Record, decode, encode
from highwater.groups.records.buffer import Reader, UnreadableRecordError, Writer
from highwater.groups.records.keys import (
    CurrentAssignmentKey,
    GroupEpochKey,
    Key,
    MemberSubscriptionKey,
    OffsetCommitKey,
    PatternKey,
    TargetAssignmentKey,
    TargetEpochKey,
)
from highwater.groups.records.values import (
    CurrentAssignmentValue,
    GroupEpochValue,
    MemberState,
    MemberSubscriptionValue,
    OffsetCommitValue,
    PatternValue,
    TargetAssignmentValue,
    TargetEpochValue,
    Value,
)
from highwater.model.partition import PartitionKey

ID = bytes(range(16))
ID_HEX = ID.hex()
T0, T1 = PartitionKey(ID, 0), PartitionKey(ID, 1)

# Written by hand from Kafka's schemas (group-coordinator/src/main/resources/common/message), with spaces for reading.
EXAMPLES: list[tuple[Key, Value, str, str]] = [
    (
        OffsetCommitKey("g", "t", 3),
        OffsetCommitValue(5, 2, "m", 1000),
        "0001 0001 67 0001 74 00000003",
        "0003 0000000000000005 00000002 0001 6d 00000000000003e8",
    ),
    (
        OffsetCommitKey("g", "t", 3),
        OffsetCommitValue(5, -1, "", 1000, topic_id=ID),
        "0001 0001 67 0001 74 00000003",
        f"0004 0000000000000005 ffffffff 01 00000000000003e8 01 00 10 {ID_HEX}",
    ),
    (
        OffsetCommitKey("g", "t", 3),
        OffsetCommitValue(5, -1, "m", 1000, expire_time_ms=2000),
        "0001 0001 67 0001 74 00000003",
        "0001 0000000000000005 0001 6d 00000000000003e8 00000000000007d0",
    ),
    (GroupEpochKey("grp"), GroupEpochValue(7), "0003 0003 677270", "0000 00000007 00"),
    (
        GroupEpochKey("grp"),
        GroupEpochValue(7, -2),
        "0003 0003 677270",
        "0000 00000007 01 00 08 fffffffffffffffe",
    ),
    (
        MemberSubscriptionKey("g", "m1"),
        MemberSubscriptionValue("", "r", "c", "h", frozenset({"u", "t"}), "", 300_000, "uniform"),
        "0005 0001 67 0002 6d31",
        "0000 00 02 72 02 63 02 68 03 02 74 02 75 00 000493e0 08 756e69666f726d 00",
    ),
    (TargetEpochKey("g"), TargetEpochValue(9), "0006 0001 67", "0000 00000009 00"),
    (
        TargetAssignmentKey("g", "m1"),
        TargetAssignmentValue(frozenset({T1, T0})),
        "0007 0001 67 0002 6d31",
        f"0000 02 {ID_HEX} 03 00000000 00000001 00 00",
    ),
    (
        CurrentAssignmentKey("g", "m1"),
        CurrentAssignmentValue(9, 8, MemberState.UNREVOKED_PARTITIONS, frozenset({T0}), frozenset({T1})),
        "0008 0001 67 0002 6d31",
        f"0000 00000009 00000008 01 02 {ID_HEX} 02 00000000 00 02 {ID_HEX} 02 00000001 00 00",
    ),
    (
        PatternKey("g", "t.*"),
        PatternValue(frozenset({"t"}), 3, 1000),
        "0010 0001 67 0003 742e2a",
        "0000 02 02 74 0000000000000003 00000000000003e8 00",
    ),
]


@pytest.mark.parametrize(("key", "value", "key_hex", "value_hex"), EXAMPLES)
def test_bytes_are_those_of_kafkas_schemas(key: Key, value: Value, key_hex: str, value_hex: str) -> None:
    assert encode(key, value, 1) == Record(bytes.fromhex(key_hex), bytes.fromhex(value_hex), 1)
    assert decode(bytes.fromhex(key_hex), bytes.fromhex(value_hex)) == (key, value)
    assert encode(key, None, 1) == Record(bytes.fromhex(key_hex), None, 1)
    assert decode(bytes.fromhex(key_hex), None) == (key, None)


names = st.text(string.printable + "äß€😀", min_size=1, max_size=12)
optional = st.text(string.ascii_letters, max_size=8)
int32, int64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
topic_ids = st.binary(min_size=16, max_size=16)
partitions = st.frozensets(st.builds(PartitionKey, topic_ids, st.integers(0, 9999)), max_size=40)
records: st.SearchStrategy[tuple[Key, Value]] = st.one_of(
    st.tuples(
        st.builds(OffsetCommitKey, names, names, int32),
        st.one_of(
            st.builds(OffsetCommitValue, int64, int32, optional, int64, st.just(-1), st.just(b"") | topic_ids),
            st.builds(OffsetCommitValue, int64, st.just(-1), optional, int64, st.integers(0, 2**62)),
        ),
    ),
    st.tuples(st.builds(GroupEpochKey, names), st.builds(GroupEpochValue, int32, int64)),
    st.tuples(
        st.builds(MemberSubscriptionKey, names, names),
        st.builds(
            MemberSubscriptionValue,
            *(optional, optional, optional, optional, st.frozensets(names), optional, int32, optional),
        ),
    ),
    st.tuples(st.builds(TargetEpochKey, names), st.builds(TargetEpochValue, int32)),
    st.tuples(st.builds(TargetAssignmentKey, names, names), st.builds(TargetAssignmentValue, partitions)),
    st.tuples(
        st.builds(CurrentAssignmentKey, names, names),
        st.builds(CurrentAssignmentValue, int32, int32, st.sampled_from(MemberState), partitions, partitions),
    ),
    st.tuples(st.builds(PatternKey, names, names), st.builds(PatternValue, st.frozensets(names), int64, int64)),
)


@given(records)
def test_what_is_written_is_read(record: tuple[Key, Value]) -> None:
    key, value = record
    written = encode(key, value, 5)
    assert written.timestamp_ms == 5
    found = decode(written.key, written.value)
    assert found == record
    assert found is not None
    assert type(found[0]) is type(key)


@given(records, st.data())
def test_what_is_cut_short_is_said_to_be(record: tuple[Key, Value], data: st.DataObject) -> None:
    written = encode(*record, 5)
    assert written.value is not None
    cut = data.draw(st.integers(0, len(written.value) - 1))
    with pytest.raises(UnreadableRecordError):
        decode(written.key, written.value[:cut])
    with pytest.raises(UnreadableRecordError):
        decode(written.key[:-1], written.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        # A classic group: GroupMetadata, key version 2, value version 3 with no members.
        ("0002 0001 67", "0003 0008 636f6e73756d6572 00000001 ffff ffff 00000000000003e8 00000000"),
        ("0004 0001 67", "0000 01 00"),  # Kafka 4.0's ConsumerGroupPartitionMetadata
        ("000b 0001 67 0002 6d31", "0000"),  # a share group's
        ("7fff", None),
    ],
)
def test_other_kinds_are_skipped(key: str, value: str | None) -> None:
    assert decode(bytes.fromhex(key), bytes.fromhex(value) if value else None) is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0000 0000000000000005 0001 6d 00000000000003e8", OffsetCommitValue(5, -1, "m", 1000)),
        ("0002 0000000000000005 0001 6d 00000000000003e8", OffsetCommitValue(5, -1, "m", 1000)),
        # Flexible, without and with a tagged field that this version does not know.
        ("0004 0000000000000005 00000001 02 6d 00000000000003e8 00", OffsetCommitValue(5, 1, "m", 1000)),
        ("0004 0000000000000005 00000001 02 6d 00000000000003e8 01 07 02 abcd", OffsetCommitValue(5, 1, "m", 1000)),
    ],
)
def test_older_versions_of_offsets_are_read(value: str, expected: OffsetCommitValue) -> None:
    for version in ("0000", "0001"):
        key = bytes.fromhex(f"{version} 0001 67 0001 74 00000003")
        assert decode(key, bytes.fromhex(value)) == (OffsetCommitKey("g", "t", 3), expected)


def test_fields_that_later_versions_add_are_passed_over() -> None:
    # Kafka 4.3's creation time of a group, the assignment epochs of partitions, and a member of the classic protocol.
    group = bytes.fromhex("0000 00000007 01 01 08 00000000000003e8")
    assert decode(bytes.fromhex("0003 0001 67"), group) == (GroupEpochKey("g"), GroupEpochValue(7))
    current = bytes.fromhex(f"0000 00000009 00000008 00 02 {ID_HEX} 02 00000000 01 00 05 02 00000003 01 00")
    value = CurrentAssignmentValue(9, 8, MemberState.STABLE, frozenset({T0}), frozenset())
    assert decode(bytes.fromhex("0008 0001 67 0001 6d"), current) == (CurrentAssignmentKey("g", "m"), value)
    member = bytes.fromhex("0000 00 00 01 01 01 00 ffffffff 00 01 00 03 aabbcc")
    found = decode(bytes.fromhex("0005 0001 67 0001 6d"), member)
    assert found is not None
    assert found[1] == MemberSubscriptionValue("", "", "", "", frozenset(), "", -1, "")


def test_a_state_that_is_not_known_waits_for_the_members_word() -> None:
    found = decode(bytes.fromhex("0008 0001 67 0001 6d"), bytes.fromhex("0000 00000009 00000008 09 01 01 00"))
    assert found is not None
    assert isinstance(found[1], CurrentAssignmentValue)
    assert found[1].state is MemberState.UNREVOKED_PARTITIONS


@pytest.mark.parametrize("value", ["0005", "0001 00000001 00", "ffff"])
def test_versions_that_are_not_known_are_refused(value: str) -> None:
    key = "0001 0001 67 0001 74 00000003" if value == "0005" else "0003 0001 67"
    with pytest.raises(UnreadableRecordError):
        decode(bytes.fromhex(key), bytes.fromhex(value))


@given(st.integers(0, 2**35 - 1))
def test_varints(value: int) -> None:
    out = Writer()
    out.unsigned_varint(value)
    assert Reader(out.finished()).unsigned_varint() == value


def test_a_varint_has_an_end() -> None:
    with pytest.raises(UnreadableRecordError):
        Reader(b"\xff" * 9).unsigned_varint()
