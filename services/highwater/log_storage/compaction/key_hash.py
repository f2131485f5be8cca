"""128-bit hashes of record keys, a column of them at a time. Pure.

The cleaner's offset map keeps hashes instead of keys, as Kafka's does (by MD5, key by key). This one is built
for columns: two independent 64-bit lanes of MurmurHash3's rounds over eight bytes of every key at once. The seed is
random for each pass, so that no two keys collide in every pass; within one, 2^128 values make it as unlikely as with
MD5. Hashes are not kept: they mean nothing outside the pass.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Words: TypeAlias = npt.NDArray[np.uint64]

# Longer keys are rare, and hashed one by one: the rounds below run as often as the longest key has words.
LONGEST_IN_COLUMNS = 256
_WORD_BYTES = 8
_ROTATIONS = ((31, 27), (33, 29))
_FACTORS = (
    (0x87C37B91114253D5, 0x4CF5AD432745937F, 0x52DCE729),
    (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x38495AB5),
)
_FINAL_FACTORS = (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53)
# What a word keeps of its bytes where the key ends in it: the first n of them, little-endian.
_MASKS = np.array([(1 << 8 * size) - 1 for size in range(_WORD_BYTES + 1)], dtype=np.uint64)


class KeyHashes(NamedTuple):
    """Two words a key; `low` is never 0, which is how the offset map tells an empty slot."""

    low: Words
    high: Words


def hash_keys(keys: pa.Array, seed: int) -> KeyHashes:
    """The hashes of a column of type binary. Equal keys have equal hashes under one seed (128 bits); those of nulls
    mean nothing."""
    count = len(keys)
    if not count:
        return KeyHashes(np.zeros(0, np.uint64), np.zeros(0, np.uint64))
    ends = np.frombuffer(keys.buffers()[1], dtype=np.int32)[keys.offset : keys.offset + count + 1].astype(np.int64)
    data = keys.buffers()[2]
    raw = np.zeros(ends[-1] - ends[0] + _WORD_BYTES, dtype=np.uint8)  # a word may be read across the last key's end
    if data is not None:
        raw[: -_WORD_BYTES or None] = np.frombuffer(data, dtype=np.uint8)[ends[0] : ends[-1]]
    starts, lengths = ends[:-1] - ends[0], np.diff(ends)
    long = lengths > LONGEST_IN_COLUMNS
    if not long.any():
        low, high = _hash_short(raw, starts, lengths, seed)
    else:
        low, high = np.empty(count, np.uint64), np.empty(count, np.uint64)
        short = ~long
        if short.any():
            low[short], high[short] = _hash_short(raw, starts[short], lengths[short], seed)
        for number in np.flatnonzero(long).tolist():
            key = raw[starts[number] : starts[number] + lengths[number]].tobytes()
            digest = blake2b(key, digest_size=16, key=seed.to_bytes(16, "little")).digest()
            low[number], high[number] = np.frombuffer(digest, dtype="<u8")
    low[low == 0] = 1
    return KeyHashes(low, high)


def _hash_short(
    raw: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], seed: int
) -> tuple[Words, Words]:
    """Of keys that lie anywhere in `raw`; at least one."""
    low, high = _hash_columns(raw, starts, lengths, seed)
    for lane in (low, high):
        np.bitwise_xor(lane, lengths.astype(np.uint64), out=lane)
        _mix(lane)
    low += high
    high += low
    return low, high


def _hash_columns(
    raw: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], seed: int
) -> tuple[Words, Words]:
    """Both lanes over all words of all keys, word by word: first the first word of every key, and so on."""
    count = len(starts)
    lanes = tuple(np.full(count, seed >> shift & (1 << 64) - 1, dtype=np.uint64) for shift in (0, 64))
    # Every position of the bytes read as the word that begins there.
    words = np.ndarray((len(raw) - _WORD_BYTES + 1,), dtype="<u8", buffer=raw.data, strides=(1,))
    longest = int(lengths.max())
    same_length = int(lengths.min()) == longest
    # One behind the other, so that their words are a column with one stride. (Between short keys there may be long
    # ones, which are not among these.)
    joined = same_length and int(starts[-1] - starts[0]) == (count - 1) * longest
    rows: npt.NDArray[np.int64] | None = None  # the keys that have this word; None: all
    for position in range(0, longest, _WORD_BYTES):
        if not same_length:
            rows = np.flatnonzero(lengths > position)
        if rows is not None and len(rows) < count:
            word = words[starts[rows] + position] & _MASKS[np.minimum(lengths[rows] - position, _WORD_BYTES)]
            for lane, factors, rotations in zip(lanes, _FACTORS, _ROTATIONS, strict=True):
                lane[rows] = _round(lane[rows], word.copy(), factors, rotations)
            continue
        if joined:
            first = int(starts[0]) + position
            word = words[first : first + (count - 1) * longest + 1 : longest].copy()
            if longest - position < _WORD_BYTES:
                word &= _MASKS[longest - position]
        else:
            word = words[starts + position] & _MASKS[np.minimum(lengths - position, _WORD_BYTES)]
        for lane, factors, rotations in zip(lanes, _FACTORS, _ROTATIONS, strict=True):
            _round(lane, word.copy(), factors, rotations)
    return lanes[0], lanes[1]


def _round(lane: Words, word: Words, factors: tuple[int, int, int], rotations: tuple[int, int]) -> Words:
    """One of MurmurHash3's rounds, in place; `word` is used up."""
    word *= np.uint64(factors[0])
    _rotate(word, rotations[0])
    word *= np.uint64(factors[1])
    lane ^= word
    _rotate(lane, rotations[1])
    lane *= np.uint64(5)
    lane += np.uint64(factors[2])
    return lane


def _rotate(words: Words, bits: int) -> None:
    high = words >> np.uint64(64 - bits)
    words <<= np.uint64(bits)
    words |= high


def _mix(words: Words) -> None:
    """MurmurHash3's finalizer: every bit depends on every bit."""
    for factor in _FINAL_FACTORS:
        words ^= words >> np.uint64(33)
        words *= np.uint64(factor)
    words ^= words >> np.uint64(33)
