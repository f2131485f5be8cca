"""Assignments are Kafka's, and balanced."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from highwater.controller.topics.assignment import assign_replicas, least_leading


def test_the_table_of_kafkas_documentation() -> None:
    # AdminUtils: 10 partitions of replication factor 3 on brokers 0 to 4, start index and shift 0.
    assigned = assign_replicas(range(5), 10, 3, start_index=0, shift=0)
    assert assigned == (
        (0, 1, 2), (1, 2, 3), (2, 3, 4), (3, 4, 0), (4, 0, 1),
        (0, 2, 3), (1, 3, 4), (2, 4, 0), (3, 0, 1), (4, 1, 2),
    )  # fmt: skip


def test_start_and_shift_move_leaders_and_followers() -> None:
    assert assign_replicas([7, 8, 9], 3, 2, start_index=1, shift=1) == ((8, 7), (9, 8), (7, 9))


cases = st.integers(1, 12).flatmap(
    lambda brokers: st.tuples(
        st.lists(st.integers(0, 999), min_size=brokers, max_size=brokers, unique=True),
        st.integers(0, 60),
        st.integers(1, brokers),
        st.integers(0, 50),
        st.integers(0, 50),
    )
)


@given(cases)
def test_replicas_are_distinct_and_spread_evenly(case: tuple[list[int], int, int, int, int]) -> None:
    brokers, partitions, factor, start, shift = case
    assigned = assign_replicas(brokers, partitions, factor, start_index=start, shift=shift)
    assert len(assigned) == partitions
    for replicas in assigned:
        assert len(set(replicas)) == factor
        assert set(replicas) <= set(brokers)
    leaders = Counter(dict.fromkeys(brokers, 0))
    leaders.update(replicas[0] for replicas in assigned)
    assert max(leaders.values()) - min(leaders.values()) <= 1
    if partitions % len(brokers) == 0:
        hosted = Counter(dict.fromkeys(brokers, 0))
        hosted.update(broker for replicas in assigned for broker in replicas)
        assert len(set(hosted.values())) == 1


@given(cases, st.integers(0, 60))
def test_more_partitions_continue_as_if_made_at_once(case: tuple[list[int], int, int, int, int], first: int) -> None:
    brokers, partitions, factor, start, shift = case
    whole = assign_replicas(brokers, first + partitions, factor, start_index=start, shift=shift)
    rest = assign_replicas(brokers, partitions, factor, start_index=start, shift=shift, first_partition=first)
    assert rest == whole[first:]


def test_topics_of_one_partition_spread_too() -> None:
    leaders: list[int] = []
    for _ in range(9):
        start = least_leading([4, 5, 6], leaders)
        leaders.append(assign_replicas([4, 5, 6], 1, 2, start_index=start, shift=0)[0][0])
    assert Counter(leaders) == {4: 3, 5: 3, 6: 3}
