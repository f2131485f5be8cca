"""ListOffsets and OffsetForLeaderEpoch (RULES 5.7, 4.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from highwater.errors import ErrorCode
from highwater.metadata.models import PartitionKey
from highwater.replica_manager.append_stream import StorageUnavailableError
from highwater.replica_manager.broker import Broker
from highwater.replica_manager.hosted import HostedPartition

LATEST = -1
EARLIEST = -2
CONSUMER = -1
DEBUG = -2


class OffsetAsk(NamedTuple):
    key: PartitionKey
    leader_epoch: int  # -1: not known
    timestamp: int  # ms since the epoch, or one of the above


@dataclass(frozen=True, slots=True)
class ListedOffset:
    key: PartitionKey
    error: ErrorCode = ErrorCode.NONE
    message: str = ""
    offset: int = -1
    timestamp: int = -1
    leader_epoch: int = -1


class EpochAsk(NamedTuple):
    key: PartitionKey
    current_leader_epoch: int  # -1: not known
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class EpochEnd:
    key: PartitionKey
    error: ErrorCode = ErrorCode.NONE
    leader_epoch: int = -1
    end_offset: int = -1


class Offsets:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def list_one(self, ask: OffsetAsk, replica_id: int) -> ListedOffset:
        """`replica_id`: CONSUMER, DEBUG (any replica answers), or a broker's id."""
        hosted = self._broker.hosted.get(ask.key)
        if hosted is None:
            return ListedOffset(ask.key, self._broker.absent(ask.key))
        if replica_id == DEBUG:
            return await self._from_storage(ask, hosted, bound=-1)
        error = hosted.partition.check_client_epoch(ask.leader_epoch)
        if error is not ErrorCode.NONE:
            return ListedOffset(ask.key, error)
        partition = hosted.partition
        if ask.timestamp == EARLIEST:
            return await self._log_start(ask, hosted)
        if replica_id != CONSUMER:
            if ask.timestamp == LATEST:
                return ListedOffset(ask.key, offset=partition.log_end_offset, leader_epoch=partition.leader_epoch)
            return await self._from_storage(ask, hosted, bound=-1)
        # RULES 5.7: after an election what an earlier leader had shown may be above the high watermark.
        latest = partition.latest_for_consumer()
        if isinstance(latest, ErrorCode):
            return ListedOffset(ask.key, latest, "the new leader is still finding out what is committed: retry")
        if ask.timestamp == LATEST:
            return ListedOffset(ask.key, offset=latest, leader_epoch=partition.leader_epoch)
        return await self._from_storage(ask, hosted, bound=latest)

    async def _log_start(self, ask: OffsetAsk, hosted: HostedPartition) -> ListedOffset:
        """As log-storage has it now: retention raises it without a word to the leader, whose reads may all come from
        the tail cache (RULES 5.7)."""
        partition, leader_epoch = hosted.partition, hosted.partition.leader_epoch
        try:
            answer = await self._broker.storage.list_offsets(ask.key, EARLIEST, -1)
        except StorageUnavailableError as error:
            return ListedOffset(ask.key, ErrorCode.LOG_STORAGE_ERROR, str(error))
        if answer.error.code is not ErrorCode.NONE:
            return ListedOffset(ask.key, answer.error.code, answer.error.message)
        if partition.leadership is None or partition.leader_epoch != leader_epoch:
            return ListedOffset(ask.key, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._broker.perform(hosted, partition.log_start_seen(leader_epoch, answer.incarnation, answer.offset))
        return ListedOffset(ask.key, offset=partition.log_start_offset, leader_epoch=leader_epoch)

    async def _from_storage(self, ask: OffsetAsk, hosted: HostedPartition, bound: int) -> ListedOffset:
        try:
            answer = await self._broker.storage.list_offsets(ask.key, ask.timestamp, bound)
        except StorageUnavailableError as error:
            return ListedOffset(ask.key, ErrorCode.LOG_STORAGE_ERROR, str(error))
        return ListedOffset(
            ask.key, answer.error.code, answer.error.message, answer.offset, answer.timestamp, answer.leader_epoch
        )

    def epoch_end(self, ask: EpochAsk) -> EpochEnd:
        """The largest epoch at or below the one asked for, and its end (RULES 4.3); -1 and -1 where there is none."""
        hosted = self._broker.hosted.get(ask.key)
        if hosted is None:
            return EpochEnd(ask.key, self._broker.absent(ask.key))
        error = hosted.partition.check_client_epoch(ask.current_leader_epoch)
        if error is not ErrorCode.NONE:
            return EpochEnd(ask.key, error)
        end = hosted.partition.end_offset_for_epoch(ask.leader_epoch)
        return EpochEnd(ask.key, ErrorCode.NONE, end.leader_epoch, end.end_offset)
