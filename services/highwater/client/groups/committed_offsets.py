"""Offsets of one group, as its member commits and fetches them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from highwater.client.cluster.cluster import Cluster
from highwater.client.exceptions import CommitFailedError, HighwaterError, error_for
from highwater.client.groups.coordinator import Coordinator, retried
from highwater.client.topic_partition import TopicPartition
from highwater.errors import ErrorCode
from highwater.rpc.errors import from_proto
from highwater.v1 import common_pb2, group_pb2

MAX_OFFSETS = 5_000  # of one request
MAX_ID_BYTES = 4 << 20  # of the group's id, for each of them once


def chunks(group: str, partitions: Sequence[TopicPartition]) -> Iterator[Sequence[TopicPartition]]:
    """As many at a time as one request may name."""
    most = min(MAX_OFFSETS, max(MAX_ID_BYTES // max(len(group.encode()), 1), 1))
    return (partitions[start : start + most] for start in range(0, len(partitions), most))


class CommittedOffsets:
    """`epoch` gives the member's present one, 0 where it is not in the group; `topic_id` that of a topic that it
    consumes, empty where it does not: an offset of another topic of the name counts as none. `tenure` stands for one
    time of having a partition: another object each time it is taken up, None while it is not the member's."""

    def __init__(
        self,
        cluster: Cluster,
        coordinator: Coordinator,
        member_id: str,
        epoch: Callable[[], int],
        topic_id: Callable[[str], bytes],
        tenure: Callable[[TopicPartition], object | None],
    ) -> None:
        self._cluster = cluster
        self._coordinator = coordinator
        self._member_id = member_id
        self._epoch = epoch
        self._topic_id = topic_id
        self._tenure = tenure
        self._committing = asyncio.Lock()  # one request under way: the order of two is not defined over reconnects

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Keeps them, 5,000 at a time. Retries for `request_timeout_ms`.

        Raises:
            CommitFailedError: some partitions are other members' by now, or this one is out of the group; what could be
                kept was.
            HighwaterError: the coordinator refuses it, or stayed out of reach: it may or may not have been kept.
        """
        refused: dict[TopicPartition, HighwaterError] = {}
        tenures = {partition: self._tenure(partition) for partition in offsets}
        async with self._committing:
            for some in chunks(self._coordinator.group, list(offsets)):
                refused |= await self._commit_some({partition: offsets[partition] for partition in some}, tenures)
        if not refused:
            return
        stale = [one for one, error in refused.items() if error.code is ErrorCode.STALE_MEMBER_EPOCH]
        if not stale:
            raise next(iter(refused.values()))
        raise CommitFailedError(
            f"group {self._coordinator.group!r}: {len(stale)} partitions are not this member's any more, for example "
            f"{stale[0].topic}-{stale[0].partition}; their owners read again what was not committed",
            partitions=frozenset(stale),
        )

    async def _commit_some(
        self, offsets: Mapping[TopicPartition, int], tenures: Mapping[TopicPartition, object | None]
    ) -> dict[TopicPartition, HighwaterError]:
        """The refusals. A partition that was lost is left out, even where it is this member's again by now: others may
        have committed more of it meanwhile, and under the epoch of now the coordinator would take that back."""
        asked: dict[TopicPartition, int] = {}

        async def attempt() -> Any:
            asked.clear()
            asked.update(
                (one, offset)
                for one, offset in offsets.items()
                if tenures[one] is not None and self._tenure(one) is tenures[one]
            )
            if not asked:
                return group_pb2.CommitOffsetsResponse()
            return await self._coordinator.call(
                lambda stub: stub.CommitOffsets, self._commit_request(asked), self._cluster.request_timeout_s
            )

        try:
            response = await retried(attempt, self._cluster.request_timeout_s)
        except HighwaterError as error:
            if error.code is ErrorCode.UNKNOWN_MEMBER_ID:
                raise self._out_of_the_group(offsets) from error
            raise
        refused = {
            one: error_for(ErrorCode.STALE_MEMBER_EPOCH, f"{one.topic}-{one.partition} is not this member's")
            for one in offsets
            if one not in asked
        }
        for partition, kept in zip(asked, response.offsets, strict=True):
            code = from_proto(kept.error)
            if code is not ErrorCode.NONE:
                topic, number = partition
                refused[partition] = error_for(code, f"{topic}-{number}: {kept.error.message or code.name}")
        return refused

    def _commit_request(self, offsets: Mapping[TopicPartition, int]) -> group_pb2.CommitOffsetsRequest:
        """With the epoch of now: between two attempts it may have changed."""
        epoch = self._epoch()
        if epoch <= 0:
            raise self._out_of_the_group(offsets)
        request = group_pb2.CommitOffsetsRequest(
            group=self._coordinator.group, member_id=self._member_id, member_epoch=epoch
        )
        for (topic, partition), offset in offsets.items():
            request.offsets.add(
                partition=common_pb2.TopicPartition(topic=topic, partition=partition),
                topic_id=self._topic_id(topic),
                offset=offset,
                leader_epoch=-1,
            )
        return request

    def _out_of_the_group(self, offsets: Mapping[TopicPartition, int]) -> CommitFailedError:
        return CommitFailedError(
            f"this member is not in group {self._coordinator.group!r} any more, and its partitions are others': they "
            "read again what was not committed",
            ErrorCode.UNKNOWN_MEMBER_ID,
            frozenset(offsets),
        )

    async def fetch(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """One attempt: the next offset to be read of each; -1: none was committed. Those without an answer that counts
        are not in it. Raises `HighwaterError`."""
        found = {}
        for some in chunks(self._coordinator.group, partitions):
            request = group_pb2.FetchOffsetsRequest(
                group=self._coordinator.group,
                member_id=self._member_id,
                member_epoch=self._epoch(),
                partitions=[common_pb2.TopicPartition(topic=topic, partition=number) for topic, number in some],
                require_stable=True,
            )
            response = await self._coordinator.call(
                lambda stub: stub.FetchOffsets, request, self._cluster.request_timeout_s
            )
            for partition, committed in zip(some, response.offsets, strict=True):
                if from_proto(committed.error) is ErrorCode.NONE:
                    read = self._topic_id(partition.topic)
                    another = bool(read and committed.topic_id) and committed.topic_id != read
                    found[partition] = -1 if another else committed.offset  # a topic that had the name, or has it
        return found
