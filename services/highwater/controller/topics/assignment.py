"""The brokers that host new partitions: Kafka's rack-less balanced assignment. Pure.

The leaders go round the brokers from `start_index`; the followers of each partition go round the others, and every full
round shifts them by one more, so that a broker's followers are spread over all others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence


def assign_replicas(
    brokers: Sequence[int],
    partitions: int,
    replication_factor: int,
    *,
    start_index: int,
    shift: int,
    first_partition: int = 0,
) -> tuple[tuple[int, ...], ...]:
    """Replicas of `partitions` partitions, preferred leader first.

    `brokers` are distinct ids; 1 <= replication_factor <= len(brokers). `start_index` >= 0 is the broker that leads
    partition 0, `shift` >= 0 how far its followers stand from it. `first_partition` continues an existing topic: the
    result is what a topic made larger from the start would have got.
    """
    count = len(brokers)
    assert 1 <= replication_factor <= count
    assert partitions >= 0
    assigned = []
    for partition in range(first_partition, first_partition + partitions):
        round_shift = shift + partition // count
        first = (partition + start_index) % count
        followers = (_follower_index(first, round_shift, number, count) for number in range(replication_factor - 1))
        assigned.append((brokers[first], *(brokers[index] for index in followers)))
    return tuple(assigned)


def _follower_index(leader_index: int, shift: int, number: int, count: int) -> int:
    return (leader_index + 1 + (shift + number) % (count - 1)) % count


def continuation(brokers: Sequence[int], present: Sequence[Sequence[int]]) -> tuple[int, int]:
    """`start_index` and `shift` of `assign_replicas` that continue the round of a topic with these replicas.

    They are read off its first partition; where a broker of it is not among `brokers` any more, the round goes on
    beside the leader of the last one.
    """
    index = {broker: number for number, broker in enumerate(brokers)}
    count = len(brokers)
    leader, *followers = present[0]
    if leader in index:
        start = index[leader]
        shift = (index[followers[0]] - start - 1) % count if followers and followers[0] in index else 0
        return start, shift
    after = index.get(present[-1][0], -1) + 1
    return (after - len(present)) % count, 0


def least_leading(brokers: Sequence[int], preferred_leaders: Iterable[int]) -> int:
    """The index of the broker that is the preferred leader of the fewest partitions: where a new topic should start,
    so that many topics of one partition spread as one topic of many does."""
    load = Counter(preferred_leaders)
    return min(range(len(brokers)), key=lambda index: (load[brokers[index]], index))
