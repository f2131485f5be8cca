"""Protobuf messages with record batches in them, put together around the batches instead of through them.

Setting a `bytes` field copies it, and serialising the message copies it again. On the data path the batches are most of
the message, so here only the small fields are serialised by protobuf; the pieces of the batches are laid beside them,
and everything is joined once. The result is an ordinary message: protobuf lets fields stand in any order.
"""

from __future__ import annotations

from collections.abc import Sequence

from highwater.records.varint import encode_unsigned_varint

Piece = bytes | bytearray | memoryview

_LENGTH_DELIMITED = 2


def tag(field: int) -> bytes:
    """The tag of a length-delimited field: bytes, string or message."""
    return encode_unsigned_varint(field << 3 | _LENGTH_DELIMITED)


def size_of(pieces: Sequence[Piece]) -> int:
    return sum(map(len, pieces))


def embed(out: list[Piece], field: int, head: bytes, records_field: int, records: Sequence[Piece]) -> None:
    """Appends to `out` the embedded message `field`, made of `head` (its small fields, serialised) and of `records`
    as its field `records_field`."""
    records_bytes = size_of(records)
    if records_bytes == 0:
        out += (tag(field) + encode_unsigned_varint(len(head)), head)
        return
    records_head = tag(records_field) + encode_unsigned_varint(records_bytes)
    out.append(tag(field) + encode_unsigned_varint(len(head) + len(records_head) + records_bytes) + head + records_head)
    out += records
