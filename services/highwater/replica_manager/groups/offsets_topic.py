"""`__consumer_offsets`: made by itself when the first group is looked for, and where its partitions are led."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from dataclasses import dataclass

import grpc.aio

from highwater.errors import ErrorCode
from highwater.groups.group_partition import OFFSETS_TOPIC, partition_for
from highwater.groups.requests import Refusal
from highwater.groups.validity import check_group_id
from highwater.metadata.schema.models import NO_LEADER
from highwater.metadata.store.etcd_errors import StoreError
from highwater.replica_manager.membership.active_controller import ActiveControllerLookup
from highwater.replica_manager.replicas.metadata_cache import Endpoint, MetadataCache
from highwater.rpc.errors import from_proto
from highwater.supervision import TaskSupervisor
from highwater.telemetry.log import get_logger, pairs
from highwater.v1 import controller_pb2

logger = get_logger("replica_manager.offsets_topic")

WAIT_S = 1.0  # of one who looks for a coordinator, for the topic that is being made
CREATE_TIMEOUT_S = 10.0
RETRY_S = 0.2
MAX_MESSAGE_BYTES = 8 << 20  # a member may subscribe to thousands of topics, in one record


@dataclass(frozen=True, slots=True)
class OffsetsTopicConfig:
    partitions: int  # offsets.topic.num.partitions
    replication_factor: int  # offsets.topic.replication.factor
    segment_bytes: int  # offsets.topic.segment.bytes


class OffsetsTopic:
    def __init__(
        self,
        config: OffsetsTopicConfig,
        metadata: MetadataCache,
        controller: ActiveControllerLookup,
        supervisor: TaskSupervisor,
    ) -> None:
        self.config = config
        self._metadata = metadata
        self._controller = controller
        self._supervisor = supervisor
        self._creating: asyncio.Task[None] | None = None
        self._refusal = ""  # the controller's last word
        self._seen = asyncio.Event()  # the topic, in this broker's metadata
        metadata.listeners.append(self._note)

    def partition_of(self, group: str) -> int:
        return partition_for(group, self.config.partitions)

    async def await_topic(self) -> None:
        """Has it made where it is not there, and waits a moment for it."""
        if self._seen.is_set() or not self._metadata.complete:
            return
        if self._creating is None or self._creating.done():
            self._creating = self._supervisor.run_once("create-offsets-topic", self._create)
        await asyncio.wait([self._creating], timeout=WAIT_S)

    def coordinator(self, group: str, listener: str) -> Endpoint | Refusal:
        """The broker that coordinates the group, as those who came in by that listener reach it."""
        refusal = check_group_id(group)
        if refusal is not None:
            return refusal
        topic = self._metadata.by_name(OFFSETS_TOPIC)
        if topic is None:
            return self._not_available(f"{OFFSETS_TOPIC} is being made: try again. {self._refusal}".strip())
        partition = topic.partitions.get(self.partition_of(group))
        leader = NO_LEADER if partition is None else partition.state.leader
        known = len(topic.partitions)
        if self._metadata.complete and known > self.config.partitions:
            return self._not_available(
                f"{OFFSETS_TOPIC} has {known} partitions, and offsets.topic.num.partitions of this broker is"
                f" {self.config.partitions}: set it to what the topic has"
            )
        if leader == NO_LEADER:
            return self._not_available(f"partition {self.partition_of(group)} of {OFFSETS_TOPIC} has no leader now")
        endpoint = self._metadata.reached_by(listener).get(leader)
        if endpoint is None:
            return self._not_available(f"the coordinator, broker {leader}, is not reached by this listener now")
        return endpoint

    def _note(self, names: Collection[str]) -> None:
        if OFFSETS_TOPIC in names and self._metadata.by_name(OFFSETS_TOPIC) is not None:
            self._seen.set()

    @staticmethod
    def _not_available(message: str) -> Refusal:
        return Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, message)

    async def _create(self) -> None:
        """One request, and then until this broker has heard of the topic."""
        request = controller_pb2.CreateTopicsRequest(timeout_ms=int(CREATE_TIMEOUT_S * 1000), internal=True)
        request.topics.add(
            topic=OFFSETS_TOPIC,
            partitions=self.config.partitions,
            replication_factor=self.config.replication_factor,
            config={
                "cleanup.policy": "compact",
                "segment.bytes": str(self.config.segment_bytes),
                "max.message.bytes": str(MAX_MESSAGE_BYTES),
            },
        )
        self._refusal = await self._asked(request)
        if self._refusal:
            logger.warning("the offsets topic is not made yet %s", pairs(reason=self._refusal))
            await asyncio.sleep(RETRY_S)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CREATE_TIMEOUT_S):
                await self._seen.wait()

    async def _asked(self, request: controller_pb2.CreateTopicsRequest) -> str:
        """Returns what speaks against it; empty: nothing."""
        try:
            link = await self._controller.find()
        except StoreError as error:
            return f"etcd does not say which controller acts: {error}"
        if link is None:
            return "no controller acts now"
        try:
            async with link.used():
                response = await link.stub.CreateTopics(request, timeout=CREATE_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            self._controller.doubt(link)
            return f"the controller does not answer: {error.details()}"
        if from_proto(response.error) is not ErrorCode.NONE:
            self._controller.doubt(link)
            return response.error.message
        (result,) = response.results
        done = {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.REQUEST_TIMED_OUT}
        return "" if from_proto(result.error) in done else result.error.message
