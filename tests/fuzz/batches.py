"""Batches that are whole on the outside: a header of the right length with the right CRC, around something that is not
what it says. And some that are not even that."""

from __future__ import annotations

import struct
from functools import cache
from random import Random

import pyarrow as pa

from highwater.records import Record, encode_columns, encode_rows
from highwater.records.codec import Codec
from highwater.records.codecs import compress
from highwater.records.header import crc32c

_HEADER_BYTES = 61
_CRC = struct.Struct(">I")
_CRC_POSITION, _CHECKED_POSITION = 17, 21
_FIELDS = {  # position, layout: those under the CRC
    "attributes": (21, ">h"),
    "last_offset_delta": (23, ">i"),
    "base_timestamp": (27, ">q"),
    "max_timestamp": (35, ">q"),
    "producer_id": (43, ">q"),
    "producer_epoch": (51, ">h"),
    "base_sequence": (53, ">i"),
    "record_count": (57, ">i"),
}
_NUMBERS = (0, 1, -1, 2, 7, 127, 128, 255, 1000, 2**15 - 1, -(2**15), 2**31 - 1, -(2**31), 2**63 - 1, -(2**63))
_TIME_MS = 1_700_000_000_000
_TEXTS = (b"", b"a", b"key", b"\0" * 100, b"\xff\xfe", b"x" * 5000)


def valid(random: Random) -> bytes:
    """As a producer makes them: one of a hundred."""
    return random.choice(_made())


@cache
def _made() -> tuple[bytes, ...]:
    return tuple(_make(Random(number)) for number in range(100))


def _make(random: Random) -> bytes:
    codec = random.choice(list(Codec))
    count = random.choice((1, 2, 15, 200))
    if random.random() < 0.5:
        headers = (("k", b"v"),) * random.randrange(3)
        records = [
            Record(number, _TIME_MS + number, random.choice((None, *_TEXTS)), random.choice((None, *_TEXTS)), headers)
            for number in range(count)
        ]
        return encode_rows(records, codec=codec)
    table = pa.table(
        {
            "timestamp": pa.array([_TIME_MS] * count, pa.int64()),
            "key": pa.array([random.choice((None, *_TEXTS)) for _ in range(count)], pa.binary()),
            "value": pa.array([random.choice((None, *_TEXTS)) for _ in range(count)], pa.binary()),
        }
    )
    return encode_columns(table, codec=codec)


def sealed(header: bytes, payload: bytes) -> bytes:
    """The length and the CRC that fit."""
    batch = bytearray(header[:_HEADER_BYTES] + payload)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    _CRC.pack_into(batch, _CRC_POSITION, crc32c(bytes(batch[_CHECKED_POSITION:])))
    return bytes(batch)


def broken(random: Random) -> bytes:
    """One that no producer makes; most of them have a length and a CRC that fit."""
    batch = bytearray(valid(random))
    kind = random.randrange(6)
    if kind == 0:  # a header that lies
        for name in random.sample(sorted(_FIELDS), random.choice((1, 1, 2))):
            position, layout = _FIELDS[name]
            bits = 8 * struct.calcsize(layout)
            number = random.choice(_NUMBERS)
            struct.pack_into(layout, batch, position, (number + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1))
        return sealed(bytes(batch), bytes(batch[_HEADER_BYTES:]))
    if kind == 1:  # what is compressed is not what it was
        plain = mutated(random, bytes(valid_payload(random)))
        codec = random.choice(list(Codec))
        attributes = batch[22] & ~7 | codec
        batch[22] = attributes
        return sealed(bytes(batch), bytes(compress(codec, plain)))
    if kind == 2:  # what compresses it is not
        return sealed(bytes(batch), mutated(random, bytes(batch[_HEADER_BYTES:])))
    if kind == 3:  # another codec, or rows for columns
        batch[22] ^= random.choice((1, 2, 3, 4, 7, 0x80))
        return sealed(bytes(batch), bytes(batch[_HEADER_BYTES:]))
    if kind == 4:  # it expands to much
        codec = random.choice((Codec.GZIP, Codec.LZ4, Codec.ZSTD, Codec.SNAPPY))
        batch[22] = batch[22] & ~7 | codec
        return sealed(
            bytes(batch), bytes(compress(codec, bytes(random.choice((1 << 12, 1 << 16, 1 << 16, 1 << 16, 1 << 20)))))
        )
    return mutated(random, bytes(batch))


def valid_payload(random: Random) -> bytes:
    """Of rows or columns, not compressed."""
    while True:
        batch = valid(random)
        if not batch[22] & 7:
            return batch[_HEADER_BYTES:]


def mutated(random: Random, data: bytes) -> bytes:
    """Some of the bytes otherwise: flipped, gone, doubled, or with numbers that are boundaries."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 4, 16))):
        place = random.randrange(len(changed) + 1)
        kind = random.randrange(7)
        if kind == 0 and changed:
            changed[place % len(changed)] ^= 1 << random.randrange(8)
        elif kind == 1 and changed:
            changed[place % len(changed)] = random.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif kind == 2:
            del changed[place:]
        elif kind == 3:
            del changed[place : place + random.choice((1, 2, 4, 8))]
        elif kind == 4:
            changed[place:place] = random.randbytes(random.choice((1, 2, 4, 16)))
        elif kind == 5:
            changed[place:place] = changed[place : place + random.choice((1, 8, 64))]
        else:
            size = random.choice((2, 4, 8))
            number = random.choice((0, 1, 2 ** (8 * size - 1) - 1, 2 ** (8 * size - 1), 2 ** (8 * size) - 1))
            changed[place : place + size] = number.to_bytes(size, random.choice(("big", "little")))
    return bytes(changed)


def some(random: Random) -> bytes:
    """What a `records` field holds: batches, of which some are whole."""
    if random.random() < 0.1:
        return random.choice((b"", b"x" * 60, bytes(61), b"\xff" * 200, random.randbytes(300)))
    batches = [
        valid(random) if random.random() < 0.4 else broken(random) for _ in range(random.choice((1, 1, 1, 2, 5)))
    ]
    return b"".join(batches)
