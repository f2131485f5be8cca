"""Keyed partitioning is Kafka's: murmur2 against aiokafka's and Kafka's own test vectors, one key or a column."""

import aiokafka.partitioner
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.client.producer.partitioner import (
    NO_PARTITION,
    murmur2,
    murmur2_column,
    partition_column,
    partition_for_key,
)

KEYS = st.lists(st.none() | st.binary(max_size=40), max_size=60)


def theirs(key: bytes) -> int:
    return int(aiokafka.partitioner.murmur2(key)) & 0xFFFFFFFF


@pytest.mark.parametrize(
    ("key", "java_int"),
    [
        # Kafka's UtilsTest.testMurmur2
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_kafkas(key: bytes, java_int: int) -> None:
    assert murmur2(key) == java_int & 0xFFFFFFFF
    assert murmur2_column(pa.array([key])).tolist() == [java_int & 0xFFFFFFFF]
    assert partition_for_key(key, 7) == (java_int & 0x7FFFFFFF) % 7


@given(key=st.binary(max_size=200))
def test_murmur2_is_aiokafkas(key: bytes) -> None:
    assert murmur2(key) == theirs(key)


@given(keys=KEYS, kind=st.sampled_from([pa.binary(), pa.large_binary(), pa.binary_view()]), cut=st.integers(0, 5))
def test_a_column_hashes_as_its_keys(keys: list[bytes | None], kind: pa.DataType, cut: int) -> None:
    column = pa.array(keys, kind).slice(cut)
    expected = [theirs(key or b"") for key in keys[cut:]]
    hashes = murmur2_column(column)
    assert hashes.dtype == np.uint32
    assert hashes.tolist() == expected


@given(data=st.data(), size=st.integers(0, 13), count=st.integers(1, 20), cut=st.integers(0, 5))
def test_keys_of_one_size(data: st.DataObject, size: int, count: int, cut: int) -> None:
    keys = data.draw(st.lists(st.binary(min_size=size, max_size=size), min_size=count, max_size=count))
    assert murmur2_column(pa.array(keys).slice(cut)).tolist() == [theirs(key) for key in keys[cut:]]


def test_few_long_keys_among_many_short_ones() -> None:
    keys = [b"%d" % i for i in range(500)]
    keys[7], keys[300], keys[499] = bytes(range(256)) * 40, b"x" * 1_001, b"y" * 4_002
    assert murmur2_column(pa.array(keys)).tolist() == [theirs(key) for key in keys]


@given(keys=KEYS, partitions=st.integers(1, 100))
def test_partitions_of_a_column(keys: list[bytes | None], partitions: int) -> None:
    partition_of = aiokafka.partitioner.DefaultPartitioner()
    everything = list(range(partitions))
    expected = [NO_PARTITION if key is None else partition_of(key, everything, everything) for key in keys]
    chosen = partition_column(pa.array(keys, pa.binary()), partitions)
    assert chosen.dtype == np.int32
    assert chosen.tolist() == expected
    assert [partition_for_key(key, partitions) for key in keys if key is not None] == [
        partition for partition in expected if partition != NO_PARTITION
    ]


def test_strings_dictionaries_chunks_and_nulls() -> None:
    keys = ["AA", "UA", None, "Ünïcödé", ""]
    expected = [theirs((key or "").encode()) for key in keys]
    column = pa.array(keys)
    for same in (
        column,
        column.dictionary_encode(),
        pa.chunked_array([column[:2], column[2:]]),
        pa.array(keys, pa.large_string()),
    ):
        assert murmur2_column(same).tolist() == expected
    assert partition_column(pa.nulls(3), 4).tolist() == [NO_PARTITION] * 3
    assert murmur2_column(pa.array([], pa.binary())).tolist() == []


def test_a_column_of_numbers_is_refused() -> None:
    with pytest.raises(TypeError, match="the column is int64"):
        murmur2_column(pa.array([1, 2]))
