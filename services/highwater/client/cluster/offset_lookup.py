"""ListOffsets for many partitions: grouped by leader, under the leader's epoch, retried until a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from time import monotonic

from highwater.client.cluster.cluster import Cluster
from highwater.client.cluster.connection import Connection, check_whole
from highwater.client.exceptions import HighwaterError, LeaderNotAvailableError, RetriableError, error_for
from highwater.client.topic_partition import OffsetAndTimestamp, TopicPartition
from highwater.errors import ErrorCode
from highwater.rpc.errors import from_proto
from highwater.rpc.requests.request_limits import MAX_LOOKED_UP
from highwater.v1 import broker_pb2, common_pb2

_CONSUMER = -1
_RETRY_S = 0.05
_RETRY_MAX_S = 0.5
# One leader's time for an answer; then it is asked again, or its successor where it has one by now.
_ATTEMPT_S = 3.0


async def lookup_offsets(
    cluster: Cluster,
    timestamps_ms: Mapping[TopicPartition, int],
    timeout_s: float,
    found: dict[TopicPartition, OffsetAndTimestamp] | None = None,
) -> dict[TopicPartition, OffsetAndTimestamp]:
    """The first offset at or after each timestamp (or `EARLIEST_TIMESTAMP`, `LATEST_TIMESTAMP`, `MAX_TIMESTAMP`).

    An offset of -1: there is none. `found` is what is returned, filled as answers come: what it holds is good where the
    call raises, too. Stale and unknown leader epochs are retried after a refresh (RULES 5.7).

    Raises:
        UnknownTopicError: a topic or partition that does not exist.
        RetriableError: the last error of a partition that stayed without an answer for `timeout_s`.
    """
    deadline = monotonic() + timeout_s
    found = {} if found is None else found
    errors: dict[TopicPartition, HighwaterError] = {}
    for name in {partition.topic for partition in timestamps_ms}:
        info = await cluster.topic(name, timeout_s)
        for partition in timestamps_ms:
            if partition.topic == name and not 0 <= partition.partition < len(info.partitions):
                raise error_for(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"topic {name!r} has partitions 0 to {len(info.partitions) - 1}, there is no {partition.partition}",
                )
    begun_s, delay_s = monotonic(), _RETRY_S
    while missing := [partition for partition in timestamps_ms if partition not in found]:
        by_leader: dict[Connection, list[TopicPartition]] = {}
        for partition in missing:
            leader = cluster.leader(*partition)
            if leader is None:
                refusal = cluster.refusal(partition.topic)
                refused = refusal is not None and refusal.asked_s >= begun_s
                errors[partition] = refusal.error if refusal and refused else _no_leader(partition)
            else:
                by_leader.setdefault(leader[0], []).append(partition)
        await asyncio.gather(
            *(
                _ask(cluster, connection, {item: timestamps_ms[item] for item in some}, found, errors)
                for connection, partitions in by_leader.items()
                for some in _pieces(partitions)
            )
        )
        failed = [errors[partition] for partition in missing if partition not in found]
        if not failed:
            continue
        for error in failed:
            if not isinstance(error, RetriableError) or monotonic() + delay_s > deadline:
                raise error
        cluster.request_refresh()
        await asyncio.sleep(delay_s)
        delay_s = min(delay_s * 2, _RETRY_MAX_S)
    return found


def _no_leader(partition: TopicPartition) -> HighwaterError:
    return LeaderNotAvailableError(f"{partition.topic}-{partition.partition} has no leader now: is its broker up?")


def _pieces(partitions: list[TopicPartition]) -> Iterator[list[TopicPartition]]:
    """As many as one request may name."""
    for start in range(0, len(partitions), MAX_LOOKED_UP):
        yield partitions[start : start + MAX_LOOKED_UP]


async def _ask(
    cluster: Cluster,
    connection: Connection,
    timestamps_ms: Mapping[TopicPartition, int],
    found: dict[TopicPartition, OffsetAndTimestamp],
    errors: dict[TopicPartition, HighwaterError],
) -> None:
    request = broker_pb2.ListOffsetsRequest(replica_id=_CONSUMER)
    asked = []
    for partition, timestamp in timestamps_ms.items():
        topic = cluster.metadata.topic(partition.topic)
        info = cluster.metadata.partition(*partition)
        if topic is None or info is None:  # it has gone since its leader was looked up
            errors[partition] = _no_leader(partition)
            continue
        key = common_pb2.PartitionKey(topic_id=topic.topic_id, partition=partition.partition)
        request.partitions.append(
            broker_pb2.ListOffsetsPartition(partition=key, leader_epoch=info.leader_epoch, timestamp=timestamp)
        )
        asked.append(partition)
    try:
        timeout_s = min(_ATTEMPT_S, cluster.request_timeout_s)
        response = await connection.call(connection.stub.ListOffsets, request, timeout_s)
        check_whole(response)
    except HighwaterError as error:
        errors.update(dict.fromkeys(asked, error))
        return
    for partition, result in zip(asked, response.results, strict=True):
        code = from_proto(result.error)
        if code is ErrorCode.NONE:
            found[partition] = OffsetAndTimestamp(result.offset, result.timestamp, result.leader_epoch)
        else:
            where = f"{partition.topic}-{partition.partition}"
            errors[partition] = error_for(code, f"{where}: {result.error.message or code.name}")
