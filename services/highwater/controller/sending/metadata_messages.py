"""UpdateMetadata requests, put together of what is serialised once for all brokers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from highwater.controller.sending import wire
from highwater.controller.sending.metadata_outbox import MetadataBatch, TopicSlice
from highwater.controller.state_machines.partition_state_machine import PartitionStateMachine
from highwater.controller.state_machines.topic_table import Topic, TopicTable
from highwater.metadata.schema.models import VersionedState
from highwater.model.partition import PartitionKey
from highwater.records.varint import encode_unsigned_varint
from highwater.rpc.embedding import tag
from highwater.v1 import replica_control_pb2

MAX_CHANGED = 20_000  # partitions whose message is kept after they changed

_TOPICS = tag(replica_control_pb2.UpdateMetadataRequest.TOPICS_FIELD_NUMBER)
_PARTITIONS = tag(replica_control_pb2.TopicState.PARTITIONS_FIELD_NUMBER)


@dataclass(slots=True)
class _TopicMessage:
    """Of one topic, with the configuration that it had."""

    topic: Topic
    config: Mapping[str, str]
    head: bytes  # all but the partitions
    slices: dict[TopicSlice, tuple[int, bytes]] = field(default_factory=dict)  # with the version of the topic


class _PartitionMessage(NamedTuple):
    versioned: VersionedState
    offline_changes: int
    message: bytes


class MetadataMessages:
    """One for all senders: what a partition costs does not grow with the brokers that are told of it."""

    def __init__(self) -> None:
        self.serialised = 0  # partitions so far
        self._requests = 0  # so far, to all brokers: their order (RULES 8.10)
        self._topics: dict[bytes, _TopicMessage] = {}
        self._changed: dict[PartitionKey, _PartitionMessage] = {}

    def request(
        self, head: replica_control_pb2.UpdateMetadataRequest, batch: MetadataBatch, table: TopicTable
    ) -> bytes:
        """A serialised UpdateMetadataRequest: `head` without its topics, and those of the batch as they are now."""
        topics = [topic for topic in table if topic.deletion is None] if batch.full else []
        if batch.full:
            self._forget_others(topics)
        self._requests += 1
        head.sequence = self._requests
        out = [head.SerializeToString()]
        for topic in topics:
            _embed(out, self._of(topic).head)
        for each in batch.slices:
            sliced = table.identified(each.topic_id)
            if sliced is not None and sliced.deletion is None:
                _embed(out, self._slice(sliced, each))
        by_topic: dict[bytes, list[PartitionStateMachine]] = defaultdict(list)
        for partition in table.partitions(batch.keys):
            by_topic[partition.key.topic_id].append(partition)
        for topic_id, partitions in by_topic.items():
            changed = table.identified(topic_id)
            if changed is not None and changed.deletion is None:
                _embed(out, self._of(changed).head + b"".join(map(self._partition, partitions)))
        return b"".join(out)

    def _forget_others(self, topics: Sequence[Topic]) -> None:
        present = {topic.topic_id for topic in topics}
        for topic_id in self._topics.keys() - present:
            del self._topics[topic_id]

    def _of(self, topic: Topic) -> _TopicMessage:
        known = self._topics.get(topic.topic_id)
        if known is None or known.topic is not topic or known.config is not topic.config:
            head = replica_control_pb2.TopicState(topic=topic.name, topic_id=topic.topic_id, config=topic.config)
            known = self._topics[topic.topic_id] = _TopicMessage(topic, topic.config, head.SerializeToString())
        return known

    def _slice(self, topic: Topic, wanted: TopicSlice) -> bytes:
        message = self._of(topic)
        version, made = message.slices.get(wanted, (-1, b""))
        if version != topic.version:
            made = message.head + b"".join(map(self._serialise, topic.partitions[wanted.begin : wanted.end]))
            message.slices[wanted] = (topic.version, made)
        return made

    def _partition(self, partition: PartitionStateMachine) -> bytes:
        versioned, known = partition.versioned, self._changed.get(partition.key)
        if versioned is None:
            return b""
        if known is None or known.versioned is not versioned or known.offline_changes != partition.offline_changes:
            if len(self._changed) >= MAX_CHANGED:
                self._changed.clear()
            known = _PartitionMessage(versioned, partition.offline_changes, self._serialise(partition))
            self._changed[partition.key] = known
        return known.message

    def _serialise(self, partition: PartitionStateMachine) -> bytes:
        """As it stands in its topic's message; empty where it has no state yet."""
        if partition.versioned is None:
            return b""
        self.serialised += 1
        message = wire.indexed_state(partition).SerializeToString()
        return _PARTITIONS + encode_unsigned_varint(len(message)) + message


def _embed(out: list[bytes], message: bytes) -> None:
    out += (_TOPICS + encode_unsigned_varint(len(message)), message)
