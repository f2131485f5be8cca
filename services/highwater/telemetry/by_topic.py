"""Numbers by topic, of as many topics as a registry is to have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

MAX_TOPICS = 20
OTHERS = "(others)"  # no topic's name: those beyond the limit together


def partitions_by_topic(topics: Iterable[str], most: int = MAX_TOPICS) -> Iterator[tuple[Sequence[str], float]]:
    """The number of partitions of each topic, given the topic of each; of the `most` that have most."""
    ranked = Counter(topics).most_common()
    for topic, count in ranked[:most]:
        yield (topic,), float(count)
    if more := sum(count for _, count in ranked[most:]):
        yield (OTHERS,), float(more)
