"""Protobuf's varints. Kafka's v2 records use the zig-zag ones for every number."""

from __future__ import annotations

from highwater.records.errors import CorruptPayloadError

# 5 bytes hold any int32, 10 any int64.
_LONGEST_VARINT = 10
_INT64_LIMIT = 1 << 63


def encode_varint(value: int) -> bytes:
    """The zig-zag varint of an int64 (1 to 10 bytes). Raises `ValueError` for a number that is none."""
    if not -_INT64_LIMIT <= value < _INT64_LIMIT:
        raise ValueError(f"{value} does not fit 64 bits")
    return encode_unsigned_varint((value << 1) ^ (value >> 63))


def encode_unsigned_varint(value: int) -> bytes:
    """`value`, 0 or more, in base 128, its lowest digits first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# One-byte and two-byte varints of the numbers that nearly every record is made of: SMALL_VARINTS[n] for 0 <= n < 8192.
SMALL_VARINT_LIMIT = 1 << 13
SMALL_VARINTS = [encode_varint(n) for n in range(SMALL_VARINT_LIMIT)]


def read_varint(buffer: bytes, position: int) -> tuple[int, int]:
    """The varint at `position` before zig-zag is undone (0 to 2^64 - 1), and the position after it.

    Raises:
        IndexError: the buffer ends within it.
        CorruptPayloadError: more than 10 bytes, or more than 64 bits.
    """
    raw = shift = 0
    for _ in range(_LONGEST_VARINT):
        byte = buffer[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            if raw >> 64:
                break
            return raw, position
        shift += 7
    raise CorruptPayloadError("a varint is longer than 64 bits")


def decode_varint(buffer: bytes, position: int) -> tuple[int, int]:
    """The int64 at `position` and the position after it. Raises as `read_varint` does."""
    raw, position = read_varint(buffer, position)
    return (raw >> 1) ^ -(raw & 1), position
