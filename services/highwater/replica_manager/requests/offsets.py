"""ListOffsets and OffsetForLeaderEpoch (RULES 5.7, 4.3)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from highwater.errors import ErrorCode
from highwater.metadata.models import PartitionKey
from highwater.replica_manager.partition.answers import check_client_epoch, end_offset_for_epoch, latest_for_consumer
from highwater.replica_manager.replicas.replica_manager import ReplicaManager
from highwater.replica_manager.storage.append_stream import StorageUnavailableError
from highwater.replica_manager.storage.log_storage import OffsetAnswer, OffsetLookup, StorageError

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
    def __init__(self, replica_manager: ReplicaManager) -> None:
        self._replica_manager = replica_manager

    async def list_all(self, asks: Sequence[OffsetAsk], replica_id: int) -> list[ListedOffset]:
        """In the order of the asks. `replica_id`: CONSUMER, DEBUG (any replica answers), or a broker's id."""
        listed = [self._without_storage(ask, replica_id) for ask in asks]
        asked = [(each, self._leader_epoch(each.key)) for each in listed if isinstance(each, OffsetLookup)]
        answers: Iterable[OffsetAnswer] = ()
        if asked:
            try:
                answers = await self._replica_manager.storage.list_offsets([lookup for lookup, _ in asked])
            except StorageUnavailableError as error:
                refused = StorageError(ErrorCode.LOG_STORAGE_ERROR, str(error))
                answers = [OffsetAnswer("", refused, -1, -1, -1)] * len(asked)
        found = (self._found(*each, answer, replica_id) for each, answer in zip(asked, answers, strict=True))
        return [next(found) if isinstance(each, OffsetLookup) else each for each in listed]

    def _without_storage(self, ask: OffsetAsk, replica_id: int) -> ListedOffset | OffsetLookup:
        """The answer, or what log-storage has to be asked for it."""
        hosted = self._replica_manager.hosted.get(ask.key)
        if hosted is None:
            return ListedOffset(ask.key, self._replica_manager.absent(ask.key))
        if replica_id == DEBUG:
            return OffsetLookup(ask.key, ask.timestamp, -1)
        partition = hosted.partition
        error = check_client_epoch(partition, ask.leader_epoch)
        if error is not ErrorCode.NONE:
            return ListedOffset(ask.key, error)
        if ask.timestamp == EARLIEST:
            return OffsetLookup(ask.key, EARLIEST, -1)
        if replica_id != CONSUMER:
            if ask.timestamp == LATEST:
                return ListedOffset(ask.key, offset=partition.log_end_offset, leader_epoch=partition.leader_epoch)
            return OffsetLookup(ask.key, ask.timestamp, -1)
        # RULES 5.7: after an election what an earlier leader had shown may be above the high watermark.
        latest = latest_for_consumer(partition)
        if isinstance(latest, ErrorCode):
            return ListedOffset(ask.key, latest, "the new leader is still finding out what is committed: retry")
        if ask.timestamp == LATEST:
            return ListedOffset(ask.key, offset=latest, leader_epoch=partition.leader_epoch)
        return OffsetLookup(ask.key, ask.timestamp, latest)

    def _leader_epoch(self, key: PartitionKey) -> int | None:
        """None: this broker does not lead."""
        hosted = self._replica_manager.hosted.get(key)
        return None if hosted is None or hosted.partition.leadership is None else hosted.partition.leader_epoch

    def _found(
        self, lookup: OffsetLookup, leader_epoch: int | None, answer: OffsetAnswer, replica_id: int
    ) -> ListedOffset:
        key, error = lookup.key, answer.error
        if lookup.timestamp == EARLIEST and replica_id != DEBUG and error.code is ErrorCode.NONE:
            # RULES 5.7: retention raises it without a word to the leader, whose reads may all come from the tail cache.
            if leader_epoch is None or self._leader_epoch(key) != leader_epoch:
                return ListedOffset(key, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            hosted = self._replica_manager.hosted[key]
            seen = hosted.partition.log_start_seen(leader_epoch, answer.incarnation, answer.offset)
            self._replica_manager.perform(hosted, seen)
            return ListedOffset(key, offset=hosted.partition.log_start_offset, leader_epoch=leader_epoch)
        return ListedOffset(key, error.code, error.message, answer.offset, answer.timestamp, answer.leader_epoch)

    def epoch_end(self, ask: EpochAsk) -> EpochEnd:
        """The largest epoch at or below the one asked for, and its end (RULES 4.3); -1 and -1 where there is none."""
        hosted = self._replica_manager.hosted.get(ask.key)
        if hosted is None:
            return EpochEnd(ask.key, self._replica_manager.absent(ask.key))
        error = check_client_epoch(hosted.partition, ask.current_leader_epoch)
        if error is not ErrorCode.NONE:
            return EpochEnd(ask.key, error)
        end = end_offset_for_epoch(hosted.partition, ask.leader_epoch)
        return EpochEnd(ask.key, ErrorCode.NONE, end.leader_epoch, end.end_offset)
