"""Looking up offsets while topics come and go."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from highwater.client.cluster.offset_lookup import lookup_offsets
from highwater.client.exceptions import LeaderNotAvailableError
from highwater.client.topic_partition import TopicPartition
from highwater.v1 import broker_pb2

EARLIEST = -2
PARTITION = TopicPartition("orders", 0)


class Vanishing:
    """A cluster whose only topic is deleted once its leader has been looked up, `times` times; then it is back."""

    request_timeout_s = 5.0

    def __init__(self, times: int) -> None:
        self.times = times
        self.refreshes = 0
        self.metadata = self

    async def topic_of(self, name: str, timeout_s: float) -> Any:
        return SimpleNamespace(partitions=[object()])

    def leader(self, topic: str, partition: int) -> Any:
        return self, 1

    def partition(self, topic: str, partition: int) -> Any:
        return None if self.times > 0 else SimpleNamespace(leader_epoch=3)

    def topic(self, *arguments: Any) -> Any:
        return self.topic_of(*arguments) if len(arguments) == 2 else SimpleNamespace(topic_id=bytes(16))

    def request_refresh(self) -> None:
        self.refreshes += 1
        self.times -= 1

    # As a connection.

    stub = SimpleNamespace(ListOffsets=None)

    async def call(self, method: object, request: Any, timeout_s: float) -> broker_pb2.ListOffsetsResponse:
        results = [broker_pb2.ListOffsetsResult(offset=7, timestamp=-1, leader_epoch=3) for _ in request.partitions]
        return broker_pb2.ListOffsetsResponse(results=results)


async def test_a_topic_that_vanishes_between_its_leader_and_the_request_is_looked_for_again() -> None:
    cluster: Any = Vanishing(times=1)
    found = await lookup_offsets(cluster, {PARTITION: EARLIEST}, 5)
    assert found[PARTITION].offset == 7
    assert cluster.refreshes == 1


async def test_one_that_stays_away_is_an_error_that_may_be_retried() -> None:
    cluster: Any = Vanishing(times=1_000)
    with pytest.raises(LeaderNotAvailableError, match="orders-0"):
        await lookup_offsets(cluster, {PARTITION: EARLIEST}, 0.1)
