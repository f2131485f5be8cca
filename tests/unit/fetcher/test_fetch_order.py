"""RULES 4.8: a hot partition starves nobody."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from highwater.fetcher.follower.fetch_order import FetchOrder
from highwater.model.partition import PartitionKey


def key(partition: int) -> PartitionKey:
    return PartitionKey(bytes(16), partition)


def fetch_order_of(count: int) -> FetchOrder:
    fetch_order = FetchOrder()
    for partition in range(count):
        fetch_order.add(key(partition))
    return fetch_order


def order(fetch_order: FetchOrder) -> list[int]:
    return [key.partition for key in fetch_order]


def test_partitions_are_asked_for_in_the_order_they_came() -> None:
    assert order(fetch_order_of(3)) == [0, 1, 2]


def test_who_returned_data_goes_to_the_end() -> None:
    fetch_order = fetch_order_of(3)
    fetch_order.returned_data(key(0))
    assert order(fetch_order) == [1, 2, 0]


def test_adding_again_keeps_the_place() -> None:
    fetch_order = fetch_order_of(3)
    fetch_order.add(key(1))
    assert order(fetch_order) == [0, 1, 2]


def test_data_for_a_removed_partition_does_not_bring_it_back() -> None:
    fetch_order = fetch_order_of(2)
    fetch_order.remove(key(0))
    fetch_order.returned_data(key(0))
    assert order(fetch_order) == [1]
    assert len(fetch_order) == 1


@given(partitions=st.integers(1, 12), room=st.integers(1, 4))
def test_with_every_partition_hot_each_is_served_equally(partitions: int, room: int) -> None:
    """A response has room for `room` partitions; all have data all the time."""
    fetch_order = fetch_order_of(partitions)
    served = dict.fromkeys(range(partitions), 0)
    for _ in range(partitions * 10):
        for partition in order(fetch_order)[:room]:
            served[partition] += 1
            fetch_order.returned_data(key(partition))
    assert max(served.values()) - min(served.values()) <= 1
