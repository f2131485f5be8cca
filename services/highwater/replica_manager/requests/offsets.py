"""ListOffsets and OffsetForLeaderEpoch (RULES 5.7, 4.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from highwater.errors import ErrorCode
from highwater.log_storage_client.values import OffsetAnswer, OffsetLookup, StorageError, StorageUnavailableError
from highwater.model.partition import PartitionKey
from highwater.replica_manager.partition.answers import check_client_epoch, end_offset_for_epoch, latest_for_consumer
from highwater.replica_manager.replicas.replica_manager import ReplicaManager
from highwater.rpc.process.loop_turn import by_turns

LATEST = -1
EARLIEST = -2
CONSUMER = -1
DEBUG = -2


class OffsetQuery(NamedTuple):
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


class EpochQuery(NamedTuple):
    key: PartitionKey
    current_leader_epoch: int  # -1: not known
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class EpochEnd:
    key: PartitionKey
    error: ErrorCode = ErrorCode.NONE
    leader_epoch: int = -1
    end_offset: int = -1


class OffsetsHandler:
    def __init__(self, replica_manager: ReplicaManager) -> None:
        self._replica_manager = replica_manager

    async def list_all(self, queries: Sequence[OffsetQuery], replica_id: int) -> list[ListedOffset]:
        """In the order of the queries. `replica_id`: CONSUMER, DEBUG (any replica answers), or a broker's id. Each is
        answered as it is when its turn comes."""
        listed: list[ListedOffset] = []
        asked: list[tuple[int, OffsetLookup, int | None]] = []  # with its place
        async for query in by_turns(queries):
            found = self._without_storage(query, replica_id)
            if isinstance(found, OffsetLookup):
                asked.append((len(listed), found, self._leader_epoch(found.key)))  # the epoch in which its bound holds
                found = ListedOffset(found.key)
            listed.append(found)
        if asked:
            answers = await self._answers([lookup for _, lookup, _ in asked])
            async for (place, lookup, leader_epoch), answer in by_turns(zip(asked, answers, strict=True)):
                listed[place] = self._found(lookup, leader_epoch, answer, replica_id)
        return listed

    async def _answers(self, lookups: Sequence[OffsetLookup]) -> Sequence[OffsetAnswer]:
        try:
            return await self._replica_manager.storage.list_offsets(lookups)
        except StorageUnavailableError as error:
            refused = StorageError(ErrorCode.LOG_STORAGE_ERROR, str(error))
            return [OffsetAnswer("", refused, -1, -1, -1)] * len(lookups)

    def _without_storage(self, query: OffsetQuery, replica_id: int) -> ListedOffset | OffsetLookup:
        """The answer, or what log-storage has to be asked for it."""
        hosted = self._replica_manager.hosted.get(query.key)
        if hosted is None:
            return ListedOffset(query.key, self._replica_manager.absent(query.key))
        if replica_id == DEBUG:
            return OffsetLookup(query.key, query.timestamp, -1)
        partition = hosted.partition
        error = check_client_epoch(partition, query.leader_epoch)
        if error is not ErrorCode.NONE:
            return ListedOffset(query.key, error)
        if query.timestamp == EARLIEST:
            return OffsetLookup(query.key, EARLIEST, -1)
        if replica_id != CONSUMER:
            if query.timestamp == LATEST:
                return ListedOffset(query.key, offset=partition.log_end_offset, leader_epoch=partition.leader_epoch)
            return OffsetLookup(query.key, query.timestamp, -1)
        # RULES 5.7: after an election what an earlier leader had shown may be above the high watermark.
        latest = latest_for_consumer(partition)
        if isinstance(latest, ErrorCode):
            return ListedOffset(query.key, latest, "the new leader is still finding out what is committed: retry")
        if query.timestamp == LATEST:
            return ListedOffset(query.key, offset=latest, leader_epoch=partition.leader_epoch)
        return OffsetLookup(query.key, query.timestamp, latest)

    def _leader_epoch(self, key: PartitionKey) -> int | None:
        """None: this broker does not lead."""
        hosted = self._replica_manager.hosted.get(key)
        return None if hosted is None or hosted.partition.leadership is None else hosted.partition.leader_epoch

    def _found(
        self, lookup: OffsetLookup, leader_epoch: int | None, answer: OffsetAnswer, replica_id: int
    ) -> ListedOffset:
        key, error = lookup.key, answer.error
        if replica_id == DEBUG:
            return ListedOffset(key, error.code, error.message, answer.offset, answer.timestamp, answer.leader_epoch)
        if leader_epoch is None or self._leader_epoch(key) != leader_epoch:
            # What was looked into may be cut, or copied from another leader, by now.
            return ListedOffset(key, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if lookup.timestamp == EARLIEST and error.code is ErrorCode.NONE:
            # RULES 5.7: retention raises it without a word to the leader, whose reads may all come from the tail cache.
            hosted = self._replica_manager.hosted[key]
            seen = hosted.partition.log_start_seen(leader_epoch, answer.incarnation, answer.offset)
            self._replica_manager.perform(hosted, seen)
            return ListedOffset(key, offset=hosted.partition.log_start_offset, leader_epoch=leader_epoch)
        return ListedOffset(key, error.code, error.message, answer.offset, answer.timestamp, answer.leader_epoch)

    def epoch_end(self, query: EpochQuery) -> EpochEnd:
        """The largest epoch at or below the one asked for, and its end (RULES 4.3); -1 and -1 where there is none."""
        hosted = self._replica_manager.hosted.get(query.key)
        if hosted is None:
            return EpochEnd(query.key, self._replica_manager.absent(query.key))
        error = check_client_epoch(hosted.partition, query.current_leader_epoch)
        if error is not ErrorCode.NONE:
            return EpochEnd(query.key, error)
        end = end_offset_for_epoch(hosted.partition, query.leader_epoch)
        return EpochEnd(query.key, ErrorCode.NONE, end.leader_epoch, end.end_offset)
