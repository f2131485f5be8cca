"""The form of every assignor: subscribers and topics in, a target assignment out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from highwater.groups.topics import Topic
from highwater.model.partition import PartitionKey


@dataclass(frozen=True, slots=True)
class Subscriber:
    member_id: str
    topic_ids: frozenset[bytes]  # of topics that exist
    target: frozenset[PartitionKey] = frozenset()  # that it was to have before
    instance_id: str = ""
    rack: str = ""


Assignor: TypeAlias = Callable[[Iterable[Subscriber], Mapping[bytes, Topic]], dict[str, frozenset[PartitionKey]]]


def racks_of(topic: Topic, partition: int) -> frozenset[str]:
    """The racks of a partition's replicas; empty where they are not known."""
    return topic.racks[partition] if partition < len(topic.racks) else frozenset()


def by_subscribers(subscribers: Iterable[Subscriber]) -> dict[tuple[str, ...], list[bytes]]:
    """The topics that the same members subscribe to, by those members in ascending order; the topics are sorted."""
    members: dict[bytes, list[str]] = {}
    # Most members of a group subscribe to the same: what they have in common is taken apart once.
    same: dict[frozenset[bytes], list[str]] = {}
    for subscriber in subscribers:
        same.setdefault(subscriber.topic_ids, []).append(subscriber.member_id)
    for topic_ids, member_ids in same.items():
        for topic_id in topic_ids:
            members.setdefault(topic_id, []).extend(member_ids)
    classes: dict[tuple[str, ...], list[bytes]] = {}
    for topic_id in sorted(members):
        classes.setdefault(tuple(sorted(members[topic_id])), []).append(topic_id)
    return classes
