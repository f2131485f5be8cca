"""RULES 4.8: a hot partition starves nobody."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from highwater.fetcher.follower.fetch_order import Rotation
from highwater.metadata.models import PartitionKey


def key(partition: int) -> PartitionKey:
    return PartitionKey(bytes(16), partition)


def rotation_of(count: int) -> Rotation:
    rotation = Rotation()
    for partition in range(count):
        rotation.add(key(partition))
    return rotation


def order(rotation: Rotation) -> list[int]:
    return [key.partition for key in rotation]


def test_partitions_are_asked_for_in_the_order_they_came() -> None:
    assert order(rotation_of(3)) == [0, 1, 2]


def test_who_returned_data_goes_to_the_end() -> None:
    rotation = rotation_of(3)
    rotation.returned_data(key(0))
    assert order(rotation) == [1, 2, 0]


def test_adding_again_keeps_the_place() -> None:
    rotation = rotation_of(3)
    rotation.add(key(1))
    assert order(rotation) == [0, 1, 2]


def test_data_for_a_removed_partition_does_not_bring_it_back() -> None:
    rotation = rotation_of(2)
    rotation.remove(key(0))
    rotation.returned_data(key(0))
    assert order(rotation) == [1]
    assert len(rotation) == 1


@given(partitions=st.integers(1, 12), room=st.integers(1, 4))
def test_with_every_partition_hot_each_is_served_equally(partitions: int, room: int) -> None:
    """A response has room for `room` partitions; all have data all the time."""
    rotation = rotation_of(partitions)
    served = dict.fromkeys(range(partitions), 0)
    for _ in range(partitions * 10):
        for partition in order(rotation)[:room]:
            served[partition] += 1
            rotation.returned_data(key(partition))
    assert max(served.values()) - min(served.values()) <= 1
