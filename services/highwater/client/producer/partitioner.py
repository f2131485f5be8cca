"""The partition that a key belongs to: Kafka's murmur2, for one key and for a whole column at once.

A record without a key has no partition of its own; the producer chooses one for a batch of them.
"""

from __future__ import annotations

import struct
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

UInt32Array: TypeAlias = npt.NDArray[np.uint32]

NO_PARTITION = -1

_SEED = 0x9747B28C
_M = 0x5BD1E995
_R = 24
_MASK = 0xFFFFFFFF
# Java's Utils.toPositive
_POSITIVE = 0x7FFFFFFF
# With fewer rows than this a NumPy step costs more than plain Python: the last, long keys are hashed one by one.
_FEW_ROWS = 32
# By how many bytes a key has behind its last whole word.
_TAIL_MASKS = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], dtype=np.uint32)
_TAIL_FACTORS = np.array([1, _M, _M, _M], dtype=np.uint32)


def murmur2(key: bytes) -> int:
    """Kafka's 32-bit murmur2 of a key, unsigned (Java's int, modulo 2^32)."""
    size = len(key)
    h = _SEED ^ size
    words = size >> 2
    for k in struct.unpack_from(f"<{words}I", key):
        k = k * _M & _MASK  # noqa: PLW2901
        h = (h * _M & _MASK) ^ ((k ^ k >> _R) * _M & _MASK)
    if tail := key[words << 2 :]:
        h = (h ^ int.from_bytes(tail, "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def partition_for_key(key: bytes, partitions: int) -> int:
    """The partition of a key among `partitions`, as Kafka's default partitioner chooses it."""
    return (murmur2(key) & _POSITIVE) % partitions


def partition_column(keys: pa.Array | pa.ChunkedArray, partitions: int) -> npt.NDArray[np.int32]:
    """The partition of every key of a column; `NO_PARTITION` where the key is null."""
    chosen = ((murmur2_column(keys) & np.uint32(_POSITIVE)) % np.uint32(partitions)).astype(np.int32)
    if keys.null_count:
        chosen[keys.is_null().to_numpy(zero_copy_only=False)] = NO_PARTITION
    return chosen


def murmur2_column(keys: pa.Array | pa.ChunkedArray) -> UInt32Array:
    """`murmur2` of every key of a binary or string column. A null key hashes as an empty one.

    Raises:
        TypeError: the column is neither binary nor string.
    """
    if isinstance(keys, pa.ChunkedArray):
        keys = keys.combine_chunks() if keys.num_chunks != 1 else keys.chunk(0)
    offsets, data = _layout(keys)
    starts = offsets[:-1]
    sizes = offsets[1:] - starts
    if keys.null_count:
        sizes = np.where(keys.is_null().to_numpy(zero_copy_only=False), 0, sizes)
    hashes = sizes.astype(np.uint32)
    hashes ^= np.uint32(_SEED)
    size = int(sizes[0]) if len(sizes) else 0
    if size and (sizes == size).all():
        _mix_equal(hashes, int(starts[0]), size, data)
    else:
        # Four bytes from everywhere up to the end of the keys can be read as a word.
        data = np.concatenate([data[offsets[0] : offsets[-1]], np.zeros(4, dtype=np.uint8)])
        starts = starts - offsets[0]
        _mix_words(hashes, starts, sizes >> 2, data)
        _mix_tail(hashes, starts, sizes, data)
    hashes ^= hashes >> np.uint32(13)
    hashes *= np.uint32(_M)
    hashes ^= hashes >> np.uint32(15)
    return hashes


def _layout(keys: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """The column's offsets into its bytes, one more than rows, and the bytes."""
    if pa.types.is_binary(keys.type) or pa.types.is_string(keys.type):
        width: npt.DTypeLike = np.int32
    elif pa.types.is_large_binary(keys.type) or pa.types.is_large_string(keys.type):
        width = np.int64
    elif pa.types.is_null(keys.type):
        return np.zeros(len(keys) + 1, dtype=np.int64), np.zeros(0, dtype=np.uint8)
    else:
        try:
            return _layout(keys.cast(pa.large_binary()))
        except pa.ArrowException as error:
            raise TypeError(f"keys must be binary or strings, the column is {keys.type}") from error
    _, offsets, data = keys.buffers()
    if not len(keys):
        return np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.uint8)
    at = np.frombuffer(offsets, dtype=width)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    return at, np.zeros(0, dtype=np.uint8) if data is None else np.frombuffer(data, dtype=np.uint8)


def _mix_equal(hashes: UInt32Array, start: int, size: int, data: npt.NDArray[np.uint8]) -> None:
    """`_mix_words` and `_mix_tail` of keys of one size that stand one behind the other: nothing is gathered."""
    m, r = np.uint32(_M), np.uint32(_R)
    whole = size & ~3
    for at in range(0, whole, 4):
        k = np.ndarray(hashes.shape, dtype="<u4", buffer=data, offset=start + at, strides=(size,)) * m
        k ^= k >> r
        k *= m
        hashes *= m
        hashes ^= k
    if whole == size:
        return
    for index in range(size - whole):
        tail = np.ndarray(hashes.shape, dtype=np.uint8, buffer=data, offset=start + whole + index, strides=(size,))
        hashes ^= tail.astype(np.uint32) << np.uint32(8 * index)
    hashes *= m


def _mix_words(
    hashes: UInt32Array, starts: npt.NDArray[np.int64], words: npt.NDArray[np.int64], data: npt.NDArray[np.uint8]
) -> None:
    """Mixes all whole 4-byte words of every key into its hash: the first word of all keys, then the second, ..."""
    longest = int(words.max(initial=0))
    if not longest:
        return
    word_at = _words(data)
    m, r = np.uint32(_M), np.uint32(_R)
    shortest = int(words.min())
    for index in range(shortest):
        k = word_at[starts + 4 * index]
        k *= m
        k ^= k >> r
        k *= m
        hashes *= m
        hashes ^= k
    rows = np.arange(len(hashes))
    for index in range(shortest, longest):
        active = words[rows] > index
        if not active.all():
            rows = rows[active]
        if len(rows) < _FEW_ROWS < longest:
            for row in rows.tolist():
                hashes[row] = _mix_rest(int(hashes[row]), data[starts[row] + 4 * index :][: 4 * (words[row] - index)])
            return
        k = word_at[starts[rows] + 4 * index]
        k *= m
        k ^= k >> r
        k *= m
        hashes[rows] = hashes[rows] * m ^ k


def _mix_rest(h: int, words: npt.NDArray[np.uint8]) -> int:
    for k in words.view("<u4").tolist() if words.flags.aligned else np.frombuffer(words.tobytes(), "<u4").tolist():
        k = k * _M & _MASK  # noqa: PLW2901
        h = (h * _M & _MASK) ^ ((k ^ k >> _R) * _M & _MASK)
    return h


def _mix_tail(
    hashes: UInt32Array, starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], data: npt.NDArray[np.uint8]
) -> None:
    """Mixes the last one to three bytes of every key whose size is no multiple of four."""
    left = sizes & 3
    tails = _words(data)[starts + sizes - left]
    tails &= _TAIL_MASKS[left]
    hashes ^= tails
    hashes *= _TAIL_FACTORS[left]


def _words(data: npt.NDArray[np.uint8]) -> UInt32Array:
    """Every position of the data read as a little-endian word, without copying."""
    return np.ndarray((len(data) - 3,), dtype="<u4", buffer=data, strides=(1,))
