"""The cluster as the controller told this broker of it: brokers, topics, leaders. Answers Metadata requests. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice, takewhile
from types import MappingProxyType
from typing import NamedTuple

from highwater.metadata.schema.models import NO_LEADER, PartitionState
from highwater.model.partition import PartitionKey

KEPT_DELETED = 10_000  # ids of deleted topics, the last ones: an instruction that names one is not long under way


class Term(NamedTuple):
    """In which one controller tells one registration what is. Whatever is deleted in it, it says by its id."""

    controller_epoch: int
    broker_epoch: int | None


class Endpoint(NamedTuple):
    """The address of a broker that is registered under `broker_epoch`."""

    broker_id: int
    broker_epoch: int
    address: str  # of the internal listener
    rack: str
    listeners: Mapping[str, str] = MappingProxyType({})  # addresses by name; empty: one from before there were any

    def reached_by(self, listener: str) -> Endpoint | None:
        """As those who came in by that listener are to reach it, `address` being the listener's; None: they cannot."""
        if not self.listeners:
            return self  # its one address is everybody's
        address = self.listeners.get(listener)
        return None if address is None else self._replace(address=address)


@dataclass(frozen=True, slots=True)
class CachedPartition:
    state: PartitionState
    revision: int  # state revision (RULES 1.3)
    replicas: tuple[int, ...]  # the assignment, preferred leader first
    offline_replicas: tuple[int, ...] = ()  # whose logs are offline (RULES 7.7)

    @property
    def order(self) -> tuple[int, int]:
        return (self.state.leader_epoch, self.revision)


@dataclass(frozen=True, slots=True)
class CachedTopic:
    """Never changed but by the cache that it is in: a change makes it another object, with the same `partitions`."""

    topic: str
    topic_id: bytes
    config: Mapping[str, str]
    partitions: dict[int, CachedPartition] = field(default_factory=dict)

    def numbered(self) -> list[tuple[int, CachedPartition]]:
        """The partitions in order, up to the first that is not known yet: clients take their number for the topic's,
        and while partitions are being added they may become known in any order."""
        return [(number, self.partitions[number]) for number in takewhile(self.partitions.__contains__, count())]


class MetadataCache:
    """Filled by UpdateMetadata and LeaderAndIsr. Every topic is kept under its id (RULES 1.1); a name leads to the
    newest topic of that name."""

    def __init__(self) -> None:
        self.controller_id = NO_LEADER
        self.controller_address = ""
        self.brokers: dict[int, Endpoint] = {}
        self._told = (-1, 0)  # (controller epoch, sequence) of the request taken last
        self.complete = False  # whether the controller has told of everything since this broker's start
        self.listeners: list[Callable[[Collection[str]], None]] = []  # told the names of topics that changed or went
        self._reached_by: dict[str, dict[int, Endpoint]] = {}  # by listener, of `brokers` as they are
        self._topics: dict[bytes, CachedTopic] = {}
        self._ids: dict[str, bytes] = {}
        self._deleted: dict[bytes, None] = {}  # in the order of their deletions
        self._instructed: dict[bytes, Term] = {}  # topics of instructions: the term of the last one

    def set_controller(self, controller_id: int, address: str) -> None:
        self.controller_id = controller_id
        if address:
            self.controller_address = address

    def set_brokers(self, brokers: Iterable[Endpoint]) -> None:
        """All that are registered, from etcd."""
        self.brokers = {broker.broker_id: broker for broker in brokers}
        self._reached_by = {}

    def add_brokers(self, brokers: Iterable[Endpoint]) -> None:
        """From the controller, which may know of a registration earlier; who is gone, etcd says."""
        for broker in brokers:
            if self.lacks(broker.broker_id, broker.broker_epoch):
                self.brokers[broker.broker_id] = broker
                self._reached_by = {}

    def lacks(self, broker_id: int, broker_epoch: int) -> bool:
        """Tells whether this registration is newer than what is known."""
        known = self.brokers.get(broker_id)
        return known is None or known.broker_epoch < broker_epoch

    def reached_by(self, listener: str) -> Mapping[int, Endpoint]:
        """The brokers that have this listener, `address` being the listener's."""
        found = self._reached_by.get(listener)
        if found is None:
            reached = (broker.reached_by(listener) for broker in self.brokers.values())
            found = {broker.broker_id: broker for broker in reached if broker is not None}
            self._reached_by[listener] = found
        return found

    def in_order(self, controller_epoch: int, sequence: int) -> bool:
        """Tells whether a request is newer than all that were taken, as it is taken then. One that comes late would
        forget topics that were made since, or bring those back that are gone (RULES 8.10). Sequence 0 has no order."""
        if sequence and (controller_epoch, sequence) <= self._told:
            return False
        self._told = max(self._told, (controller_epoch, sequence))
        return True

    def update(
        self,
        topics: Sequence[CachedTopic],
        *,
        full: bool,
        deleted: Iterable[bytes] = (),
        term: Term | None = None,
    ) -> None:
        """Takes what changed, or with `full` all there is. A partition's older state never replaces a newer one
        (RULES 1.3), nor does an older topic take its name from a newer one. What an instruction of the same term has
        told of may have been made since the request was: it is not forgotten (RULES 8.10)."""
        changed = {topic.topic for topic in topics}
        if full:
            self.complete = True
            self._instructed = {each: told for each, told in self._instructed.items() if told == term}
            named = {topic.topic_id for topic in topics}
            changed |= self._forget(self._topics.keys() - named - self._instructed.keys())
        for topic in topics:
            known = self._topics.get(topic.topic_id)
            if known is not None and known.topic != topic.topic:
                continue  # an id has one name: who gives it another is no controller of ours
            # They stay where they are: a copy of all for each that changes would be a square of their number.
            partitions: dict[int, CachedPartition] = {} if known is None else known.partitions
            for number, partition in topic.partitions.items():
                old = partitions.get(number)
                if old is None or partition.order >= old.order:
                    partitions[number] = partition
            self._topics[topic.topic_id] = replace(topic, partitions=partitions)
            if self._is_newest(self._topics[topic.topic_id]):
                self._ids[topic.topic] = topic.topic_id
            self._deleted.pop(topic.topic_id, None)  # in an etcd that was made again it is there again
        gone = dict.fromkeys(deleted)
        changed |= self._forget(set(gone))
        self._deleted |= gone
        for topic_id in list(islice(self._deleted, max(len(self._deleted) - KEPT_DELETED, 0))):
            del self._deleted[topic_id]
        for listener in self.listeners:
            listener(changed)

    def learn(self, topics: Iterable[CachedTopic], term: Term) -> None:
        """Takes what an instruction says. It may have been under way for seconds, while its logs were made: nobody
        would say once more that a topic was deleted meanwhile."""
        there = [topic for topic in topics if topic.topic_id not in self._deleted]
        self._instructed |= dict.fromkeys((topic.topic_id for topic in there), term)
        self.update(there, full=False)

    def _is_newest(self, topic: CachedTopic) -> bool:
        """Of its name. All that was ever written of a topic was written before another one of its name was made."""
        known = self._topics.get(self._ids.get(topic.topic, b""))
        if known is None or known.topic_id == topic.topic_id or not topic.partitions:
            return True
        return _last_revision(topic) >= _last_revision(known)

    def _forget(self, topic_ids: set[bytes]) -> set[str]:
        names = set()
        for topic_id in topic_ids:
            gone = self._topics.pop(topic_id, None)
            self._instructed.pop(topic_id, None)
            if gone is not None and self._ids.get(gone.topic) == topic_id:
                del self._ids[gone.topic]
                names.add(gone.topic)
        return names

    @property
    def topic_count(self) -> int:
        return len(self._topics)

    def topics(self) -> list[CachedTopic]:
        return [self._topics[topic_id] for _, topic_id in sorted(self._ids.items())]

    def by_name(self, topic: str) -> CachedTopic | None:
        topic_id = self._ids.get(topic)
        return None if topic_id is None else self._topics[topic_id]

    def partition_count(self, topic: str) -> int:
        """Of the newest topic of that name; 0: none is known."""
        found = self.by_name(topic)
        return 0 if found is None else len(found.partitions)

    def by_id(self, topic_id: bytes) -> CachedTopic | None:
        return self._topics.get(topic_id)

    def leader(self, key: PartitionKey) -> tuple[int, int]:
        """(leader, leader epoch) as known here, (-1, -1) where nothing is."""
        topic = self._topics.get(key.topic_id)
        partition = None if topic is None else topic.partitions.get(key.partition)
        return (NO_LEADER, -1) if partition is None else (partition.state.leader, partition.state.leader_epoch)


def _last_revision(topic: CachedTopic) -> int:
    return max((partition.revision for partition in topic.partitions.values()), default=-1)
