"""DeleteRecords: the log start is raised here, then on every live replica (RULES 5.8)."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass

from highwater.errors import ErrorCode
from highwater.log_storage_client.values import StorageUnavailableError
from highwater.model.partition import PartitionKey
from highwater.model.topic_name import is_internal_topic
from highwater.replica_manager.replicas.data_wait import DataWait
from highwater.replica_manager.replicas.hosted_partition import HostedPartition
from highwater.replica_manager.replicas.replica_manager import ReplicaManager
from highwater.security.caller import current_caller

TO_HIGH_WATERMARK = -1
MAX_WAITING = 2_000  # partitions, over all requests
MAX_OF_ONE = 1_000
"""Of one caller: a replica that does not follow, of one topic of its own, is to keep nobody else out. As many as one
request may name."""


@dataclass(frozen=True, slots=True)
class DeletedRecords:
    key: PartitionKey
    error: ErrorCode = ErrorCode.NONE
    message: str = ""
    low_watermark: int = -1  # the smallest log start of the live replicas


class DeleteRecordsHandler:
    def __init__(self, replica_manager: ReplicaManager) -> None:
        self._replica_manager = replica_manager
        self._waiting = 0
        self._by_caller: Counter[str] = Counter()  # of those who have any

    async def delete(self, key: PartitionKey, offset: int, timeout_ms: int) -> DeletedRecords:
        """Answered when the log start of every live replica has reached `offset`, or with REQUEST_TIMED_OUT; with
        OVERLOADED, and nothing deleted, where too many wait for that already."""
        hosted = self._replica_manager.hosted.get(key)
        if hosted is None:
            return DeletedRecords(key, self._replica_manager.absent(key))
        if is_internal_topic(hosted.topic):
            message = f"topic {hosted.topic!r} is internal: its records are the cluster's own"
            return DeletedRecords(key, ErrorCode.INVALID_TOPIC, message)
        partition = hosted.partition
        if partition.leadership is None:
            return DeletedRecords(key, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        wanted = partition.high_watermark if offset == TO_HIGH_WATERMARK else offset
        if not 0 <= wanted <= partition.high_watermark:
            return DeletedRecords(
                key,
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {wanted} is not at or below the high watermark {partition.high_watermark}",
            )
        caller = current_caller.get()
        held = self._by_caller[caller]
        if self._waiting >= MAX_WAITING or held >= MAX_OF_ONE:
            message = f"{self._waiting} deletions wait here already, {held} of them the caller's: retry later"
            return DeletedRecords(key, ErrorCode.OVERLOADED, message)
        self._waiting += 1
        self._by_caller[caller] += 1
        try:
            return await self._delete(hosted, wanted, timeout_ms)
        finally:
            self._waiting -= 1
            self._by_caller[caller] -= 1
            if not self._by_caller[caller]:
                del self._by_caller[caller]

    async def _delete(self, hosted: HostedPartition, wanted: int, timeout_ms: int) -> DeletedRecords:
        key, partition = hosted.key, hosted.partition
        leader_epoch, incarnation = partition.leader_epoch, partition.incarnation
        try:
            # log-storage raises no log start above the high watermark that it was told last.
            await self._replica_manager.storage.checkpoint_high_watermarks(
                [(key, leader_epoch, partition.high_watermark)]
            )
            error, log_start_offset = await self._replica_manager.storage.raise_log_start(key, leader_epoch, wanted)
        except StorageUnavailableError as problem:
            return DeletedRecords(key, ErrorCode.LOG_STORAGE_ERROR, str(problem))
        if error.code is not ErrorCode.NONE:
            return DeletedRecords(key, error.code, error.message)
        self._replica_manager.perform(hosted, partition.log_start_seen(leader_epoch, incarnation, log_start_offset))
        return await self._everywhere(hosted, leader_epoch, wanted, timeout_ms)

    @staticmethod
    async def _everywhere(hosted: HostedPartition, leader_epoch: int, offset: int, timeout_ms: int) -> DeletedRecords:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + max(timeout_ms, 0) / 1000
        wait = DataWait()
        hosted.log_start_waits.add(wait)
        try:
            while True:
                leadership = hosted.partition.leadership
                if leadership is None or leadership.leader_epoch != leader_epoch:
                    return DeletedRecords(hosted.key, ErrorCode.NOT_LEADER_OR_FOLLOWER)
                low_watermark = leadership.low_watermark()
                if low_watermark >= offset:
                    return DeletedRecords(hosted.key, low_watermark=low_watermark)
                if loop.time() >= deadline:
                    return DeletedRecords(hosted.key, ErrorCode.REQUEST_TIMED_OUT, low_watermark=low_watermark)
                await wait.wait(deadline - loop.time())
        finally:
            hosted.log_start_waits.discard(wait)
