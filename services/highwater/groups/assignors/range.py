"""The range assignor: the same number of neighbouring partitions of every topic to each member.

Members stand in the order of their instance id, else their member id. Topics that have the same subscribers and the
same number of partitions are shared out alike, so that partitions of one number stand with one member (what joins by
key needs). Where racks are known, each member first gets, up to its share, partitions with a replica in its rack.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from highwater.groups.assignors.assignor import Subscriber, by_subscribers, racks_of
from highwater.groups.topics import Topic
from highwater.model.partition import PartitionKey


def assign_range(
    subscribers: Iterable[Subscriber], topics: Mapping[bytes, Topic]
) -> dict[str, frozenset[PartitionKey]]:
    members = {each.member_id: each for each in subscribers}
    found: dict[str, list[PartitionKey]] = {member_id: [] for member_id in members}
    for member_ids, topic_ids in by_subscribers(members.values()).items():
        ordered = sorted((members[member_id] for member_id in member_ids), key=_place)
        alike: dict[int, list[Topic]] = {}
        for topic_id in topic_ids:
            alike.setdefault(topics[topic_id].partitions, []).append(topics[topic_id])
        for partitions, same in alike.items():
            for member_id, numbers in _share(ordered, partitions, same):
                found[member_id] += [topic.keys[number] for topic in same for number in numbers]
    return {member_id: frozenset(keys) for member_id, keys in found.items()}


def _place(member: Subscriber) -> tuple[bool, str]:
    return (not member.instance_id, member.instance_id or member.member_id)


def _share(ordered: list[Subscriber], partitions: int, same: list[Topic]) -> list[tuple[str, list[int]]]:
    each, more = divmod(partitions, len(ordered))
    shares = [each + (place < more) for place in range(len(ordered))]
    taken: list[list[int]] = [[] for _ in ordered]
    free: dict[int, None] = dict.fromkeys(range(partitions))
    if any(member.rack for member in ordered) and all(topic.racks for topic in same):
        by_rack: dict[str, list[int]] = {}
        for number in range(partitions):
            for rack in frozenset.intersection(*(racks_of(topic, number) for topic in same)):
                by_rack.setdefault(rack, []).append(number)
        near = {rack: iter(numbers) for rack, numbers in by_rack.items()}
        for place, member in enumerate(ordered):
            for number in near.get(member.rack, ()) if shares[place] else ():
                if number in free:
                    del free[number]
                    taken[place].append(number)
                    if len(taken[place]) == shares[place]:
                        break
    rest = iter(free)
    for place, share in enumerate(shares):
        taken[place] += [next(rest) for _ in range(share - len(taken[place]))]
    return [(member.member_id, taken[place]) for place, member in enumerate(ordered)]
