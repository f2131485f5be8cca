"""The topics that the controller knows, by name, by id and by who hosts them. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from highwater.controller.state_machines.election import ElectionPolicy
from highwater.controller.state_machines.isr_index import IsrIndex
from highwater.controller.state_machines.partition_state_machine import PartitionStateMachine
from highwater.controller.state_machines.topic_deletion import TopicDeletion
from highwater.metadata.schema.models import VersionedState, VersionedTopic
from highwater.model.partition import PartitionKey


@dataclass(slots=True)
class Topic:
    versioned: VersionedTopic
    config: Mapping[str, str]
    partitions: tuple[PartitionStateMachine, ...]
    deletion: TopicDeletion | None = None
    version: int = 0  # counts what changes of its partitions, as brokers are told of them

    @property
    def name(self) -> str:
        return self.versioned.assignment.topic

    @property
    def topic_id(self) -> bytes:
        return self.versioned.assignment.topic_id

    def policy(self, defaults: ElectionPolicy) -> ElectionPolicy:
        minimum = self.config.get("min.insync.replicas", "")
        unclean = self.config.get("unclean.leader.election.enable")
        return ElectionPolicy(
            int(minimum) if minimum.isdecimal() else defaults.min_insync_replicas,
            defaults.unclean_leader_election_enable if unclean is None else unclean == "true",
        )


class TopicTable:
    """One topic a name. Iteration gives the topics, those being deleted too."""

    def __init__(self) -> None:
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[bytes, Topic] = {}
        self._hosted: dict[int, dict[PartitionKey, PartitionStateMachine]] = defaultdict(dict)
        self._deleting: dict[bytes, Topic] = {}
        self.isrs = IsrIndex()

    def __iter__(self) -> Iterator[Topic]:
        return iter(list(self._by_name.values()))

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def deleting(self) -> list[Topic]:
        """Those that are being deleted."""
        return list(self._deleting.values())

    def named(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def identified(self, topic_id: bytes) -> Topic | None:
        return self._by_id.get(topic_id)

    def partition(self, key: PartitionKey) -> PartitionStateMachine | None:
        topic = self._by_id.get(key.topic_id)
        return topic.partitions[key.partition] if topic and 0 <= key.partition < len(topic.partitions) else None

    def partitions(self, keys: Iterable[PartitionKey] | None = None) -> list[PartitionStateMachine]:
        """Those of the keys that exist, or all there are."""
        if keys is None:
            return [partition for topic in self._by_name.values() for partition in topic.partitions]
        return [found for found in map(self.partition, keys) if found is not None]

    def hosted(self, broker_id: int) -> Mapping[PartitionKey, PartitionStateMachine]:
        """The partitions that the broker is assigned."""
        return self._hosted.get(broker_id, {})

    def add(self, versioned: VersionedTopic, config: Mapping[str, str]) -> Topic:
        """The topic, as known or new, with the partitions that were added to it; its configuration is replaced."""
        assignment = versioned.assignment
        topic = self._by_name.get(assignment.topic)
        if topic is None:
            topic = Topic(versioned, config, ())
            self._by_name[assignment.topic] = topic
            self._by_id[assignment.topic_id] = topic
        assert topic.topic_id == assignment.topic_id  # RULES 1.1: another id is another topic
        topic.versioned = versioned
        topic.config = config
        added = tuple(
            PartitionStateMachine(assignment.topic, PartitionKey(assignment.topic_id, number), replicas)
            for number, replicas in enumerate(assignment.replicas)
            if number >= len(topic.partitions)
        )
        topic.partitions += added
        topic.version += len(added)
        for partition in added:
            for broker_id in partition.replicas:
                self._hosted[broker_id][partition.key] = partition
        return topic

    def seen(self, partition: PartitionStateMachine, versioned: VersionedState) -> bool:
        """As `PartitionStateMachine.seen`: takes a state that was read, watched or written."""
        before = partition.versioned
        news = partition.seen(versioned)
        topic = self._by_id.get(partition.key.topic_id)
        if topic is not None and partition.versioned is not before:
            topic.version += 1
        if topic is not None and topic.deletion is None and partition.versioned is not None:
            self.isrs.put(partition.key, partition.replicas, partition.versioned.state)
        return news

    def offline_changed(self, partition: PartitionStateMachine) -> None:
        """Its `offline_replicas` are others than before."""
        partition.offline_changes += 1
        topic = self._by_id.get(partition.key.topic_id)
        if topic is not None:
            topic.version += 1

    def begin_deletion(self, topic: Topic, deletion: TopicDeletion) -> None:
        topic.deletion = deletion
        self._deleting[topic.topic_id] = topic
        for partition in topic.partitions:
            self.isrs.remove(partition.key, partition.replicas)

    def check_invariants(self) -> None:
        """Asserted in scenarios and simulated runs."""
        for broker_id, hosted in self._hosted.items():
            inside: set[PartitionKey] = set()
            outside: set[PartitionKey] = set()
            for key, partition in hosted.items():
                topic = self._by_id[key.topic_id]
                if topic.deletion is None and partition.versioned is not None:
                    (inside if broker_id in partition.versioned.state.isr else outside).add(key)
            assert (set(self.isrs.members(broker_id)), set(self.isrs.outside(broker_id))) == (inside, outside)

    def remove(self, name: str) -> Topic | None:
        topic = self._by_name.pop(name, None)
        if topic is None:
            return None
        del self._by_id[topic.topic_id]
        self._deleting.pop(topic.topic_id, None)
        for partition in topic.partitions:
            self.isrs.remove(partition.key, partition.replicas)
            for broker_id in partition.replicas:
                del self._hosted[broker_id][partition.key]
        return topic
