"""A producer of a topic with thousands of partitions keeps, and looks at, those that it sends to."""

from __future__ import annotations

from typing import Any

import pytest

from highwater.client import Producer
from highwater.client.cluster.metadata import PartitionInfo, TopicInfo
from highwater.client.producer.accumulator import TopicAccumulator

PARTITIONS = 10_000


class Metadata:
    def __init__(self, led: set[int]) -> None:
        self.led = led
        self.asked = 0

    def leader_address(self, topic: str, partition: int) -> str | None:
        self.asked += 1
        return "b1:1" if partition in self.led else None


def producer_of(metadata: Metadata) -> tuple[Producer, TopicAccumulator]:
    producer = Producer("127.0.0.1:1")
    producer._cluster.metadata = metadata  # type: ignore[assignment]
    producer._sender.activate = lambda accumulator: None  # type: ignore[method-assign]
    partitions = tuple(PartitionInfo(number, 1, 1) for number in range(PARTITIONS))
    return producer, producer._new_accumulator(TopicInfo("t", b"t" * 16, partitions))


async def test_only_partitions_that_are_sent_to_are_kept() -> None:
    _, topic = producer_of(Metadata(set(range(PARTITIONS))))
    made: list[int] = []
    queue_of = topic._queue_of

    def counted(name: str, partition: int) -> Any:
        made.append(partition)
        return queue_of(name, partition)

    topic._queue_of = counted
    for _ in range(3):
        for partition in (9_999, 7):
            topic.append(b"v", None, None, None, partition)
    assert made == [9_999, 7]
    assert topic.partitions == PARTITIONS


@pytest.mark.parametrize("led", [set(range(PARTITIONS)), set(range(0, PARTITIONS, 2)), {4_711}, set()])
async def test_the_partition_of_a_record_without_a_key_is_led_where_one_is(led: set[int]) -> None:
    metadata = Metadata(led)
    producer, topic = producer_of(metadata)
    chosen = {producer._choose_partition(topic) for _ in range(20)}
    assert chosen <= (led or set(range(PARTITIONS)))
    if len(led) == PARTITIONS:
        assert metadata.asked == 20  # not of all of them, each time
        assert len(chosen) > 10
