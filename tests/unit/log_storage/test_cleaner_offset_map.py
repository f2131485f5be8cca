"""The cleaner's map from key to last offset: a dictionary in bounded memory, by hashes."""

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from highwater.log_storage.compaction.key_hash import LONGEST_IN_COLUMNS, hash_keys
from highwater.log_storage.compaction.offset_map import ENTRY_BYTES, NOT_FOUND, OffsetMap

SEED = 0x0123456789ABCDEF_FEDCBA9876543210

KEYS = st.one_of(
    st.binary(max_size=40),
    st.integers(0, 30).map(lambda number: b"key-%d" % number),
    st.sampled_from([b"", b"\0", b"\0\0", b"\0" * 8, b"\0" * 9, b"x" * 255, b"x" * 256, b"x" * 257, b"x" * 258]),
)


def hashes(keys: list[bytes | None]) -> list[tuple[int, int]]:
    low, high = hash_keys(pa.array(keys, pa.binary()), SEED)
    return list(zip(low.tolist(), high.tolist(), strict=True))


@settings(deadline=None)
@given(st.lists(KEYS, max_size=60), st.data())
def test_a_keys_hash_depends_on_the_key_alone(keys: list[bytes], data: st.DataObject) -> None:
    by_key = {key: found for key in set(keys) for found in hashes([key])}
    assert hashes(keys) == [by_key[key] for key in keys]
    assert len(set(by_key.values())) == len(by_key)
    assert all(low for low, _ in by_key.values())
    # Also of a slice, whose buffers begin elsewhere.
    start = data.draw(st.integers(0, len(keys)))
    low, high = hash_keys(pa.array([b"before", *keys], pa.binary())[1 + start :], SEED)
    assert list(zip(low.tolist(), high.tolist(), strict=True)) == [by_key[key] for key in keys[start:]]


def test_nulls_do_not_disturb_their_neighbours() -> None:
    assert hashes([None, b"a", None, b"bb"])[1::2] == hashes([b"a", b"bb"])
    assert len(hashes([None, None])) == 2


def test_hashes_differ_from_seed_to_seed_and_are_spread() -> None:
    keys = pa.array([b"key-%06d" % number for number in range(200_000)] + [b"k%d" % n for n in range(200_000)])
    low, high = hash_keys(keys.cast(pa.binary()), SEED)
    other, _ = hash_keys(keys.cast(pa.binary()), SEED + 1)
    assert not np.any(low == other)
    assert len(np.unique(low)) == len(np.unique(high)) == len(keys)
    for words in (low, high):
        for bit in (0, 1, 31, 32, 62, 63):
            share = np.count_nonzero(words >> np.uint64(bit) & np.uint64(1)) / len(words)
            assert 0.49 < share < 0.51


def test_long_keys_that_differ_in_their_last_byte_only() -> None:
    long = [b"x" * size + end for size in (7, 8, 254, 255, 256, 1000) for end in (b"a", b"b", b"\0")]
    assert len(set(hashes(long))) == len(long)
    assert any(len(key) > LONGEST_IN_COLUMNS for key in long)


LENGTHS = (0, 1, 7, 8, 9, 255, 256, 257, 300, 4096)


@pytest.mark.parametrize("seed", [0, 1, SEED, (1 << 128) - 1])
def test_keys_of_mixed_and_long_lengths_do_not_disturb_one_another(seed: int) -> None:
    """Long keys are hashed one by one: the short ones between them lie apart, also where all are of one length."""
    rng = random.Random(seed)
    alone: dict[bytes, tuple[int, int]] = {}
    for _ in range(300):
        lengths = rng.sample(LENGTHS, rng.randint(1, 3))
        prefix = rng.choice([b"a", b"\0", b"key-"]) * 4096
        keys = []
        for _ in range(rng.randint(1, 12)):
            length = rng.choice(lengths)
            keys.append((prefix[: max(length - 1, 0)] + rng.choice([b"x", b"y", b"\0"]))[:length])
        low, high = hash_keys(pa.array(keys, pa.binary()), seed)
        for key, found in zip(keys, zip(low.tolist(), high.tolist(), strict=True), strict=True):
            if key not in alone:
                one = hash_keys(pa.array([key], pa.binary()), seed)
                alone[key] = (int(one.low[0]), int(one.high[0]))
            assert found == alone[key], (len(key), lengths)
    assert len(set(alone.values())) == len(alone)


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 60).map(lambda number: b"%d" % number), max_size=40), max_size=8),
    st.integers(1, 50),
)
def test_the_map_is_a_dictionary_until_it_is_full(chunks: list[list[bytes]], capacity: int) -> None:
    slots = max(2, int(capacity / 0.9))
    found = OffsetMap(slots * ENTRY_BYTES)
    model: dict[bytes, int] = {}
    offset = 100
    for chunk in chunks:
        keys = hash_keys(pa.array(chunk, pa.binary()), SEED)
        offsets = np.arange(offset, offset + 3 * len(chunk), 3)
        taken = found.put(keys, offsets)
        for key, at in zip(chunk[:taken], offsets[:taken].tolist(), strict=True):
            model[key] = at
        assert len(found) == len(model) <= found.capacity
        expected = [model.get(key, NOT_FOUND) for key in chunk]
        assert found.get(keys).tolist() == expected
        if taken < len(chunk):
            assert found.full
            assert chunk[taken] not in model  # it stops at a key that it has no room for, and nowhere before
            break
        offset += 3 * len(chunk)
    every = hash_keys(pa.array([b"%d" % number for number in range(80)], pa.binary()), SEED)
    assert found.get(every).tolist() == [model.get(b"%d" % number, NOT_FOUND) for number in range(80)]


def test_it_takes_no_more_memory_than_it_may() -> None:
    assert OffsetMap(128 << 20).capacity > 5_000_000
    assert OffsetMap(128 << 20, expected_keys=1000).capacity < 1100
    assert OffsetMap(128 << 20, expected_keys=1000).capacity >= 1000
    assert OffsetMap(2 * ENTRY_BYTES).capacity == 1
    with pytest.raises(ValueError, match=r"log\.cleaner\.dedupe\.buffer\.size"):
        OffsetMap(ENTRY_BYTES)
    for expected in range(1, 200):
        assert OffsetMap(1 << 20, 0.5, expected).capacity >= expected


def test_a_full_map_is_still_as_quick() -> None:
    found = OffsetMap(20_000 * ENTRY_BYTES)
    keys = hash_keys(pa.array([b"%d" % number for number in range(30_000)], pa.binary()), SEED)
    taken = found.put(keys, np.arange(30_000))
    assert taken == len(found) == found.capacity
    assert found.get(keys).tolist() == [*range(taken), *[NOT_FOUND] * (30_000 - taken)]
