"""Administration of consumer groups: each at its coordinator, lists at every broker."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from highwater.client.admin.group_descriptions import (
    CommittedOffset,
    GroupDescription,
    GroupListing,
    GroupState,
    committed_offset,
    group_description,
    group_listing,
    state_number,
)
from highwater.client.cluster.cluster import Cluster
from highwater.client.cluster.connection import Connection
from highwater.client.exceptions import HighwaterError, RetriableError, error_for
from highwater.client.groups.committed_offsets import chunks
from highwater.client.groups.coordinator import Coordinator, Method, check, find_coordinators, retried
from highwater.client.topic_partition import TopicPartition
from highwater.errors import ErrorCode
from highwater.rpc.errors import from_proto
from highwater.v1 import common_pb2, group_pb2, group_pb2_grpc

MAX_GROUPS = 1_000  # of one request

ValueT = TypeVar("ValueT")
Outcome = HighwaterError | None


async def list_groups(cluster: Cluster, states: Iterable[GroupState] | None) -> list[GroupListing]:
    """Groups of all brokers, by id; the whole list, or an error."""
    request = group_pb2.ListGroupsRequest(states=[] if states is None else [state_number(state) for state in states])

    async def of_broker(address: str) -> list[GroupListing]:
        connection = cluster.connection(address)
        stub = group_pb2_grpc.GroupCoordinatorStub(connection.channel)
        response = await connection.call(stub.ListGroups, request, cluster.request_timeout_s)
        check(response.error)
        return [group_listing(each) for each in response.groups]

    async def attempt() -> list[GroupListing]:
        await cluster.refresh()
        addresses = [broker.address for broker in cluster.metadata.brokers.values()]
        found = await asyncio.gather(*map(of_broker, addresses))
        # A group that moves meanwhile may be told twice.
        return sorted({group.group: group for groups in found for group in groups}.values(), key=lambda one: one.group)

    listed: list[GroupListing] = await retried(attempt, cluster.request_timeout_s)
    return listed


async def describe_groups(cluster: Cluster, groups: Sequence[str], *, include_offsets: bool) -> list[GroupDescription]:
    async def ask(connection: Connection, some: Sequence[str]) -> list[tuple[common_pb2.Error, GroupDescription]]:
        stub = group_pb2_grpc.GroupCoordinatorStub(connection.channel)
        request = group_pb2.DescribeGroupsRequest(groups=some, include_offsets=include_offsets)
        response = await connection.call(stub.DescribeGroups, request, cluster.request_timeout_s)
        return [(each.error, group_description(each)) for each in response.groups]

    def refused(group: str, error: HighwaterError) -> GroupDescription:
        return GroupDescription(group, "dead", error)

    found = await _of_each(cluster, groups, ask, refused)
    return [found[group] for group in groups]


async def delete_groups(cluster: Cluster, groups: Sequence[str]) -> dict[str, Outcome]:
    async def ask(connection: Connection, some: Sequence[str]) -> list[tuple[common_pb2.Error, Outcome]]:
        stub = group_pb2_grpc.GroupCoordinatorStub(connection.channel)
        request = group_pb2.DeleteGroupsRequest(groups=some)
        response = await connection.call(stub.DeleteGroups, request, cluster.request_timeout_s)
        return [(each.error, _outcome(each.error, f"group {each.group!r}")) for each in response.groups]

    return await _of_each(cluster, groups, ask, lambda group, error: error)


async def _of_each(
    cluster: Cluster,
    groups: Sequence[str],
    ask: Callable[[Connection, Sequence[str]], Awaitable[list[tuple[common_pb2.Error, ValueT]]]],
    refused: Callable[[str, HighwaterError], ValueT],
) -> dict[str, ValueT]:
    """Asks the coordinators, and again those groups whose coordinator was on its way. Raises the last error of one that
    stayed without an answer for `request_timeout_ms`."""
    found: dict[str, ValueT] = {}

    async def ask_one(connection: Connection, some: Sequence[str]) -> HighwaterError | None:
        """The error of groups that are to be asked again."""
        error: HighwaterError | None = None
        try:
            answers = await ask(connection, some)
        except RetriableError as failure:
            cluster.request_refresh()
            return failure
        for group, (said, value) in zip(some, answers, strict=True):
            code = from_proto(said)
            if code.retriable:
                error = error_for(code, f"group {group!r}: {said.message}")
            else:
                found[group] = value
        return error

    async def attempt() -> None:
        left = [group for group in dict.fromkeys(groups) if group not in found]
        errors: list[HighwaterError | None] = []
        for start in range(0, len(left), MAX_GROUPS):
            some = left[start : start + MAX_GROUPS]
            by_coordinator: defaultdict[Connection, list[str]] = defaultdict(list)
            for group, coordinator in zip(some, await find_coordinators(cluster, some), strict=True):
                if isinstance(coordinator, Connection):
                    by_coordinator[coordinator].append(group)
                elif isinstance(coordinator, RetriableError):
                    errors.append(coordinator)
                else:
                    found[group] = refused(group, coordinator)
            errors += await asyncio.gather(*(ask_one(*each) for each in by_coordinator.items()))
        for error in errors:
            if error is not None:
                raise error

    if groups:
        await retried(attempt, cluster.request_timeout_s)
    return found


async def delete_offsets(
    cluster: Cluster, group: str, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, Outcome]:
    def request(some: Sequence[TopicPartition]) -> group_pb2.DeleteOffsetsRequest:
        return group_pb2.DeleteOffsetsRequest(group=group, partitions=map(_partition, some))

    results = await _of_partitions(cluster, group, partitions, lambda stub: stub.DeleteOffsets, request)
    return {one: _outcome(result.error, f"{one.topic}-{one.partition}") for one, result in results.items()}


async def alter_offsets(
    cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, Outcome]:
    def request(some: Sequence[TopicPartition]) -> group_pb2.AlterOffsetsRequest:
        message = group_pb2.AlterOffsetsRequest(group=group)
        for one in some:
            message.offsets.add(partition=_partition(one), offset=offsets[one], leader_epoch=-1)
        return message

    results = await _of_partitions(cluster, group, list(offsets), lambda stub: stub.AlterOffsets, request)
    return {one: _outcome(result.error, f"{one.topic}-{one.partition}") for one, result in results.items()}


async def list_group_offsets(
    cluster: Cluster, group: str, partitions: Sequence[TopicPartition] | None
) -> dict[TopicPartition, CommittedOffset]:
    """Without those of which none was committed."""

    def request(some: Sequence[TopicPartition]) -> group_pb2.FetchOffsetsRequest:
        return group_pb2.FetchOffsetsRequest(group=group, member_epoch=-1, partitions=map(_partition, some))

    if partitions is None:
        coordinator = Coordinator(cluster, group)
        timeout_s = cluster.request_timeout_s
        response = await retried(
            lambda: coordinator.call(lambda stub: stub.FetchOffsets, request([]), timeout_s), timeout_s
        )
        results = {TopicPartition(each.partition.topic, each.partition.partition): each for each in response.offsets}
    else:
        results = await _of_partitions(cluster, group, partitions, lambda stub: stub.FetchOffsets, request)
    for result in results.values():
        check(result.error)
    return {one: committed_offset(result) for one, result in results.items() if result.offset >= 0}


async def _of_partitions(
    cluster: Cluster,
    group: str,
    partitions: Sequence[TopicPartition],
    method: Method,
    request: Callable[[Sequence[TopicPartition]], Any],
) -> dict[TopicPartition, Any]:
    """The result of each, 5,000 at a time."""
    coordinator = Coordinator(cluster, group)
    timeout_s = cluster.request_timeout_s
    found: dict[TopicPartition, Any] = {}
    for some in chunks(group, partitions):
        message = request(some)
        response = await retried(lambda message=message: coordinator.call(method, message, timeout_s), timeout_s)  # type: ignore[misc]
        results = response.partitions if hasattr(response, "partitions") else response.offsets
        found |= zip(some, results, strict=True)
    return found


def _partition(partition: TopicPartition) -> common_pb2.TopicPartition:
    return common_pb2.TopicPartition(topic=partition.topic, partition=partition.partition)


def _outcome(error: common_pb2.Error, where: str) -> Outcome:
    code = from_proto(error)
    return None if code is ErrorCode.NONE else error_for(code, f"{where}: {error.message or code.name}")
