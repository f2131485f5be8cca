"""Compression of a batch's payload, framed as Kafka frames it, so that any Kafka library reads it and we read theirs.

    gzip     RFC 1952; several members in a row are read as one
    snappy   written in xerial's framing, as Kafka's Java client does:
                 82 'SNAPPY' 00 · int32 version = 1 · int32 compatible = 1 · (int32 block length · raw block) ...
             a lone raw snappy block (librdkafka) is read too
    lz4      one LZ4 frame with independent blocks (Kafka's Java reader refuses linked ones)
    zstd     one zstd frame

Nothing expands beyond the caller's limit: sizes that a frame declares are compared with it before memory is taken, and
frames that declare none are expanded step by step.
"""

from __future__ import annotations

import struct
import threading
import zlib

import cramjam
import lz4.frame
import zstandard

from highwater.records.codec import Codec
from highwater.records.errors import CorruptPayloadError, PayloadTooLargeError
from highwater.records.limits import DEFAULT_MAX_PAYLOAD_BYTES

_GZIP_WINDOW_BITS = 31
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 1 << 20
_INT32 = struct.Struct(">i")
_UINT32 = struct.Struct("<I")
# Magic, flags, block size, content size, header checksum.
_LZ4_HEADER = struct.Struct("<IBBQB")
_LZ4_MAGIC = 0x184D2204
_LZ4_PLAIN = 0x48  # version 1, the content's size is there
_LZ4_INDEPENDENT_BLOCKS = 0x20
_LZ4_STORED_BLOCK = 1 << 31
_LZ4_STEP_BYTES = 256 << 10  # expanded at a time: fresh memory for more comes page by page from the system
# Each member that follows another costs a copy of what is left.
_MAX_GZIP_MEMBERS = 256
# A zstd block expands to at most 128 KiB and takes at least 4 bytes: what a step of input gives is known before it.
_ZSTD_STEP_BYTES = 1 << 10
_ZSTD_BLOCK_BYTES = 128 << 10
_ZSTD_LEAST_BLOCK_BYTES = 4
# Snappy's densest element makes 64 bytes of 3; a block that declares more is lying.
_SNAPPY_MAX_RATIO = 22


def compress(codec: Codec, data: bytes | memoryview, level: int | None = None) -> bytes | memoryview:
    """`data` in the codec's frame; as it is for NONE. `level` is the codec's own (snappy has none)."""
    match codec:
        case Codec.NONE:
            return data
        case Codec.GZIP:
            compressor = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, _GZIP_WINDOW_BITS)
            return compressor.compress(data) + compressor.flush()
        case Codec.SNAPPY:
            return _compress_snappy(memoryview(data))
        case Codec.LZ4:
            # 256 KiB blocks: measured a tenth denser than 64 KiB ones and the fastest of all to expand.
            frame: bytes = lz4.frame.compress(
                data,
                compression_level=0 if level is None else level,
                block_size=lz4.frame.BLOCKSIZE_MAX256KB,
                block_linked=False,
                store_size=True,
            )
            return frame
        case Codec.ZSTD:
            return zstandard.ZstdCompressor(level=3 if level is None else level).compress(data)


def decompress(codec: Codec, data: memoryview, max_bytes: int = DEFAULT_MAX_PAYLOAD_BYTES) -> bytes:
    """The payload that `data` holds. For NONE a copy, so that it is aligned and outlives the caller's buffer.

    Raises:
        CorruptPayloadError: damaged, truncated, followed by other bytes, or (`PayloadTooLargeError`) larger than
            `max_bytes`.
    """
    try:
        match codec:
            case Codec.NONE:
                payload = bytes(data)
            case Codec.GZIP:
                payload = _decompress_gzip(data, max_bytes)
            case Codec.SNAPPY:
                payload = _decompress_snappy(data, max_bytes)
            case Codec.LZ4:
                payload = _decompress_lz4(data, max_bytes)
            case Codec.ZSTD:
                payload = _decompress_zstd(data, max_bytes)
    except PayloadTooLargeError as error:
        raise PayloadTooLargeError(f"{codec.name.lower()}: {error}") from None
    except (zlib.error, cramjam.DecompressionError, zstandard.ZstdError, RuntimeError, EOFError, ValueError) as error:
        raise CorruptPayloadError(f"{codec.name.lower()}: {error}") from error
    if len(payload) > max_bytes:
        raise PayloadTooLargeError(f"{codec.name.lower()}: {_too_large(len(payload), max_bytes)}")
    return payload


class Scratch(threading.local):
    """Each thread's memory for one payload at a time. Fresh memory for each costs four times what lz4 takes to fill it:
    the system gives it page by page."""

    MOST_BYTES = 8 << 20  # that stay with a thread

    def __init__(self) -> None:
        self._memory = bytearray()

    def of(self, size: int) -> bytearray:
        """So many bytes or more, until the next call in this thread."""
        if size > self.MOST_BYTES:
            return bytearray(size)
        if size > len(self._memory):
            self._memory = bytearray(min(self.MOST_BYTES, 2 * size))
        return self._memory


class Lz4Front:
    """The front of a plain lz4 frame (`plain_lz4_bytes`), expanded as far as it is asked for, and a step at the least,
    into a thread's scratch: it is there until the next one. An end that is reached is where the frame says."""

    def __init__(self, scratch: Scratch, data: memoryview, size: int) -> None:
        self._frame = lz4.frame.create_decompression_context()
        self._data = data
        self._taken = 0
        self._size = size
        self._memory = memoryview(scratch.of(size + 1))
        self._filled = 0
        self._ended = False

    def first(self, count: int) -> memoryview:
        """So many bytes or more. Raises `CorruptPayloadError`."""
        while self._filled < count or (self._filled >= self._size and not self._ended):
            self._go_on()
        return self._memory[: self._filled]

    def _go_on(self) -> None:
        if self._ended:
            raise CorruptPayloadError("lz4: truncated")
        # One byte of room more than it may take, so that the frame's end is reached and an excess is seen.
        room = min(_LZ4_STEP_BYTES, self._size + 1 - self._filled)
        try:
            piece, taken, self._ended = lz4.frame.decompress_chunk(
                self._frame, self._data[self._taken :], max_length=room
            )
        except (RuntimeError, ValueError) as error:
            raise CorruptPayloadError(f"lz4: {error}") from error
        if not taken and not piece and not self._ended:
            raise CorruptPayloadError("lz4: truncated")
        end = self._filled + len(piece)
        self._memory[self._filled : end] = piece
        self._taken += taken
        self._filled = end
        if end > self._size:
            raise CorruptPayloadError(f"lz4: more than the {self._size} bytes that the frame says")


def plain_lz4_bytes(data: memoryview) -> int | None:
    """Bytes that the frame says that it expands to, where it is a single one as most writers make it: it says so, has
    neither dictionary nor checksums, and nothing stands behind it. None: another one, or none."""
    if len(data) < _LZ4_HEADER.size:
        return None
    magic, flags, _, size, _ = _LZ4_HEADER.unpack_from(data)
    if magic != _LZ4_MAGIC or flags & ~_LZ4_INDEPENDENT_BLOCKS != _LZ4_PLAIN:
        return None
    position = _LZ4_HEADER.size
    while position + _UINT32.size <= len(data):
        (block,) = _UINT32.unpack_from(data, position)
        position += _UINT32.size + (block & ~_LZ4_STORED_BLOCK)
        if not block:
            return int(size) if position == len(data) else None
    return None


def _too_large(size: int, max_bytes: int) -> PayloadTooLargeError:
    return PayloadTooLargeError(f"the payload expands to {size} bytes or more, the limit is {max_bytes}")


def _decompress_gzip(data: memoryview, max_bytes: int) -> bytes:
    members: list[bytes] = []
    room = max_bytes + 1
    rest: bytes | memoryview = data
    while rest:
        if len(members) == _MAX_GZIP_MEMBERS:
            raise CorruptPayloadError(f"more than {_MAX_GZIP_MEMBERS} members")
        member = zlib.decompressobj(_GZIP_WINDOW_BITS)
        members.append(member.decompress(rest, room))
        room -= len(members[-1])
        if room <= 0:
            raise _too_large(max_bytes + 1, max_bytes)
        if not member.eof:
            raise CorruptPayloadError("truncated")
        rest = member.unused_data
    if not members:
        raise CorruptPayloadError("truncated")
    return members[0] if len(members) == 1 else b"".join(members)


def _compress_snappy(data: memoryview) -> bytes:
    parts: list[bytes | memoryview] = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = memoryview(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (_INT32.pack(len(block)), block)
    return b"".join(parts)


def _decompress_snappy(data: memoryview, max_bytes: int) -> bytes:
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _expand_snappy_block(data, 0, max_bytes)
    if len(data) < len(_XERIAL_HEADER):
        raise CorruptPayloadError("truncated")
    blocks: list[bytes] = []
    position = len(_XERIAL_HEADER)
    expanded = 0
    while position < len(data):
        if len(data) - position < _INT32.size:
            raise CorruptPayloadError("truncated")
        (size,) = _INT32.unpack_from(data, position)
        position += _INT32.size
        if not 0 < size <= len(data) - position:
            raise CorruptPayloadError(f"a block of {size} bytes with {len(data) - position} left")
        blocks.append(_expand_snappy_block(data[position : position + size], expanded, max_bytes))
        expanded += len(blocks[-1])
        position += size
    return blocks[0] if len(blocks) == 1 else b"".join(blocks)


def _expand_snappy_block(block: memoryview, expanded: int, max_bytes: int) -> bytes:
    """One raw block; `expanded` bytes of the payload came from the blocks before it."""
    declared = 0
    # A raw block begins with its expanded size, an unsigned varint of at most 5 bytes.
    for shift, byte in zip(range(0, 35, 7), block, strict=False):
        declared |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
    else:
        raise CorruptPayloadError("a block without its size")
    if expanded + declared > max_bytes:
        raise _too_large(expanded + declared, max_bytes)
    if declared > _SNAPPY_MAX_RATIO * len(block):
        raise CorruptPayloadError(f"a block of {len(block)} bytes cannot hold {declared}")
    return bytes(cramjam.snappy.decompress_raw(block))


def _decompress_lz4(data: memoryview, max_bytes: int) -> bytes:
    declared = lz4.frame.get_frame_info(data)["content_size"]
    if declared > max_bytes:
        raise _too_large(declared, max_bytes)
    frame = lz4.frame.LZ4FrameDecompressor()
    # One byte of room more than it may take, so that the frame's end is reached and an excess is seen.
    payload: bytes = frame.decompress(data, max_length=(declared or max_bytes) + 1)
    if len(payload) > (declared or max_bytes):
        raise _too_large(len(payload), declared or max_bytes)
    if not frame.eof:
        raise CorruptPayloadError("truncated")
    if frame.unused_data:
        raise CorruptPayloadError(f"{len(frame.unused_data)} bytes after the frame")
    return payload


def _decompress_zstd(data: memoryview, max_bytes: int) -> bytes:
    declared = zstandard.frame_content_size(data)
    if declared > max_bytes:
        raise _too_large(declared, max_bytes)
    if declared >= 0:
        return zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    frame = zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj()
    parts: list[bytes] = []
    room = max_bytes
    start = 0
    while start < len(data):
        if frame.eof:
            raise CorruptPayloadError(f"{len(data) - start} bytes after the frame")
        # No more than one block beyond the room that is left.
        step = min(_ZSTD_STEP_BYTES, (room // _ZSTD_BLOCK_BYTES + 1) * _ZSTD_LEAST_BLOCK_BYTES)
        parts.append(frame.decompress(data[start : start + step]))
        start += step
        room -= len(parts[-1])
        if room < 0:
            raise _too_large(max_bytes - room, max_bytes)
    if not frame.eof:
        raise CorruptPayloadError("truncated")
    if frame.unused_data:
        raise CorruptPayloadError(f"{len(frame.unused_data)} bytes after the frame")
    return b"".join(parts)
