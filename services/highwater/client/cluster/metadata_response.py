"""A broker's Metadata answer, from the wire into what a client keeps."""

from __future__ import annotations

from hashlib import blake2b
from weakref import WeakValueDictionary

from highwater.client.cluster.metadata import BrokerInfo, MetadataAnswer, PartitionInfo, TopicError, TopicInfo
from highwater.errors import ErrorCode
from highwater.rpc.errors import from_proto
from highwater.v1 import broker_pb2

# What was read from the same bytes, for as long as somebody keeps it. An answer is mostly the one before, and the one
# that the other clients of the process have: of thousands of partitions each would make, and keep, as many objects.
_read: WeakValueDictionary[bytes, TopicInfo] = WeakValueDictionary()


def read_metadata_answer(response: broker_pb2.MetadataResponse) -> MetadataAnswer:
    """Topics with an error are `missing` ones."""
    topics = []
    missing = {}
    for topic in response.topics:
        code = from_proto(topic.error)
        if code is not ErrorCode.NONE:
            missing[topic.topic] = TopicError(code, topic.error.message)
        else:
            topics.append(_topic(topic))
    brokers = tuple(
        BrokerInfo(broker.broker_id, broker.broker_epoch, broker.address, broker.rack) for broker in response.brokers
    )
    return MetadataAnswer(
        response.cluster_id, brokers, tuple(topics), missing, response.controller_id, response.controller_address
    )


def _topic(topic: broker_pb2.TopicMetadata) -> TopicInfo:
    """Its partitions are put in the order of their numbers."""
    digest = blake2b(topic.SerializeToString(deterministic=True), digest_size=16).digest()
    found = _read.get(digest)
    if found is None:
        partitions = [
            PartitionInfo(
                partition.partition,
                partition.leader,
                partition.leader_epoch,
                tuple(partition.replicas),
                tuple(partition.isr),
                tuple(partition.offline_replicas),
            )
            for partition in sorted(topic.partitions, key=lambda partition: partition.partition)
        ]
        found = TopicInfo(topic.topic, topic.topic_id, tuple(partitions), dict(topic.config), topic.internal)
        _read[digest] = found
    return found
