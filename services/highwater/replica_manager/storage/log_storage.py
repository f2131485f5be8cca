"""The replica-manager's client of its own log-storage: the calls beside the append stream.

Every answer carries the incarnation that gave it; each one is shown to `incarnation`, so that a restart is noticed by
whichever answer comes first (RULES 1.4). A call that is not answered raises `StorageUnavailableError`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import grpc
import grpc.aio

from highwater.errors import ErrorCode
from highwater.log_storage_client.append_stream import Append, AppendStream, StorageUnavailableError
from highwater.model.fence_role import Role
from highwater.model.partition import PartitionKey
from highwater.replica_manager.partition.actions import FenceAnswer
from highwater.rpc.channel import open_channel
from highwater.rpc.errors import from_proto
from highwater.supervision import TaskSupervisor
from highwater.v1 import common_pb2, log_storage_pb2, log_storage_pb2_grpc

CALL_TIMEOUT_S = 5.0  # RULES 7.7: a replica whose storage does not answer for so long is not live

LISTING_TIMEOUT_S = 20.0  # some ten megabytes may be read from a slow disk

_Response = TypeVar("_Response")
_ROLES = {Role.LEADER: log_storage_pb2.ROLE_LEADER, Role.FOLLOWER: log_storage_pb2.ROLE_FOLLOWER}


@dataclass(frozen=True, slots=True)
class StorageError:
    """A refusal of log-storage, and its sentence about it."""

    code: ErrorCode
    message: str = ""


@dataclass(frozen=True, slots=True)
class CreateAnswer:
    error: StorageError
    incarnation: str = ""  # that has the configuration now


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    error: StorageError
    records: bytes
    log_end_offset: int
    log_start_offset: int
    incarnation: str
    offline: bool = False


class OffsetLookup(NamedTuple):
    key: PartitionKey
    timestamp: int  # ms since the epoch, or one of those of `offsets.py`
    max_offset: int  # only records below it count; -1: no bound


@dataclass(frozen=True, slots=True)
class OffsetAnswer:
    incarnation: str
    error: StorageError
    offset: int  # -1: none
    timestamp: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class LogDescription:
    key: PartitionKey
    topic: str
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    last_epoch: int
    offline: bool = False


@dataclass(frozen=True, slots=True)
class Description:
    incarnation: str
    logs: tuple[LogDescription, ...]
    tail_lost: bool  # in any log directory (RULES 7.2)
    cluster_ids: frozenset[str]  # of the log directories; "" where one in use has none yet (RULES 9.3)
    # Ids of log directories: of those that may have lost what was written since the start, and of those in use that
    # have not (RULES 7.2).
    doubted_dirs: frozenset[str] = frozenset()
    sound_dirs: frozenset[str] = frozenset()


def to_key(key: PartitionKey) -> common_pb2.PartitionKey:
    return common_pb2.PartitionKey(topic_id=key.topic_id, partition=key.partition)


def from_key(key: common_pb2.PartitionKey) -> PartitionKey:
    return PartitionKey(key.topic_id, key.partition)


class LogStorage:
    """`incarnation` is called with the incarnation of every answer, `offline_logs` and `damaged_logs` with how many
    logs are that, whenever it has changed. A broken append stream is settled partition by partition, by what was
    outstanding on it (RULES 3.4)."""

    def __init__(
        self,
        address: str,
        incarnation: Callable[[str], None],
        offline_logs: Callable[[int], None] = lambda count: None,
        damaged_logs: Callable[[int], None] = lambda count: None,
        *,
        supervisor: TaskSupervisor | None = None,
    ) -> None:
        # Two connections: a long read must not stand before an append in the transport's queue.
        self._append_channel = open_channel(address)
        self._channel = open_channel(address)
        self._seen = incarnation
        self._stub = log_storage_pb2_grpc.LogStorageStub(self._channel)
        self.appends = AppendStream(
            self._append_channel, incarnation, offline_logs, damaged_logs, supervisor=supervisor
        )

    def start(self) -> None:
        self.appends.start()

    async def stop(self) -> None:
        await self.appends.stop()
        await self._append_channel.close(None)
        await self._channel.close(None)

    def append(self, append: Append) -> None:
        self.appends.send(append)

    async def probe(self, timeout_s: float) -> str:
        """The incarnation that answered an empty append (RULES 8.2)."""
        return await self.appends.probe(timeout_s)

    async def create_log(
        self, topic: str, key: PartitionKey, config: Mapping[str, str], newer_than_incarnation: str
    ) -> CreateAnswer:
        """A log that is there takes the configuration. INCONSISTENT_TOPIC_ID: another topic's log is in the way
        (RULES 9.3). `newer_than_incarnation`: of log-storage, where the topic is newer than that, else empty."""
        request = log_storage_pb2.CreateLogRequest(
            topic=topic,
            partition=to_key(key),
            config=dict(config),
            newer_than_incarnation=newer_than_incarnation,
        )
        response = await _answered(self._stub.CreateLog(request, timeout=CALL_TIMEOUT_S))
        self._seen(response.incarnation)
        return CreateAnswer(_error(response.error), response.incarnation)

    async def delete_log(self, key: PartitionKey, leader_epoch: int) -> StorageError:
        request = log_storage_pb2.DeleteLogRequest(partition=to_key(key), leader_epoch=leader_epoch)
        response = await _answered(self._stub.DeleteLog(request, timeout=CALL_TIMEOUT_S))
        self._seen(response.incarnation)
        return _error(response.error)

    async def fence(
        self, role: Role, replica_manager_incarnation: str, partitions: Sequence[tuple[PartitionKey, int]]
    ) -> list[FenceAnswer]:
        """RULES 3.1, 3.2: `partitions` are (key, leader epoch); the answers come in their order."""
        request = log_storage_pb2.FenceEpochRequest(
            role=_ROLES[role],
            replica_manager_incarnation=replica_manager_incarnation if role is Role.LEADER else "",
            partitions=[
                log_storage_pb2.FencePartition(partition=to_key(key), leader_epoch=leader_epoch)
                for key, leader_epoch in partitions
            ],
        )
        # Asked for as soon as the append stream has met another incarnation: this channel may have to connect yet, and
        # a fence that failed is only tried again when the instruction comes again.
        call = self._stub.FenceEpoch(request, timeout=CALL_TIMEOUT_S, wait_for_ready=True)
        response = await _answered(call)
        self._seen(response.incarnation)
        return [
            FenceAnswer(
                role=role,
                leader_epoch=leader_epoch,
                error=from_proto(result.error),
                log_end_offset=result.log.log_end_offset,
                last_epoch=result.log.last_epoch,
                log_start_offset=result.log.log_start_offset,
                high_watermark=result.log.high_watermark,
                incarnation=response.incarnation,
                epochs=tuple((entry.leader_epoch, entry.start_offset) for entry in result.epochs),
                offline=result.log.offline,
            )
            for (_, leader_epoch), result in zip(partitions, response.results, strict=True)
        ]

    async def read(self, key: PartitionKey, offset: int, max_offset: int, max_bytes: int) -> ReadAnswer:
        """Whole batches from the one that holds `offset`; none with a base offset at or above `max_offset` (-1: no
        bound)."""
        request = log_storage_pb2.ReadRequest(
            partition=to_key(key), offset=offset, max_offset=max_offset, max_bytes=max_bytes
        )
        response = await _answered(self._stub.Read(request, timeout=CALL_TIMEOUT_S))
        self._seen(response.incarnation)
        return ReadAnswer(
            _error(response.error),
            response.records,
            response.log.log_end_offset,
            response.log.log_start_offset,
            response.incarnation,
            response.log.offline,
        )

    async def list_offsets(self, lookups: Sequence[OffsetLookup]) -> list[OffsetAnswer]:
        """The answers come in the order of the lookups."""
        request = log_storage_pb2.LogListOffsetsRequest()
        for key, timestamp, max_offset in lookups:
            request.partitions.add(partition=to_key(key), timestamp=timestamp, max_offset=max_offset)
        response = await _answered(self._stub.ListOffsets(request, timeout=CALL_TIMEOUT_S))
        self._seen(response.incarnation)
        return [
            OffsetAnswer(response.incarnation, _error(each.error), each.offset, each.timestamp, each.leader_epoch)
            for each in response.results
        ]

    async def list_batches(
        self, key: PartitionKey, offset: int, max_batches: int, *, check_crcs: bool
    ) -> log_storage_pb2.LogListBatchesResponse:
        """As log-storage answers it."""
        request = log_storage_pb2.LogListBatchesRequest(
            partition=to_key(key), offset=offset, max_batches=max_batches, check_crcs=check_crcs
        )
        response = await _answered(self._stub.ListBatches(request, timeout=LISTING_TIMEOUT_S))
        self._seen(response.incarnation)
        return response

    async def drop_damaged(self, key: PartitionKey, leader_epoch: int) -> StorageError:
        """RULES 7.6: only after a committed state of this leader epoch that has this broker neither in the ISR nor in
        `elr`."""
        request = log_storage_pb2.DropDamagedRequest(partition=to_key(key), leader_epoch=leader_epoch)
        response = await _answered(self._stub.DropDamaged(request, timeout=CALL_TIMEOUT_S))
        self._seen(response.incarnation)
        return _error(response.error)

    async def raise_log_start(
        self, key: PartitionKey, leader_epoch: int, log_start_offset: int
    ) -> tuple[StorageError, int]:
        """The error and the log start afterwards."""
        request = log_storage_pb2.RaiseLogStartRequest(
            partition=to_key(key), leader_epoch=leader_epoch, log_start_offset=log_start_offset
        )
        response = await _answered(self._stub.RaiseLogStart(request, timeout=CALL_TIMEOUT_S))
        self._seen(response.incarnation)
        return _error(response.error), response.log.log_start_offset

    async def checkpoint_high_watermarks(self, marks: Sequence[tuple[PartitionKey, int, int]]) -> None:
        """`marks` are (key, leader epoch, high watermark) of what this broker leads. What is refused is fenced
        already, so its mark is of no use."""
        request = log_storage_pb2.CheckpointHighWatermarksRequest(
            partitions=[
                log_storage_pb2.PartitionHighWatermark(
                    partition=to_key(key), leader_epoch=leader_epoch, high_watermark=high_watermark
                )
                for key, leader_epoch, high_watermark in marks
            ]
        )
        response = await _answered(self._stub.CheckpointHighWatermarks(request, timeout=CALL_TIMEOUT_S))
        self._seen(response.incarnation)

    async def describe(self, timeout_s: float = CALL_TIMEOUT_S) -> Description:
        response = await _answered(
            self._stub.DescribeLogs(log_storage_pb2.DescribeLogsRequest(), timeout=timeout_s, wait_for_ready=True)
        )
        if response.opening:
            # Not all logs are among these, and nothing else is answered: no fence that another incarnation asks for.
            raise StorageUnavailableError("log-storage is opening its logs")
        self._seen(response.incarnation)
        return Description(
            response.incarnation,
            tuple(
                LogDescription(
                    from_key(log.partition),
                    log.topic,
                    log.log.log_start_offset,
                    log.log.log_end_offset,
                    log.log.high_watermark,
                    log.log.last_epoch,
                    log.log.offline,
                )
                for log in response.logs
            ),
            any(directory.tail_lost for directory in response.log_dirs),
            frozenset(
                directory.cluster_id
                for directory in response.log_dirs
                if directory.cluster_id or not directory.error.code
            ),
            frozenset(directory.directory_id for directory in response.log_dirs if directory.doubted),
            frozenset(
                directory.directory_id
                for directory in response.log_dirs
                if not directory.doubted and not directory.error.code
            ),
        )

    async def describe_logs(self, keys: Sequence[PartitionKey] = ()) -> log_storage_pb2.DescribeLogsResponse:
        """As log-storage answers it; no keys: all."""
        request = log_storage_pb2.DescribeLogsRequest(partitions=map(to_key, keys))
        response = await _answered(self._stub.DescribeLogs(request, timeout=CALL_TIMEOUT_S))
        self._seen(response.incarnation)
        return response

    async def alter_log_dirs(self, moves: Sequence[tuple[PartitionKey, str]]) -> list[StorageError]:
        """`moves` are (key, directory); the answers come in their order."""
        request = log_storage_pb2.AlterLogDirsRequest(
            moves=[log_storage_pb2.LogDirMove(partition=to_key(key), log_dir=log_dir) for key, log_dir in moves]
        )
        response = await _answered(self._stub.AlterReplicaLogDirs(request, timeout=CALL_TIMEOUT_S))
        self._seen(response.incarnation)
        return [_error(result.error) for result in response.results]

    async def record_boot(self, incarnation: str) -> None:
        """Flushes everything and records the boot, which ends "tail lost" (RULES 7.2): of this incarnation alone, as
        another one may have found that more is lost. It stays unrecorded, until log-storage's next start,
        of a directory with a log that is offline."""
        unflushed = await self._flush(log_storage_pb2.FlushRequest(record_boot=True, incarnation=incarnation))
        if unflushed:
            described = await self.describe()
            for log in described.logs:
                if log.key in unflushed and not log.offline:
                    raise StorageUnavailableError(f"log-storage: {unflushed[log.key]}")

    async def record_cluster(self, cluster_id: str) -> None:
        """Records whose logs these are (RULES 9.3)."""
        await self._flush(log_storage_pb2.FlushRequest(cluster_id=cluster_id))

    async def _flush(self, request: log_storage_pb2.FlushRequest) -> dict[PartitionKey, str]:
        """Why single logs are not on disk. Raises `StorageUnavailableError` also where a directory in use took less
        than was asked."""
        response = await _answered(self._stub.Flush(request, timeout=60))
        self._seen(response.incarnation)
        if request.incarnation not in ("", response.incarnation):
            raise StorageUnavailableError("log-storage was started again")
        for refused in response.errors:
            if not refused.HasField("partition"):
                raise StorageUnavailableError(f"log-storage: {refused.error.message}")
        return {from_key(refused.partition): refused.error.message for refused in response.errors}


async def _answered(call: Awaitable[_Response]) -> _Response:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise StorageUnavailableError(f"log-storage: {error.code().name}: {error.details()}") from error


def _error(error: common_pb2.Error) -> StorageError:
    return StorageError(from_proto(error), error.message)
