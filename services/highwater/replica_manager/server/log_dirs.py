"""The broker's log directories, of which only its log-storage knows, as clients ask for them.

These answers name the directories, so errors of a directory, a replica or a move keep their paths. Where log-storage
does not answer, the place of its socket is left out."""

from __future__ import annotations

from collections.abc import Sequence

from highwater.errors import ErrorCode
from highwater.log_storage_client.values import StorageError, StorageUnavailableError
from highwater.model.partition import PartitionKey
from highwater.replica_manager.replicas.replica_manager import ReplicaManager
from highwater.replica_manager.server.partition_errors import without_places
from highwater.rpc.errors import to_proto
from highwater.rpc.process.loop_turn import by_turns
from highwater.v1 import broker_pb2, log_storage_pb2


class LogDirsHandler:
    def __init__(self, replica_manager: ReplicaManager) -> None:
        self._replica_manager = replica_manager

    async def describe(self, keys: Sequence[PartitionKey]) -> broker_pb2.DescribeLogDirsResponse:
        """No keys: all replicas. LOG_STORAGE_ERROR where log-storage does not answer."""
        try:
            found = await self._replica_manager.storage.describe_logs(keys)
        except StorageUnavailableError as error:
            message = without_places(str(error))
            return broker_pb2.DescribeLogDirsResponse(error=to_proto(ErrorCode.LOG_STORAGE_ERROR, message))
        response = broker_pb2.DescribeLogDirsResponse()
        by_path: dict[str, broker_pb2.LogDir] = {}
        for log_dir in found.log_dirs:
            described = by_path[log_dir.path] = response.log_dirs.add(
                path=log_dir.path,
                full=log_dir.full,
                total_bytes=log_dir.total_bytes,
                usable_bytes=log_dir.usable_bytes,
                directory_id=log_dir.directory_id,
            )
            if log_dir.HasField("error"):
                described.error.CopyFrom(log_dir.error)
        async for log in by_turns(found.logs):
            if (log_dir_of := by_path.get(log.log_dir)) is not None:
                _add_replica(log_dir_of, log)
            if (future_dir := by_path.get(log.future_log_dir)) is not None:
                _add_future(future_dir, log)
        return response

    async def alter(self, moves: Sequence[tuple[PartitionKey, str]]) -> Sequence[StorageError]:
        """Returns the outcome of each move, in their order."""
        try:
            return await self._replica_manager.storage.alter_log_dirs(moves)
        except StorageUnavailableError as error:
            return [StorageError(ErrorCode.LOG_STORAGE_ERROR, without_places(str(error)))] * len(moves)


def _add_replica(log_dir: broker_pb2.LogDir, log: log_storage_pb2.LogDescription) -> None:
    replica = log_dir.replicas.add(partition=log.partition, topic=log.topic, size_bytes=log.size_bytes)
    if log.HasField("error"):
        replica.error.CopyFrom(log.error)


def _add_future(log_dir: broker_pb2.LogDir, log: log_storage_pb2.LogDescription) -> None:
    log_dir.replicas.add(
        partition=log.partition,
        topic=log.topic,
        size_bytes=log.future_size_bytes,
        offset_lag=max(log.log.log_end_offset - log.future_log_end_offset, 0),
        is_future=True,
    )
