"""The broker's state by Kafka's numbers, and the traffic of its topics."""

from __future__ import annotations

import pytest

from highwater.replica_manager.membership.broker_state import Stage, broker_state
from highwater.replica_manager.replicas.topic_traffic import OTHERS, TopicTraffic


@pytest.mark.parametrize(
    ("stage", "registered", "logs_opening", "state"),
    [
        (Stage.SERVING, False, False, 1),
        (Stage.SERVING, False, True, 2),
        (Stage.SERVING, True, True, 3),  # what was asked before the registration
        (Stage.SERVING, True, False, 3),
        (Stage.LEAVING, True, False, 6),
        (Stage.LEAVING, False, True, 6),
        (Stage.STOPPING, True, False, 7),
        (Stage.STOPPING, False, False, 7),
    ],
)
def test_the_state(stage: Stage, registered: bool, logs_opening: bool, state: int) -> None:
    assert broker_state(stage, registered=registered, logs_opening=logs_opening) == state


def test_topics_beyond_the_limit_are_counted_together() -> None:
    topics = TopicTraffic(2)
    first, second, third = (topics.hosted(name) for name in ("a", "b", "c"))
    assert topics.hosted("a") is first
    for number, traffic in enumerate((first, second, third), 1):
        traffic.bytes_in += number
    assert dict(topics.values("bytes_in")) == {("a",): 1, ("b",): 2, (OTHERS,): 3}
    topics.evicted("c", third)
    topics.evicted("a", first)
    assert ("a",) in dict(topics.values("bytes_in"))  # another of its partitions is here
    topics.evicted("a", first)
    assert dict(topics.values("bytes_in")) == {("b",): 2, (OTHERS,): 3}
    assert topics.hosted("c") is not third  # there is room again
    assert dict(topics.values("bytes_in")) == {("b",): 2, ("c",): 0, (OTHERS,): 3}


def test_without_topics_all_are_counted_together() -> None:
    topics = TopicTraffic(0)
    topics.hosted("a").messages_in += 5
    assert dict(topics.values("messages_in")) == {(OTHERS,): 5}
