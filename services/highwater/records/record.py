"""One record, as users see it."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

RecordHeader: TypeAlias = tuple[str, bytes | None]


class Record(NamedTuple):
    """`timestamp` is in ms since 1970 (-1: none). A `value` of None is a tombstone. Encoding ignores `offset`."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[RecordHeader, ...] = ()
