"""How much is read, and by how many tasks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.client.topic_partition import TopicPartition
from highwater.spark.offsets.ranges import MAX_TASKS, OffsetRange, split_ranges
from highwater.spark.offsets.stream_offset import NOT_BEGUN, StreamOffset, parse_stream_offset
from highwater.spark.progress.lag import lag
from highwater.spark.source.admission import Limits, admitted, admitted_bytes

A, B, C = (TopicPartition("t", number) for number in range(3))


def sizes(ranges: list[OffsetRange]) -> list[tuple[int, int]]:
    return [(one.start, one.until) for one in ranges]


# Ranges


def test_one_task_a_partition_and_none_for_nothing() -> None:
    ranges = [OffsetRange(A, 0, 10), OffsetRange(B, 5, 5), OffsetRange(C, 9, 7)]
    assert split_ranges(ranges, min_partitions=None, max_records=None) == [ranges[0]]


def test_no_task_reads_more_than_it_may() -> None:
    assert sizes(split_ranges([OffsetRange(A, 0, 10)], min_partitions=None, max_records=4)) == [(0, 3), (3, 6), (6, 10)]


def test_large_partitions_are_cut_and_small_ones_are_not() -> None:
    ranges = [OffsetRange(A, 0, 1000), OffsetRange(B, 0, 10), OffsetRange(C, 0, 500)]
    cut = split_ranges(ranges, min_partitions=7, max_records=None)
    assert [one.partition for one in cut] == [A] * 4 + [B] + [C] * 2


@given(
    lengths=st.lists(st.integers(0, 10_000), min_size=1, max_size=8),
    min_partitions=st.none() | st.integers(1, 40),
    max_records=st.none() | st.integers(50, 5000),
)
def test_pieces_cover_every_offset_once(
    lengths: list[int], min_partitions: int | None, max_records: int | None
) -> None:
    ranges = [OffsetRange(TopicPartition("t", index), 7, 7 + length) for index, length in enumerate(lengths)]
    pieces = split_ranges(ranges, min_partitions=min_partitions, max_records=max_records)
    for one in ranges:
        mine = [piece for piece in pieces if piece.partition == one.partition]
        assert [offset for piece in mine for offset in (piece.start, piece.until)] == sorted(
            offset for piece in mine for offset in (piece.start, piece.until)
        )
        assert sum(piece.size for piece in mine) == one.size
        assert all(piece.size > 0 for piece in mine)
        if max_records is not None:
            assert all(piece.size <= max_records for piece in mine)


# Micro-batches


def test_a_limit_is_shared_out_by_how_far_each_partition_is_behind() -> None:
    start, latest = {A: 0, B: 100, C: 50}, {A: 900, B: 200, C: 50}
    assert admitted(start, latest, 100) == {A: 90, B: 110, C: 50}
    assert admitted(start, latest, None) == latest
    assert admitted(start, latest, 1000) == latest


def test_no_partition_starves() -> None:
    assert admitted({A: 0, B: 0}, {A: 1_000_000, B: 1}, 10) == {A: 9, B: 1}
    assert admitted({A: 0, B: 0, C: 0}, {A: 1, B: 1, C: 4}, 3) == {A: 1, B: 1, C: 1}
    assert admitted({A: 0, B: 0, C: 0}, {A: 9, B: 9, C: 9}, 2) == {A: 1, B: 1, C: 1}


def test_a_partition_that_went_back_ends_where_it_ends_now() -> None:
    assert admitted({A: 100, B: 0}, {A: 40, B: 100}, 10) == {A: 40, B: 10}


@given(
    ends=st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 9) | st.integers(0, 1000)), min_size=1, max_size=6),
    limit=st.integers(1, 9) | st.integers(1, 2000),
)
def test_a_limit_is_kept_and_the_end_is_reached(ends: list[tuple[int, int]], limit: int) -> None:
    position = {TopicPartition("t", index): start for index, (start, _) in enumerate(ends)}
    latest = {TopicPartition("t", index): start + length for index, (start, length) in enumerate(ends)}
    for _ in range(sum(length for _, length in ends) + 1):
        following = admitted(position, latest, limit)
        behind = [one for one in position if position[one] < latest[one]]
        assert sum(following[one] - position[one] for one in position) <= max(limit, len(behind))
        assert all(following[one] > position[one] for one in behind)
        position = following
    assert position == latest


def test_a_limit_in_bytes() -> None:
    start, end = {A: 0, B: 0, C: 3}, {A: 1000, B: 500, C: 3}
    assert admitted_bytes(start, end, {A: 100.0, B: 10.0}, 10_500) == {A: 100, B: 50, C: 3}
    assert admitted_bytes(start, end, {A: 1.0, B: 1.0}, 10_500) == end
    assert admitted_bytes(start, end, {A: 1e9, B: 1e9}, 1) == {A: 1, B: 1, C: 3}


@pytest.mark.parametrize(
    ("available", "waited_ms", "held"), [(9, 0, True), (10, 0, False), (9, 500, False), (0, 0, False)]
)
def test_few_records_wait_for_more_for_a_while(available: int, waited_ms: float, held: bool) -> None:
    assert Limits(min_offsets=10, max_delay_ms=500).holds_back(available, waited_ms) is held
    assert not Limits().holds_back(available, waited_ms)


# Checkpoints


def test_an_offset_in_the_checkpoint_is_kafkas_form() -> None:
    written = StreamOffset({B: 7, A: 5}).to_json()
    assert written == {"t": {"0": 5, "1": 7}}
    assert list(written["t"]) == ["0", "1"]
    assert parse_stream_offset(written) == StreamOffset({A: 5, B: 7})


def test_partitions_that_are_taken_up_say_where_they_begin() -> None:
    taken_up = StreamOffset({A: 5, B: 7}, {B: 2})
    assert taken_up.to_json() == {"t": {"0": 5, "1": 7}, "@start": {"t": {"1": 2}}}
    assert parse_stream_offset(taken_up.to_json()) == taken_up


def test_an_offset_names_its_topics_by_their_ids() -> None:
    named = StreamOffset({A: 5}, topic_ids={"t": "0f"})
    assert named.to_json() == {"t": {"0": 5}, "@topics": {"t": "0f"}}
    assert parse_stream_offset(named.to_json()) == named


def test_a_query_that_began_with_nothing_has_begun() -> None:
    assert StreamOffset({}, {}).to_json() != NOT_BEGUN


def test_lag_of_each_partition() -> None:
    source = {"endOffset": '{"t": {"0": 5}, "@start": {"t": {"0": 1}}}', "latestOffset": {"t": {"0": 9, "1": 4}}}
    assert lag({"sources": [source]}) == {A: 4, B: 4}
    assert lag({"sources": [{"endOffset": None, "latestOffset": None}]}) == {}
    delta = {"sourceVersion": 1, "reservoirId": "8606f80c", "reservoirVersion": 2, "isStartingVersion": False}
    assert (
        lag(
            {
                "sources": [
                    {"endOffset": '{"sourceVersion": 1, "reservoirId": "8606f80c", "index": -1}', "latestOffset": None}
                ]
            }
        )
        == {}
    )
    assert lag({"sources": [{"endOffset": delta, "latestOffset": delta}]}) == {}


@pytest.mark.parametrize(("min_partitions", "max_records"), [(None, 1), (3_200_000, None), (3_200_000, 7)])
def test_tasks_are_bounded_however_many_offsets_there_are(min_partitions: int | None, max_records: int | None) -> None:
    ranges = [OffsetRange(A, 0, 2**40), OffsetRange(A, 5, 6)]
    pieces = split_ranges(ranges, min_partitions=min_partitions, max_records=max_records)
    assert MAX_TASKS <= len(pieces) <= MAX_TASKS + len(ranges)
    assert sum(piece.size for piece in pieces) == 2**40 + 1
