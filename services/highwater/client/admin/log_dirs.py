"""Log directories of brokers, each asked of its broker."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from highwater.client.admin.descriptions import LogDirDescription, LogDirReplica
from highwater.client.cluster.cluster import Cluster
from highwater.client.cluster.connection import check_whole
from highwater.client.exceptions import HighwaterError, InvalidRequestError, error_for
from highwater.client.topic_partition import TopicPartition
from highwater.errors import ErrorCode
from highwater.rpc.errors import from_proto
from highwater.v1 import broker_pb2, common_pb2

Replica = tuple[TopicPartition, int]  # and the broker


async def describe_log_dirs(cluster: Cluster, brokers: Sequence[int] | None) -> list[LogDirDescription]:
    """Log directories by broker and path. Raises `InvalidRequestError` for a broker that is not there."""
    wanted = sorted(cluster.metadata.brokers) if brokers is None else list(brokers)
    described = await asyncio.gather(*(_describe(cluster, broker) for broker in wanted))
    return [log_dir for of_broker in described for log_dir in of_broker]


async def _describe(cluster: Cluster, broker: int) -> list[LogDirDescription]:
    connection = cluster.connection(_address(cluster, broker))
    response = await connection.call(
        connection.stub.DescribeLogDirs, broker_pb2.DescribeLogDirsRequest(), cluster.request_timeout_s
    )
    code = from_proto(response.error)
    if code is not ErrorCode.NONE:
        raise error_for(code, f"broker {broker}: {response.error.message}")
    return [_log_dir(broker, log_dir) for log_dir in sorted(response.log_dirs, key=lambda log_dir: log_dir.path)]


async def alter_replica_log_dirs(
    cluster: Cluster, moves: Mapping[Replica, str]
) -> dict[Replica, HighwaterError | None]:
    """The topics' ids must be in the metadata. What became of each move: None, or why it was refused."""
    by_broker: dict[int, list[tuple[TopicPartition, str]]] = {}
    for (partition, broker), path in moves.items():
        by_broker.setdefault(broker, []).append((partition, path))
    asked = [(broker, cluster.connection(_address(cluster, broker)), wanted) for broker, wanted in by_broker.items()]
    responses = await asyncio.gather(
        *(
            connection.call(connection.stub.AlterReplicaLogDirs, _request(cluster, wanted), cluster.request_timeout_s)
            for _, connection, wanted in asked
        )
    )
    outcomes: dict[Replica, HighwaterError | None] = {}
    for (broker, _, wanted), response in zip(asked, responses, strict=True):
        check_whole(response)
        for (partition, _), result in zip(wanted, response.results, strict=True):
            code = from_proto(result.error)
            failed = code is not ErrorCode.NONE
            outcomes[partition, broker] = error_for(code, result.error.message) if failed else None
    return outcomes


def _request(cluster: Cluster, moves: Sequence[tuple[TopicPartition, str]]) -> Any:
    request = broker_pb2.AlterReplicaLogDirsRequest()
    for (topic, partition), path in moves:
        info = cluster.metadata.topic(topic)
        assert info is not None
        request.moves.add(partition=common_pb2.PartitionKey(topic_id=info.topic_id, partition=partition), log_dir=path)
    return request


def _address(cluster: Cluster, broker: int) -> str:
    found = cluster.metadata.brokers.get(broker)
    if found is None:
        known = ", ".join(map(str, sorted(cluster.metadata.brokers)))
        raise InvalidRequestError(f"there is no broker {broker} now; there are {known}")
    return found.address


def _log_dir(broker: int, log_dir: broker_pb2.LogDir) -> LogDirDescription:
    replicas = sorted(log_dir.replicas, key=lambda replica: (replica.topic, replica.partition.partition))
    return LogDirDescription(
        broker,
        log_dir.path,
        log_dir.directory_id,
        log_dir.error.message or None,
        log_dir.full,
        log_dir.total_bytes,
        log_dir.usable_bytes,
        tuple(
            LogDirReplica(
                replica.topic,
                replica.partition.partition,
                replica.size_bytes,
                replica.is_future,
                replica.offset_lag,
                replica.error.message or None,
            )
            for replica in replicas
        ),
    )
