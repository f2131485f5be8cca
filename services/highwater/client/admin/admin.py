"""Administration: topics, the cluster, offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from time import monotonic
from typing import Any, Self

from highwater.client.admin import groups
from highwater.client.admin.acls import create_acls, delete_acls, describe_acls
from highwater.client.admin.answers import cluster_description, elections, topic_description, topic_result
from highwater.client.admin.configs import (
    ConfigEntry,
    ConfigResource,
    ConfigResourceType,
    alteration,
    described_kinds,
    entries,
    to_resource,
)
from highwater.client.admin.descriptions import (
    BrokerReach,
    ClusterDescription,
    ConfigValue,
    LogDirDescription,
    NewTopic,
    TopicDescription,
    TopicResult,
)
from highwater.client.admin.group_descriptions import CommittedOffset, GroupDescription, GroupListing, GroupState
from highwater.client.admin.log_dirs import alter_replica_log_dirs, describe_log_dirs
from highwater.client.admin.reachability import check_brokers
from highwater.client.admin.replica_verification import PartitionVerification, verify_partition
from highwater.client.cluster.bootstrap import DEFAULT_BOOTSTRAP
from highwater.client.cluster.cluster import Cluster
from highwater.client.cluster.connection import Connection, NotServedError
from highwater.client.cluster.offset_lookup import lookup_offsets
from highwater.client.cluster.tls import client_certificates
from highwater.client.cluster.tls_options import FilePath, SecurityProtocol
from highwater.client.cluster.token import client_token
from highwater.client.exceptions import (
    ClientClosedError,
    HighwaterError,
    LeaderNotAvailableError,
    RetriableError,
    UnknownTopicError,
    error_for,
)
from highwater.client.topic_partition import LATEST_TIMESTAMP, OffsetAndTimestamp, TopicPartition
from highwater.errors import ErrorCode
from highwater.rpc.errors import from_proto
from highwater.rpc.process import forking
from highwater.security.acls import Acl, AclFilter
from highwater.v1 import common_pb2, controller_pb2, controller_pb2_grpc

_Method = Callable[[Any], Callable[..., Awaitable[Any]]]  # of a stub

CONFIG_TIMEOUT_MS = 10_000  # the controller's time for a change of a configuration


class Admin:
    """Speaks with the active controller by way of any broker; with the controller itself where the broker is older than
    that.

    Every call raises `NetworkError` or another `RetriableError` where the cluster stayed out of reach for
    `request_timeout_ms`.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str] = DEFAULT_BOOTSTRAP,
        *,
        client_id: str = "highwater-admin",
        max_block_ms: float = 60_000,
        request_timeout_ms: float = 30_000,
        retry_backoff_ms: float = 50,
        retry_backoff_max_ms: float = 1000,
        security_protocol: SecurityProtocol | None = None,
        ssl_ca_file: FilePath | None = None,
        ssl_certificate_file: FilePath | None = None,
        ssl_key_file: FilePath | None = None,
        token: str | None = None,
        token_file: FilePath | None = None,
    ) -> None:
        self._cluster = Cluster(
            bootstrap,
            client_id=client_id,
            request_timeout_ms=request_timeout_ms,
            max_block_ms=max_block_ms,
            certificates=client_certificates(locals()),
            token=client_token(locals()),
        )
        self._backoff_s = retry_backoff_ms / 1000
        self._backoff_max_s = retry_backoff_max_ms / 1000
        self._running = False
        self._stopped = False
        self._hint = ""  # the controller's address as another one last named it

    async def start(self) -> Self:
        """Connects. Raises `NetworkError` where no bootstrap broker answers within `max_block_ms`; it may then be
        called again."""
        if self._stopped:
            raise ClientClosedError("this admin was stopped; make another")
        if not self._running:
            await self._cluster.start()
            self._running = True
        return self

    async def stop(self) -> None:
        if self._running and forking.refusal() is None:
            self._running = False
            self._stopped = True
            await self._cluster.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()

    # Topics

    async def create_topic(
        self,
        topic: str,
        partitions: int | None = None,
        replication_factor: int | None = None,
        config: Mapping[str, str] | None = None,
        *,
        validate_only: bool = False,
        timeout_ms: int = 30_000,
    ) -> TopicResult:
        """Makes one topic and waits until its partitions have leaders; None: the cluster's defaults.

        Raises:
            TopicAlreadyExistsError, InvalidRequestError: as the cluster says.
        """
        new = NewTopic(topic, partitions, replication_factor, config or {})
        return _succeeded(await self.create_topics([new], validate_only=validate_only, timeout_ms=timeout_ms))

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False, timeout_ms: int = 30_000
    ) -> list[TopicResult]:
        """One result a topic, each with its own error, in the order of the request."""
        request = controller_pb2.CreateTopicsRequest(validate_only=validate_only, timeout_ms=timeout_ms)
        for new in topics:
            message = request.topics.add(
                topic=new.topic,
                partitions=-1 if new.partitions is None else new.partitions,
                replication_factor=-1 if new.replication_factor is None else new.replication_factor,
                config=dict(new.config),
            )
            for partition, replicas in enumerate(new.assignment):
                message.assignment.add(partition=partition, replicas=list(replicas))
        response = await self._controller(lambda stub: stub.CreateTopics, request, timeout_ms)
        results = [topic_result(result) for result in response.results]
        if not validate_only:
            await self._until_visible([result for result in results if result.error is None])
        return results

    async def create_partitions(
        self,
        topic: str,
        total: int,
        assignment: Sequence[Sequence[int]] = (),
        *,
        validate_only: bool = False,
        timeout_ms: int = 30_000,
    ) -> TopicResult:
        """Adds partitions to one topic until it has `total`, and waits until they have leaders. Partitions are never
        taken away, and records stay where they are: a key may belong to another partition from now on.

        Args:
            assignment: the broker ids of each partition that is added; empty: balanced by the cluster.

        Raises:
            UnknownTopicError: there is no such topic.
            InvalidRequestError: it has so many partitions already, or too few brokers are live.
        """
        request = controller_pb2.CreatePartitionsRequest(validate_only=validate_only, timeout_ms=timeout_ms)
        message = request.topics.add(topic=topic, total=total)
        for partition, replicas in enumerate(assignment, start=total - len(assignment)):
            message.assignment.add(partition=partition, replicas=list(replicas))
        failed: list[RetriableError] = []
        response = await self._controller(lambda stub: stub.CreatePartitions, request, timeout_ms, failed)
        results = [topic_result(result) for result in response.results]
        if not validate_only:
            # Nobody answered for an earlier attempt: it may be the one that added them.
            settled = failed and response.results[0].error.code == ErrorCode.INVALID_PARTITIONS
            if settled and (done := await self._has_partitions(topic, total)) is not None:
                results = [done]
            await self._until_visible([result for result in results if result.error is None])
        return _succeeded(results)

    async def _has_partitions(self, topic: str, total: int) -> TopicResult | None:
        (found,) = await self.describe_topics([topic])
        if len(found.partitions) != total:
            return None
        return TopicResult(topic, found.topic_id, total, len(found.partitions[0].replicas), None)

    async def delete_topic(self, topic: str, *, timeout_ms: int = 30_000) -> TopicResult:
        """Deletes one topic. Raises `UnknownTopicError`."""
        return _succeeded(await self.delete_topics([topic], timeout_ms=timeout_ms))

    async def delete_topics(self, topics: Sequence[str], *, timeout_ms: int = 30_000) -> list[TopicResult]:
        """One result a topic, each with its own error, in the order of the request."""
        request = controller_pb2.DeleteTopicsRequest(topics=list(topics), timeout_ms=timeout_ms)
        response = await self._controller(lambda stub: stub.DeleteTopics, request, timeout_ms)
        return [topic_result(result) for result in response.results]

    async def describe_topics(self, topics: Sequence[str] | None = None) -> list[TopicDescription]:
        """These topics, in order; None: all, by name. Raises `UnknownTopicError`."""
        self._check_running()
        if topics is None:
            answer = await self._retried(self._cluster.answer_of_all_topics)
            found = sorted(answer.topics, key=lambda info: info.topic)
        else:
            # Described as of now, not as of an earlier call.
            self._cluster.track(topics)
            await self._retried(self._cluster.refresh)
            found = [await self._cluster.topic(name, self._cluster.request_timeout_s) for name in topics]
        return [topic_description(info) for info in found]

    async def list_topics(self, *, include_internal: bool = False) -> list[str]:
        """The names, sorted."""
        self._check_running()
        answer = await self._retried(self._cluster.answer_of_all_topics)
        return sorted(info.topic for info in answer.topics if include_internal or not info.internal)

    async def alter_topic_config(
        self, topic: str, changed: Mapping[str, str], unset: Iterable[str] = (), *, validate_only: bool = False
    ) -> None:
        """Sets these keys, gives those of `unset` back to their defaults, and leaves all others. Returns when the live
        brokers have taken it, or have not for two seconds; one that is away takes it when it is back.

        Raises:
            UnknownTopicError: there is no such topic.
            InvalidRequestError: an unknown key or a bad value; nothing was changed.
        """
        request = controller_pb2.AlterConfigsRequest(
            resource=_topic_resource(topic), set=dict(changed), unset=list(unset), validate_only=validate_only
        )
        await self._controller(lambda stub: stub.AlterConfigs, request, CONFIG_TIMEOUT_MS)

    async def describe_topic_config(self, topic: str) -> dict[str, ConfigValue]:
        """Every key that a topic may have, sorted. Raises `UnknownTopicError`."""
        request = controller_pb2.DescribeConfigsRequest(resources=[_topic_resource(topic)])
        response = await self._controller(lambda stub: stub.DescribeConfigs, request, CONFIG_TIMEOUT_MS)
        (described,) = response.configs
        _check(described.error)
        return {
            entry.key: ConfigValue(None if entry.source == "brokers" else entry.value, entry.source)
            for entry in described.entries
        }

    async def alter_configs(
        self,
        resource: ConfigResource,
        changed: Mapping[str, str],
        unset: Iterable[str] = (),
        *,
        validate_only: bool = False,
    ) -> None:
        """Sets these keys, gives those of `unset` back to what is behind them, and leaves all others. Services take it
        within a second as a rule.

        Raises:
            InvalidRequestError: an unknown or read-only key, or a bad value; nothing was changed.
        """
        request = alteration(resource, changed, unset, validate_only=validate_only)
        await self._controller(lambda stub: stub.AlterConfigs, request, CONFIG_TIMEOUT_MS)

    async def describe_configs(self, resource: ConfigResource) -> list[ConfigEntry]:
        """Every key of a topic, a broker or the cluster as it counts now, with where its value is from; of clients,
        users and defaults what they set themselves. Raises `NetworkError` where a broker does not say what it was
        started with."""
        request = controller_pb2.DescribeConfigsRequest(resources=[to_resource(resource)])
        response = await self._controller(lambda stub: stub.DescribeConfigs, request, CONFIG_TIMEOUT_MS)
        (described,) = response.configs
        return entries(described)

    async def list_configs(self, kind: ConfigResourceType) -> dict[ConfigResource, list[ConfigEntry]]:
        """All clients, users, or users' clients that have a configuration."""
        resource = controller_pb2.ConfigResource(type=kind.value)
        request = controller_pb2.DescribeConfigsRequest(resources=[resource], all_of_kind=True)
        response = await self._controller(lambda stub: stub.DescribeConfigs, request, CONFIG_TIMEOUT_MS)
        return described_kinds(response.configs)

    async def elect_leaders(
        self, partitions: Iterable[tuple[str, int]] | None = None, *, timeout_ms: int = 30_000
    ) -> dict[TopicPartition, HighwaterError | None]:
        """Gives the leadership of these partitions (None: of all) back to their preferred leaders, the first of their
        replicas, where those are live and in the ISR. What became of each that another broker led; those that are led
        as they should be are not in the answer."""
        wanted = None if partitions is None else [TopicPartition(*partition) for partition in partitions]
        if wanted is not None and not wanted:
            return {}
        request = controller_pb2.ElectLeadersRequest(type=controller_pb2.ELECTION_TYPE_PREFERRED, timeout_ms=timeout_ms)
        for topic, partition in wanted or ():
            request.partitions.add(topic=topic, partition=partition)
        return elections(await self._controller(lambda stub: stub.ElectLeaders, request, timeout_ms))

    async def _until_visible(self, results: Sequence[TopicResult]) -> None:
        """The controller has made the topics, or partitions of them; waits until a broker's metadata has all of them,
        with their leaders."""
        names = [result.topic for result in results]
        self._cluster.track(names)
        deadline = monotonic() + self._cluster.request_timeout_s
        while names and monotonic() < deadline:
            await self._retried(self._cluster.refresh)
            if all(self._is_visible(result) for result in results):
                return

    def _is_visible(self, result: TopicResult) -> bool:
        found = self._cluster.metadata.topic(result.topic)
        known = 0 if found is None else len(found.partitions)
        return known >= result.partitions and not self._cluster.metadata.stale([result.topic])

    # Cluster and offsets

    async def describe_cluster(self) -> ClusterDescription:
        """The cluster as the active controller sees it."""
        timeout_ms = self._cluster.request_timeout_s * 1000
        request = controller_pb2.DescribeClusterRequest()
        response = await self._controller(lambda stub: stub.DescribeCluster, request, timeout_ms)
        return cluster_description(response, self._cluster.metadata.controller_id)

    async def check_brokers(self, *, timeout_ms: float = 5_000) -> list[BrokerReach]:
        """Tries each broker at the address that this client is told to use; by broker, whether it answers and is that
        very broker. An address that other clients are told (of another listener) is not tried."""
        described = await self.describe_cluster()
        return await check_brokers(described, timeout_ms / 1000, self._cluster.new_connection)

    async def create_acls(self, acls: Iterable[Acl]) -> None:
        """Adds ACLs; those that are there already stay. Returns when they stand in etcd: brokers hear of them within a
        moment.

        Raises:
            InvalidRequestError: one of them is none; nothing was added.
            AuthorizationError: this client may not ALTER the cluster.
        """
        await create_acls(self._ask_of_acls, acls)

    async def describe_acls(self, wanted: AclFilter = AclFilter()) -> list[Acl]:  # noqa: B008  # it is frozen
        """The ACLs that the filter means, by resource and principal; without one all."""
        return await describe_acls(self._ask_of_acls, wanted)

    async def delete_acls(self, filters: Iterable[AclFilter]) -> list[Acl]:
        """Removes the ACLs that the filters mean, and returns them."""
        return await delete_acls(self._ask_of_acls, filters)

    async def _ask_of_acls(self, method: _Method, request: Any) -> Any:
        return await self._controller(method, request, 0)

    async def describe_log_dirs(self, brokers: Sequence[int] | None = None) -> list[LogDirDescription]:
        """The log directories of these brokers (all that are registered), by broker and path."""
        self._check_running()

        async def attempt() -> list[LogDirDescription]:
            await self._cluster.refresh()
            return await describe_log_dirs(self._cluster, brokers)

        described: list[LogDirDescription] = await self._retried(attempt)
        return described

    async def alter_replica_log_dirs(
        self, moves: Mapping[tuple[tuple[str, int], int], str]
    ) -> dict[tuple[TopicPartition, int], HighwaterError | None]:
        """Moves replicas, each ((topic, partition), broker), to other directories of their brokers, in the background;
        what became of each order. `describe_log_dirs` shows the copies as long as they are being made. To the
        directory where a replica is: ends its move."""
        self._check_running()
        wanted = {(TopicPartition(*partition), broker): path for (partition, broker), path in moves.items()}
        await asyncio.gather(
            *(self._cluster.topic(topic, self._cluster.request_timeout_s) for topic in {p.topic for p, _ in wanted})
        )
        outcomes: dict[tuple[TopicPartition, int], HighwaterError | None] = await self._retried(
            lambda: alter_replica_log_dirs(self._cluster, wanted)
        )
        return outcomes

    async def verify_replicas(
        self,
        topic: str,
        partition: int,
        *,
        check_crcs: bool = False,
        progress: Callable[[int, int], None] = lambda offset, high_watermark: None,
    ) -> PartitionVerification:
        """Compares the batches of all replicas of a partition up to the high watermark, each as its own broker lists
        them. Retention and compaction may be at work meanwhile. With `check_crcs` the brokers read the payloads
        too, so that what is damaged on a disk is found. `progress` is called with the offset that the comparison has
        come to and the high watermark.

        Raises:
            UnknownTopicError: there is no such topic or partition.
        """
        self._check_running()
        self._cluster.track([topic])
        await self._retried(self._cluster.refresh)
        info = await self._cluster.topic(topic, self._cluster.request_timeout_s)
        if not 0 <= partition < len(info.partitions):
            raise UnknownTopicError(f"topic {topic!r} has partitions 0 to {len(info.partitions) - 1}, not {partition}")
        return await verify_partition(self._cluster, info, partition, check_crcs=check_crcs, progress=progress)

    async def list_offsets(
        self,
        partitions: Mapping[TopicPartition, int] | Iterable[TopicPartition],
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """The first offset at or after each timestamp in ms; or of `EARLIEST_TIMESTAMP`, `LATEST_TIMESTAMP` (the high
        watermark; the default), `MAX_TIMESTAMP`. An offset of -1: there is none."""
        self._check_running()
        if not isinstance(partitions, Mapping):
            partitions = dict.fromkeys(partitions, LATEST_TIMESTAMP)
        wanted = {TopicPartition(*partition): timestamp for partition, timestamp in partitions.items()}
        return await lookup_offsets(self._cluster, wanted, self._cluster.request_timeout_s)

    # Groups

    async def list_groups(self, states: Iterable[GroupState] | None = None) -> list[GroupListing]:
        """The groups in these states (None: all), by id. Raises where a broker that is registered does not answer."""
        self._check_running()
        return await groups.list_groups(self._cluster, states)

    async def describe_groups(self, names: Sequence[str], *, include_offsets: bool = False) -> list[GroupDescription]:
        """These groups with their members, in order; one that does not exist has an `error`."""
        self._check_running()
        return await groups.describe_groups(self._cluster, names, include_offsets=include_offsets)

    async def delete_groups(self, names: Sequence[str]) -> dict[str, HighwaterError | None]:
        """Removes groups that have no members, and their offsets. What became of each."""
        self._check_running()
        return await groups.delete_groups(self._cluster, names)

    async def list_group_offsets(
        self, group: str, partitions: Iterable[tuple[str, int]] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """Offsets that a group has committed of these partitions (None: of all). Those of which it has committed
        nothing are not in the answer, nor has a group that does not exist any."""
        self._check_running()
        wanted = None if partitions is None else [TopicPartition(*partition) for partition in partitions]
        return await groups.list_group_offsets(self._cluster, group, wanted)

    async def alter_offsets(
        self, group: str, offsets: Mapping[tuple[str, int], int]
    ) -> dict[TopicPartition, HighwaterError | None]:
        """Sets where a group without members goes on, by partition; makes the group where there is none. What became of
        each. Raises `HighwaterError` (NON_EMPTY_GROUP) where it has members."""
        self._check_running()
        wanted = {TopicPartition(*partition): offset for partition, offset in offsets.items()}
        return await groups.alter_offsets(self._cluster, group, wanted)

    async def delete_offsets(
        self, group: str, partitions: Iterable[tuple[str, int]]
    ) -> dict[TopicPartition, HighwaterError | None]:
        """Removes what a group has committed of topics that no member of it subscribes to. What became of each. Raises
        `HighwaterError` (GROUP_ID_NOT_FOUND)."""
        self._check_running()
        return await groups.delete_offsets(
            self._cluster, group, [TopicPartition(*partition) for partition in partitions]
        )

    # The controller

    def _check_running(self) -> None:
        self._cluster.check_process()
        if not self._running:
            state = "was stopped" if self._stopped else "is not started: await start(), or use `async with`"
            raise ClientClosedError(f"the admin {state}")

    async def _controller(
        self,
        method: _Method,
        request: Any,
        timeout_ms: float,
        failed: list[RetriableError] | None = None,
    ) -> Any:
        """One request to the active controller. `timeout_ms` is the controller's time; the answer may take longer.
        `failed` collects how earlier attempts failed: any of them may have been carried out."""
        self._check_running()
        timeout_s = timeout_ms / 1000 + self._cluster.request_timeout_s

        async def attempt() -> Any:
            try:
                try:
                    response = await _call(self._cluster.answering, method, request, timeout_s)
                except NotServedError:
                    response = await self._call_directly(method, request, timeout_s)
                _check(response.error)
            except RetriableError as error:
                if error.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED:
                    error.retry_after_s = response.throttle_ms / 1000
                self._cluster.request_refresh()
                if failed is not None:
                    failed.append(error)
                raise
            return response

        return await self._retried(attempt)

    async def _call_directly(self, method: _Method, request: Any, timeout_s: float) -> Any:
        """Asks the controller that metadata names, or another one, where a broker forwards no administration."""
        hint, self._hint = self._hint, ""
        address = hint or self._cluster.metadata.controller_address
        if not address:
            raise LeaderNotAvailableError("no controller is known; is one running?")
        response = await _call(self._cluster.connection(address), method, request, timeout_s)
        acts = from_proto(response.error) is not ErrorCode.NOT_CONTROLLER
        self._hint = hint if acts else response.controller.address
        return response

    async def _retried(self, attempt: Callable[[], Awaitable[Any]]) -> Any:
        """Tries again after a retriable error, until `request_timeout_ms` is over; not before the time that a broker
        says."""
        deadline = monotonic() + self._cluster.request_timeout_s
        delay_s = self._backoff_s
        while True:
            try:
                return await attempt()
            except RetriableError as error:
                self._check_running()
                pause_s = max(delay_s, error.retry_after_s)
                if monotonic() + pause_s > deadline:
                    raise
            await asyncio.sleep(pause_s)
            delay_s = min(delay_s * 2, self._backoff_max_s)


async def _call(connection: Connection, method: _Method, request: Any, timeout_s: float) -> Any:
    return await connection.call(method(controller_pb2_grpc.ControllerStub(connection.channel)), request, timeout_s)


def _check(error: common_pb2.Error) -> None:
    code = from_proto(error)
    if code is not ErrorCode.NONE:
        raise error_for(code, error.message)


def _topic_resource(topic: str) -> controller_pb2.ConfigResource:
    return controller_pb2.ConfigResource(type=controller_pb2.CONFIG_RESOURCE_TYPE_TOPIC, name=topic)


def _succeeded(results: list[TopicResult]) -> TopicResult:
    (result,) = results
    if result.error is not None:
        raise result.error
    return result
