"""Answers to Metadata, put together of topics that are serialised once and kept until they change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import grpc
import grpc.aio

from highwater.errors import ErrorCode
from highwater.model.topic_name import is_internal_topic
from highwater.records.varint import encode_unsigned_varint
from highwater.replica_manager.membership.topic_creation import CreationOutcome, TopicCreation
from highwater.replica_manager.replicas.metadata_cache import CachedPartition, CachedTopic, Endpoint, MetadataCache
from highwater.replica_manager.replicas.replica_manager import ReplicaManager
from highwater.replica_manager.server.partition_errors import unknown_topic_id
from highwater.rpc.connections.channel import MAX_MESSAGE_BYTES
from highwater.rpc.embedding import tag
from highwater.rpc.errors import to_proto
from highwater.rpc.listeners import Listener
from highwater.security.access import Access
from highwater.security.acls import Operation, ResourceType
from highwater.v1 import broker_pb2, common_pb2

UNKNOWN_TOPIC = CreationOutcome(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
MAX_ANSWER_BYTES = MAX_MESSAGE_BYTES - (1 << 20)
MIN_KEPT = 100  # topics whose messages are kept, whether or not they are still there

_TOPICS = tag(broker_pb2.MetadataResponse.TOPICS_FIELD_NUMBER)

Context = grpc.aio.ServicerContext[Any, Any]


class MetadataAnswers:
    """Of one listener, whose addresses are in them. What a client asks for costs no more than its bytes, however many
    ask: a topic is serialised anew after it has changed, and all are after a broker has come, gone or moved."""

    def __init__(
        self,
        replica_manager: ReplicaManager,
        topic_creation: TopicCreation,
        cluster_id: Callable[[], str],
        listener: Listener,
    ) -> None:
        self._replica_manager = replica_manager
        self._topic_creation = topic_creation
        self._cluster_id = cluster_id
        self._listener = listener
        self.serialised = 0  # topics so far
        self._reached: Mapping[int, Endpoint] = {}  # that everything kept was made of
        self._brokers = b""
        self._kept: dict[bytes, tuple[CachedTopic, bytes]] = {}  # by topic id

    async def answer(
        self, request: broker_pb2.MetadataRequest, context: Context, access: Access | None = None
    ) -> bytes:
        """A serialised MetadataResponse. Without the topics that `access` may not DESCRIBE, of those that are named
        each with an error, whether it is there or not."""
        cache = self._replica_manager.metadata
        if not cache.complete and (request.all_topics or request.topics or request.topic_ids):
            # What it does not know may be there all the same, and what it knows have more partitions (RULES 9.4).
            await context.abort(
                grpc.StatusCode.UNAVAILABLE, "the controller has not told this broker of all topics yet"
            )
        created: dict[str, CreationOutcome] = {}
        if self._topic_creation.enabled and request.allow_auto_topic_creation:
            missing = [name for name in dict.fromkeys(request.topics) if cache.by_name(name) is None]
            refused = {name: refusal for name in missing if (refusal := _creation_refusal(access, name)) is not None}
            created = refused | await self._topic_creation.create([name for name in missing if name not in refused])
        # Nothing is waited for from here on: the answer is that of one moment.
        out = [self._head(cache)]
        for topic in cache.topics() if request.all_topics else ():
            if access is None or access.may_topic(Operation.DESCRIBE, topic.topic):
                _embed(out, self._topic(topic))
        for name in dict.fromkeys(request.topics):  # a name is short, and a topic may be large
            named = cache.by_name(name)
            if access is not None and not access.may_topic(Operation.DESCRIBE, name):
                _embed(out, broker_pb2.TopicMetadata(topic=name, error=_refused(access, name)).SerializeToString())
            elif named is None:
                error = to_proto(*created.get(name, UNKNOWN_TOPIC))
                _embed(out, broker_pb2.TopicMetadata(topic=name, error=error).SerializeToString())
            else:
                _embed(out, self._topic(named))
        for topic_id in dict.fromkeys(request.topic_ids):
            identified = cache.by_id(topic_id)
            if identified is None:
                error = to_proto(ErrorCode.UNKNOWN_TOPIC_ID, unknown_topic_id(topic_id))
                _embed(out, broker_pb2.TopicMetadata(topic_id=topic_id, error=error).SerializeToString())
            elif access is not None and not access.may_topic(Operation.DESCRIBE, identified.topic):
                error = to_proto(ErrorCode.TOPIC_AUTHORIZATION_FAILED)  # the id alone does not tell the name
                _embed(out, broker_pb2.TopicMetadata(topic_id=topic_id, error=error).SerializeToString())
            else:
                _embed(out, self._topic(identified))
        if (size := sum(map(len, out))) > MAX_ANSWER_BYTES:
            message = f"the answer has {size} bytes: {MAX_ANSWER_BYTES} are the most, ask for fewer topics at a time"
            return broker_pb2.MetadataResponse(error=to_proto(ErrorCode.INVALID_REQUEST, message)).SerializeToString()
        return b"".join(out)

    def _head(self, cache: MetadataCache) -> bytes:
        """All but the topics."""
        reached = cache.reached_by(self._listener.name)
        if reached is not self._reached:
            self._reached = reached
            self._kept.clear()
            self._brokers = broker_pb2.MetadataResponse(
                brokers=[
                    common_pb2.BrokerEndpoint(
                        broker_id=broker.broker_id,
                        broker_epoch=broker.broker_epoch,
                        address=broker.address,
                        rack=broker.rack,
                    )
                    for broker in reached.values()
                ]
            ).SerializeToString()
        rest = broker_pb2.MetadataResponse(
            cluster_id=self._cluster_id(),
            controller_id=cache.controller_id,
            controller_address=cache.controller_address,
            broker_id=self._replica_manager.broker_id,
        )
        return self._brokers + rest.SerializeToString()

    def _topic(self, topic: CachedTopic) -> bytes:
        known, message = self._kept.get(topic.topic_id, (None, b""))
        if known is not topic:  # a change makes another object of it
            cache = self._replica_manager.metadata
            if len(self._kept) >= max(2 * cache.topic_count, MIN_KEPT):
                self._kept = {key: kept for key, kept in self._kept.items() if cache.by_id(key) is not None}
            message = self._serialise(topic, cache)
            self._kept[topic.topic_id] = (topic, message)
        return message

    def _serialise(self, topic: CachedTopic, cache: MetadataCache) -> bytes:
        self.serialised += 1
        return broker_pb2.TopicMetadata(
            topic=topic.topic,
            topic_id=topic.topic_id,
            partitions=[
                _partition_metadata(
                    number, partition, self._reached, _leader_error(partition.state.leader, cache, self._reached)
                )
                for number, partition in topic.numbered()
            ],
            config=dict(topic.config),
            internal=is_internal_topic(topic.topic),
        ).SerializeToString()


def _creation_refusal(access: Access | None, name: str) -> CreationOutcome | None:
    """None: the caller may have the topic made. Of one that it may not DESCRIBE it is told nothing, and makes none."""
    if access is None:
        return None
    may_create = access.may_cluster(Operation.CREATE) or access.may_topic(Operation.CREATE, name)
    if may_create and access.may_topic(Operation.DESCRIBE, name):
        return None
    message = access.refusal(Operation.CREATE, ResourceType.TOPIC, name)
    return CreationOutcome(ErrorCode.TOPIC_AUTHORIZATION_FAILED, message)


def _refused(access: Access, name: str) -> common_pb2.Error:
    message = access.refusal(Operation.DESCRIBE, ResourceType.TOPIC, name)
    return to_proto(ErrorCode.TOPIC_AUTHORIZATION_FAILED, message)


def _embed(out: list[bytes], message: bytes) -> None:
    out += (_TOPICS + encode_unsigned_varint(len(message)), message)


def _leader_error(leader: int, cache: MetadataCache, reached: Mapping[int, Endpoint]) -> ErrorCode:
    if leader in reached:
        return ErrorCode.NONE
    return ErrorCode.LISTENER_NOT_FOUND if leader in cache.brokers else ErrorCode.LEADER_NOT_AVAILABLE


def _partition_metadata(
    number: int, partition: CachedPartition, reached: Mapping[int, Endpoint], error: ErrorCode
) -> broker_pb2.PartitionMetadata:
    """A replica that the client's listener does not lead to is offline for it, as in Kafka."""
    state = partition.state
    return broker_pb2.PartitionMetadata(
        error=None if error is ErrorCode.NONE else to_proto(error),
        partition=number,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        replicas=partition.replicas,
        isr=state.isr,
        offline_replicas=[
            replica for replica in partition.replicas if replica not in reached or replica in partition.offline_replicas
        ],
    )
