"""A record's key and value as bytes, and back."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from highwater.groups.records.buffer import Reader, Writer
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
    MemberSubscriptionValue,
    OffsetCommitValue,
    PatternValue,
    TargetAssignmentValue,
    TargetEpochValue,
    Value,
)

_INT16 = struct.Struct(">h")
_TWO_INT16 = struct.Struct(">hh")
_INT32 = struct.Struct(">i")
_OLD_OFFSET_COMMIT = 0
_KINDS: dict[int, tuple[type[Any], type[Any]]] = {
    1: (OffsetCommitKey, OffsetCommitValue),
    3: (GroupEpochKey, GroupEpochValue),
    5: (MemberSubscriptionKey, MemberSubscriptionValue),
    6: (TargetEpochKey, TargetEpochValue),
    7: (TargetAssignmentKey, TargetAssignmentValue),
    8: (CurrentAssignmentKey, CurrentAssignmentValue),
    16: (PatternKey, PatternValue),
}
_NUMBERS: dict[type[Any], int] = {key: number for number, (key, _) in _KINDS.items()}


@dataclass(frozen=True, slots=True)
class Record:
    """A record as it stands in the log."""

    key: bytes
    value: bytes | None  # None: a tombstone
    timestamp_ms: int


def encode(key: Key, value: Value | None, timestamp_ms: int) -> Record:
    """A value of None makes a tombstone. A string of more than 32,767 bytes in the key is a `struct.error`."""
    written = _offset_commit_key(key) if isinstance(key, OffsetCommitKey) else _key(key)
    if value is None:
        return Record(written, None, timestamp_ms)
    body = Writer()
    value.encode(body)
    return Record(written, body.finished(), timestamp_ms)


def _key(key: Key) -> bytes:
    out = Writer()
    out.int16(_NUMBERS[type(key)])
    for field in key:
        if isinstance(field, int):
            out.int32(field)
        else:
            out.string(field)
    return out.finished()


def _offset_commit_key(key: OffsetCommitKey) -> bytes:
    """As `_key`, in one piece, which takes less time: a request has thousands of them."""
    group, topic = key.group.encode(), key.topic.encode()
    front = _TWO_INT16.pack(_NUMBERS[OffsetCommitKey], len(group))
    return b"".join((front, group, _INT16.pack(len(topic)), topic, _INT32.pack(key.partition)))


def decode(key: bytes, value: bytes | None) -> tuple[Key, Value | None] | None:
    """None for a kind of record that is skipped. Raises `UnreadableRecordError` where the bytes are not what they
    say."""
    data = Reader(key)
    number = data.int16()
    kind = _KINDS.get(1 if number == _OLD_OFFSET_COMMIT else number)
    if kind is None:
        return None
    fields: list[str | int] = [data.string() for _ in range(1 if len(kind[0]._fields) == 1 else 2)]
    if kind[0] is OffsetCommitKey:
        fields.append(data.int32())
    found: Key = kind[0](*fields)
    if value is None:
        return found, None
    body = Reader(value)
    return found, kind[1].decode(body, body.int16())
