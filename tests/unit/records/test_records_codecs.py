"""Codecs: every frame Kafka's clients write, exact limits, bombs, and frames that are not whole."""

import struct
import tracemalloc
import zlib
from collections.abc import Callable

import cramjam
import lz4.frame
import pytest
import zstandard

from highwater.records import Codec
from highwater.records.codecs import decompress
from highwater.records.errors import CorruptPayloadError

MIB = 1 << 20


def zstd_without_size(data: bytes) -> bytes:
    compressor = zstandard.ZstdCompressor().compressobj()
    return compressor.compress(data) + compressor.flush()


def xerial(*blocks: bytes) -> bytes:
    return b"\x82SNAPPY\0\0\0\0\1\0\0\0\1" + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


def gzip(data: bytes) -> bytes:
    return zlib.compress(data, wbits=31)


def snappy(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def lz4_frame(data: bytes, *, store_size: bool) -> bytes:
    frame: bytes = lz4.frame.compress(data, store_size=store_size)
    return frame


FRAMES: dict[str, tuple[Codec, Callable[[bytes], bytes]]] = {
    "none": (Codec.NONE, bytes),
    "gzip": (Codec.GZIP, gzip),
    "gzip of many members": (
        Codec.GZIP,
        lambda data: b"".join(gzip(data[i : i + MIB]) for i in range(0, len(data), MIB)),
    ),
    "raw snappy": (Codec.SNAPPY, snappy),
    "xerial": (
        Codec.SNAPPY,
        lambda data: xerial(*(snappy(data[i : i + MIB]) for i in range(0, len(data), MIB))),
    ),
    "lz4": (Codec.LZ4, lambda data: lz4_frame(data, store_size=True)),
    "lz4 without size": (Codec.LZ4, lambda data: lz4_frame(data, store_size=False)),
    "zstd": (Codec.ZSTD, zstandard.ZstdCompressor().compress),
    "zstd without size": (Codec.ZSTD, zstd_without_size),
}


@pytest.mark.parametrize("name", FRAMES)
def test_the_limit_is_exact(name: str) -> None:
    codec, encode = FRAMES[name]
    data = bytes(range(256)) * 20 * 1024
    frame = memoryview(encode(data))
    assert decompress(codec, frame, len(data)) == data
    with pytest.raises(CorruptPayloadError, match=f"the limit is {len(data) - 1}"):
        decompress(codec, frame, len(data) - 1)


@pytest.mark.parametrize("name", [name for name in FRAMES if name != "none"])
def test_a_bomb_is_refused_in_bounded_memory(name: str) -> None:
    codec, encode = FRAMES[name]
    bomb = memoryview(encode(bytes(96 * MIB)))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptPayloadError, match="the limit is"):
            decompress(codec, bomb, MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # One step of zstd without a declared size may give 32 MiB.
    assert peak < 40 * MIB


def test_a_snappy_block_cannot_declare_more_than_it_can_hold() -> None:
    with pytest.raises(CorruptPayloadError, match="cannot hold"):
        decompress(Codec.SNAPPY, memoryview(b"\xff\xff\xff\x7f" + bytes(10)))


@pytest.mark.parametrize("name", [name for name in FRAMES if name != "none"])
def test_frames_that_are_cut_off_or_followed_by_more_are_refused(name: str) -> None:
    codec, encode = FRAMES[name]
    frame = encode(b"some payload, some payload, some payload")
    for size in range(len(frame)):
        # A xerial stream may end after any block, the header included: the batch's records are missing then.
        if name == "xerial" and size == 16:
            continue
        with pytest.raises(CorruptPayloadError):
            decompress(codec, memoryview(frame[:size]))
    with pytest.raises(CorruptPayloadError):
        decompress(codec, memoryview(frame + b"more"))
