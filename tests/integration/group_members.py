"""A cluster of brokers in this process with a real controller, and members of groups by the contract alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from etcd_proxy import until
from replica_manager_cluster import DEADLINE_S, TestCluster, Trio, eventually

from highwater.controller.service import ControllerService
from highwater.controller.settings import ControllerSettings
from highwater.errors import ErrorCode
from highwater.metadata.local import LocalEtcd
from highwater.metadata.schema.keys import Keys
from highwater.metadata.store.store import Store
from highwater.rpc.errors import from_proto
from highwater.v1 import common_pb2, controller_pb2, controller_pb2_grpc, group_pb2, group_pb2_grpc

MEMBER_ID = "0b8b1a1e-0000-4000-8000-00000000000{}"
COORDINATOR_MOVES = frozenset(
    {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
)


@asynccontextmanager
async def group_cluster(
    etcd: LocalEtcd, store: Store, keys: Keys, directory: Path, *, brokers: int = 1, **settings: str
) -> AsyncIterator[TestCluster]:
    controller = ControllerService(
        ControllerSettings(
            controller_id=0,
            cluster=keys.cluster,
            listen=["127.0.0.1:0"],
            advertised_listener="127.0.0.1:0",
            etcd=[etcd.address],
            min_insync_replicas=int(settings.get("min.insync.replicas", "1")),
        )
    )
    await controller.start()
    try:
        shared = {"offsets.topic.num.partitions": "3", **settings}
        async with TestCluster(
            store, keys, etcd.address, directory, brokers, shared, with_fetchers=brokers > 1
        ) as cluster:
            for trio in cluster.trios.values():
                await until(lambda trio=trio: manager(trio).metadata.complete)  # type: ignore[misc]
            yield cluster
    finally:
        await controller.stop()


def manager(trio: Trio) -> Any:
    assert trio.replica_manager is not None
    return trio.replica_manager.replica_manager


def stub(trio: Trio) -> Any:
    return group_pb2_grpc.GroupCoordinatorStub(trio.channel)


def controller(trio: Trio) -> Any:
    return controller_pb2_grpc.ControllerStub(trio.channel)


async def create_topic(cluster: TestCluster, topic: str, partitions: int) -> bytes:
    """Its id, once every broker knows all of it."""
    request = controller_pb2.CreateTopicsRequest()
    request.topics.add(topic=topic, partitions=partitions, replication_factor=len(cluster.trios))
    (result,) = (await controller(cluster[0]).CreateTopics(request)).results
    assert from_proto(result.error) is ErrorCode.NONE, result

    def known() -> bool:
        found = [manager(trio).metadata.by_name(topic) for trio in cluster.trios.values()]
        return all(each is not None and len(each.numbered()) == partitions for each in found)

    await until(known)
    return bytes(result.topic_id)


async def coordinator(cluster: TestCluster, group: str) -> Trio:
    """The broker that serves the group by now."""

    async def serves() -> Trio | None:
        for trio in [each for each in cluster.trios.values() if each.replica_manager is not None]:
            (found,) = (await stub(trio).FindCoordinator(group_pb2.FindCoordinatorRequest(groups=[group]))).coordinators
            if from_proto(found.error) is not ErrorCode.NONE:
                continue
            named = cluster[found.broker.broker_id]
            if named.replica_manager is None:
                continue
            asked = await stub(named).FetchOffsets(group_pb2.FetchOffsetsRequest(group=group, member_epoch=-1))
            if from_proto(asked.error) is ErrorCode.NONE:
                return named
        return None

    served: Trio = await eventually(serves, f"group {group} has a coordinator", 2 * DEADLINE_S)
    return served


def offset(topic: str, partition: int, value: int) -> group_pb2.CommittedOffset:
    return group_pb2.CommittedOffset(
        partition=common_pb2.TopicPartition(topic=topic, partition=partition), offset=value, leader_epoch=-1
    )


async def commit(
    trio: Trio, group: str, offsets: Sequence[group_pb2.CommittedOffset], member_id: str = "", member_epoch: int = -1
) -> list[ErrorCode]:
    """The error of all, or each offset's own."""
    response = await stub(trio).CommitOffsets(
        group_pb2.CommitOffsetsRequest(group=group, member_id=member_id, member_epoch=member_epoch, offsets=offsets)
    )
    error = from_proto(response.error)
    return [error] if error is not ErrorCode.NONE else [from_proto(each.error) for each in response.offsets]


async def committed(trio: Trio, group: str) -> dict[tuple[str, int], int]:
    response = await stub(trio).FetchOffsets(group_pb2.FetchOffsetsRequest(group=group, member_epoch=-1))
    assert from_proto(response.error) is ErrorCode.NONE, response
    return {(each.partition.topic, each.partition.partition): each.offset for each in response.offsets}


@dataclass
class Member:
    """Acknowledges every assignment at once, as a client does whose callbacks take no time."""

    group: str
    number: int
    topics: tuple[str, ...]
    instance_id: str = ""
    epoch: int = 0
    owned: frozenset[int] = frozenset()
    error: ErrorCode = ErrorCode.NONE
    topic_id: bytes = b""
    _call: Any = None
    _reading: asyncio.Task[None] | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def member_id(self) -> str:
        return MEMBER_ID.format(self.number)

    async def open(self, trio: Trio) -> None:
        """Joins, or comes back on a new stream."""
        request = group_pb2.SessionRequest(
            group=self.group, member_id=self.member_id, member_epoch=self.epoch, instance_id=self.instance_id
        )
        if self.epoch == 0:
            request.subscription.topics.extend(self.topics)
            request.subscription.rebalance_timeout_ms = 60_000
        self._list_owned(request)
        self.error = ErrorCode.NONE
        self._call = stub(trio).Session()
        await self._call.write(request)
        self._reading = asyncio.create_task(self._read(self._call))

    def _list_owned(self, request: group_pb2.SessionRequest) -> None:
        request.owned.SetInParent()
        if self.owned:
            request.owned.topics.add(topic_id=self.topic_id, partitions=sorted(self.owned))

    async def _read(self, call: Any) -> None:
        async for response in call:
            self.error = from_proto(response.error)
            if self.error is ErrorCode.NONE:
                self.epoch = response.member_epoch
                if response.HasField("assignment"):
                    self._take(response.assignment)
                    request = group_pb2.SessionRequest(
                        member_epoch=self.epoch, seen_assignment=response.assignment_number
                    )
                    self._list_owned(request)
                    await call.write(request)
            self._changed.set()
        self._changed.set()

    def _take(self, assignment: group_pb2.PartitionList) -> None:
        self.owned = frozenset(number for topic in assignment.topics for number in topic.partitions)
        for topic in assignment.topics:
            self.topic_id = topic.topic_id

    async def owns(self, partitions: Iterable[int]) -> None:
        wanted = frozenset(partitions)
        await self._until(lambda: self.owned == wanted and self.epoch > 0, f"{self} owns {sorted(wanted)}")

    async def owns_some(self, count: int) -> None:
        await self._until(lambda: len(self.owned) == count and self.epoch > 0, f"{self} owns {count} partitions")

    async def refused(self) -> ErrorCode:
        await self._until(lambda: self.error is not ErrorCode.NONE, f"{self} is refused")
        return self.error

    async def _until(self, condition: Any, what: str) -> None:
        try:
            async with asyncio.timeout(2 * DEADLINE_S):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"not in time: {what}") from None

    async def back(self, cluster: TestCluster) -> None:
        """Comes back with what it has, once there is a coordinator that lets it."""
        while True:
            await self.open(await coordinator(cluster, self.group))
            self._changed.clear()
            async with asyncio.timeout(DEADLINE_S):
                await self._changed.wait()
            if self.error not in COORDINATOR_MOVES:
                return

    async def leave(self, epoch: int = -1) -> None:
        await self._call.write(group_pb2.SessionRequest(member_epoch=epoch))
        await self._until(lambda: self.epoch == epoch, f"{self} has left")
        self.owned, self.epoch = frozenset(), 0
        await self.vanish()

    async def vanish(self) -> None:
        """The stream breaks; the coordinator is told nothing."""
        if self._reading is not None:
            self._call.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
            self._reading = None
