"""The traffic of each topic at this broker: Kafka's `BrokerTopicMetrics`. Counted by the event loop, read by whoever
reads the metrics; gone with the broker's last partition of the topic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

MAX_TOPICS = 1_000
OTHERS = "(others)"  # no topic's name: those beyond the limit together


@dataclass(slots=True)
class Traffic:
    """Of one topic, since it came to this broker."""

    bytes_in: int = 0  # that producers sent and log-storage took
    messages_in: int = 0
    failed_produces: int = 0  # partitions of requests that were answered with an error
    bytes_out: int = 0  # to consumers
    replication_bytes_out: int = 0  # to replicas
    failed_fetches: int = 0
    partitions: int = 0  # hosted here


class TopicTraffic:
    """At most `max_topics` topics have numbers of their own, who comes first; all others are counted together."""

    def __init__(self, max_topics: int = MAX_TOPICS) -> None:
        self._max_topics = max_topics
        self._topics: dict[str, Traffic] = {}
        self._others = Traffic()

    def hosted(self, topic: str) -> Traffic:
        """A partition of the topic is hosted from now on."""
        traffic = self._topics.get(topic)
        if traffic is None:
            if len(self._topics) >= self._max_topics:
                return self._others
            traffic = self._topics[topic] = Traffic()
        traffic.partitions += 1
        return traffic

    def evicted(self, topic: str, traffic: Traffic) -> None:
        """A partition that `hosted` gave this for is hosted no more."""
        if traffic is self._others:
            return
        traffic.partitions -= 1
        if traffic.partitions == 0:
            del self._topics[topic]

    def values(self, name: str) -> Iterator[tuple[Sequence[str], float]]:
        """One of the numbers, by topic."""
        value = attrgetter(name)
        yield from [((topic,), float(value(traffic))) for topic, traffic in list(self._topics.items())]
        yield (OTHERS,), float(value(self._others))
