"""A record as a consumer gets it."""

from __future__ import annotations

from typing import NamedTuple


class ConsumerRecord(NamedTuple):
    """`value` None is a tombstone. `headers` keeps their order and repeated names."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
