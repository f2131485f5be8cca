"""Answers of the controller and of metadata as what `Admin` returns. Pure."""

from __future__ import annotations

from highwater.client.admin.descriptions import (
    BrokerDescription,
    ClusterDescription,
    PartitionDescription,
    TopicDescription,
    TopicResult,
)
from highwater.client.cluster.metadata import NO_LEADER, TopicInfo
from highwater.client.exceptions import HighwaterError, UnknownTopicError, error_for
from highwater.client.topic_partition import TopicPartition
from highwater.errors import ErrorCode
from highwater.rpc.errors import from_proto
from highwater.v1 import controller_pb2


def cluster_description(
    response: controller_pb2.DescribeClusterResponse, known_controller_id: int
) -> ClusterDescription:
    """`known_controller_id` is metadata's, for an answer that names none; -1: neither does it."""
    brokers = tuple(
        BrokerDescription(
            broker.endpoint.broker_id,
            broker.endpoint.broker_epoch,
            broker.endpoint.address,
            broker.endpoint.rack,
            broker.shutting_down,
            broker.tail_lost,
            broker.leaders,
            broker.replicas,
        )
        for broker in sorted(response.brokers, key=lambda broker: broker.endpoint.broker_id)
    )
    controller_id = response.controller.controller_id if response.HasField("controller") else -1
    if controller_id < 0:
        controller_id = known_controller_id
    return ClusterDescription(
        response.cluster_id,
        None if controller_id < 0 else controller_id,
        response.controller_epoch,
        brokers,
        response.topics,
        response.partitions,
        response.offline_partitions,
        response.under_replicated_partitions,
    )


def elections(response: controller_pb2.ElectLeadersResponse) -> dict[TopicPartition, HighwaterError | None]:
    """The outcomes by partition, without those that needed no election."""
    found: dict[TopicPartition, HighwaterError | None] = {}
    for result in response.results:
        code = from_proto(result.error)
        if code is not ErrorCode.ELECTION_NOT_NEEDED:
            error = None if code is ErrorCode.NONE else error_for(code, result.error.message)
            found[TopicPartition(result.partition.topic, result.partition.partition)] = error
    return found


def topic_result(result: controller_pb2.TopicResult) -> TopicResult:
    code = from_proto(result.error)
    error = None
    if code is not ErrorCode.NONE:
        message = result.error.message or f"topic {result.topic!r}: {code.name}"
        error = UnknownTopicError(message) if code is ErrorCode.UNKNOWN_TOPIC_ID else error_for(code, message)
    return TopicResult(result.topic, result.topic_id, result.partitions, result.replication_factor, error)


def topic_description(info: TopicInfo) -> TopicDescription:
    partitions = tuple(
        PartitionDescription(
            partition.partition,
            None if partition.leader == NO_LEADER else partition.leader,
            partition.leader_epoch,
            partition.replicas,
            partition.isr,
            partition.offline_replicas,
        )
        for partition in info.partitions
    )
    return TopicDescription(info.topic, info.topic_id, partitions, dict(info.config), info.internal)
