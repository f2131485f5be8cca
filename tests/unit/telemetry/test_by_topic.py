"""Numbers by topic, of a bounded number of topics."""

from __future__ import annotations

from highwater.telemetry.by_topic import OTHERS, partitions_by_topic


def test_the_topics_with_most_partitions_have_their_own_number() -> None:
    topics = 3 * ["a"] + 2 * ["b"] + ["c", "d"]
    assert list(partitions_by_topic(topics, most=2)) == [(("a",), 3.0), (("b",), 2.0), ((OTHERS,), 2.0)]
    assert list(partitions_by_topic(topics)) == [(("a",), 3.0), (("b",), 2.0), (("c",), 1.0), (("d",), 1.0)]
    assert not list(partitions_by_topic([]))
