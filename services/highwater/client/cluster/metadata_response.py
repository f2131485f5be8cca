"""A broker's Metadata answer, from the wire into what a client keeps."""

from __future__ import annotations

from highwater.client.cluster.metadata import BrokerInfo, MetadataAnswer, PartitionInfo, TopicError, TopicInfo
from highwater.errors import ErrorCode
from highwater.rpc.errors import from_proto
from highwater.v1 import broker_pb2


def read_metadata_answer(response: broker_pb2.MetadataResponse) -> MetadataAnswer:
    """Topics with an error are `missing` ones; partitions are put in the order of their numbers."""
    topics = []
    missing = {}
    for topic in response.topics:
        code = from_proto(topic.error)
        if code is not ErrorCode.NONE:
            missing[topic.topic] = TopicError(code, topic.error.message)
            continue
        found = [
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
        topics.append(TopicInfo(topic.topic, topic.topic_id, tuple(found), dict(topic.config), topic.internal))
    brokers = tuple(
        BrokerInfo(broker.broker_id, broker.broker_epoch, broker.address, broker.rack) for broker in response.brokers
    )
    return MetadataAnswer(
        response.cluster_id, brokers, tuple(topics), missing, response.controller_id, response.controller_address
    )
