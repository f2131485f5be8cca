"""A coordinator of one member's group beside a `ClusterDouble`: assigns what a test says, and keeps what it hears."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc.aio
from cluster_double import ClusterDouble

from highwater.errors import ErrorCode
from highwater.rpc.errors import to_proto
from highwater.v1 import group_pb2, group_pb2_grpc


class CoordinatorDouble(group_pb2_grpc.GroupCoordinatorServicer):
    """Made before the cluster is started. `topic` is the one whose partitions are assigned."""

    def __init__(self, cluster: ClusterDouble, topic: str) -> None:
        self.cluster = cluster
        self.topic = topic
        self.epoch = 0
        # What a test may change.
        self.assigned: Sequence[int] = (0,)
        self.answers = asyncio.Event()  # cleared: the first word of a stream is heard and not answered
        self.answers.set()
        self.session_timeout_ms = 45_000
        # What a test may look at.
        self.words: list[group_pb2.SessionRequest] = []
        self.streams = 0
        self.committed: dict[int, int] = {}
        self.commits: list[dict[int, int]] = []
        self.number = 0  # of the last assignment
        self._pushed: asyncio.Queue[group_pb2.SessionResponse] = asyncio.Queue()

        def add(server: grpc.aio.Server) -> None:
            group_pb2_grpc.add_GroupCoordinatorServicer_to_server(self, server)

        cluster.services.append(add)

    def push(self, *partitions: int) -> None:
        """Assigns these."""
        self.assigned = partitions
        self.epoch += 1
        self._pushed.put_nowait(self._answer())

    def end(self, code: ErrorCode) -> None:
        """Ends the stream that there is."""
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            self.epoch = 0
        self._pushed.put_nowait(group_pb2.SessionResponse(error=to_proto(code)))

    def _answer(self) -> group_pb2.SessionResponse:
        response = group_pb2.SessionResponse(
            member_epoch=self.epoch, heartbeat_interval_ms=5_000, session_timeout_ms=self.session_timeout_ms
        )
        self.number += 1
        response.assignment_number = self.number
        response.assignment.SetInParent()
        if self.assigned:
            topic_id = self.cluster.topics[self.topic].topic_id
            response.assignment.topics.add(topic=self.topic, topic_id=topic_id, partitions=self.assigned)
        return response

    async def FindCoordinator(self, request: Any, context: Any) -> group_pb2.FindCoordinatorResponse:
        response = group_pb2.FindCoordinatorResponse()
        broker = self.cluster.brokers[1]
        for group in request.groups:
            found = response.coordinators.add(group=group)
            found.broker.broker_id, found.broker.address = broker.broker_id, broker.address
        return response

    async def Session(self, request_iterator: Any, context: Any) -> AsyncIterator[group_pb2.SessionResponse]:
        self.streams += 1
        self._pushed = pushed = asyncio.Queue()

        async def hear() -> None:
            first = True
            async for word in request_iterator:
                self.words.append(word)
                self.cluster.changed()
                if word.member_epoch < 0:
                    pushed.put_nowait(group_pb2.SessionResponse(member_epoch=word.member_epoch))
                elif first:
                    await self.answers.wait()
                    self.epoch = max(self.epoch, 1)
                    pushed.put_nowait(self._answer())
                first = False

        hearing = asyncio.create_task(hear())
        try:
            while True:
                response = await pushed.get()
                yield response
                if response.member_epoch < 0 or response.error.code:
                    return
        finally:
            hearing.cancel()

    async def CommitOffsets(self, request: Any, context: Any) -> group_pb2.CommitOffsetsResponse:
        offsets = {each.partition.partition: each.offset for each in request.offsets}
        self.commits.append(offsets)
        self.committed |= offsets
        self.cluster.changed()
        return group_pb2.CommitOffsetsResponse(offsets=[group_pb2.CommittedOffset() for _ in request.offsets])

    async def FetchOffsets(self, request: Any, context: Any) -> group_pb2.FetchOffsetsResponse:
        response = group_pb2.FetchOffsetsResponse()
        for each in request.partitions:
            response.offsets.add(partition=each, offset=self.committed.get(each.partition, -1))
        return response
