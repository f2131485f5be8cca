"""The client of a broker's log-storage: the calls beside the append stream.

Every answer carries the incarnation that gave it; each one is shown to `seen`, so that a restart is noticed by
whichever answer comes first (RULES 1.4). A call that is not answered raises `StorageUnavailableError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, TypeVar

import grpc
import grpc.aio

from highwater.errors import ErrorCode
from highwater.log_storage_client.conversions import (
    ROLES,
    create_request,
    fenced_log,
    log_state,
    storage_error,
    truncated_log,
)
from highwater.log_storage_client.values import (
    CreateAnswer,
    Description,
    FencedLog,
    LogDescription,
    NewLog,
    OffsetAnswer,
    OffsetLookup,
    ReadAnswer,
    StorageError,
    StorageUnavailableError,
    TruncatedLog,
)
from highwater.model.fence_role import Role
from highwater.model.partition import PartitionKey
from highwater.rpc.partition_keys import from_key, to_key
from highwater.rpc.process.loop_turn import by_turns
from highwater.telemetry.tracing import under_way
from highwater.v1 import common_pb2, log_storage_pb2, log_storage_pb2_grpc

LISTING_TIMEOUT_S = 20.0  # some ten megabytes may be read from a slow disk
FLUSH_TIMEOUT_S = 60.0
LOGS_AT_ONCE = 64  # are made by one call: its answer must come in time from a slow disk, too


class _Answer(Protocol):
    @property
    def incarnation(self) -> str: ...


_Response = TypeVar("_Response", bound=_Answer)


class LogStorageClient:
    """`timeout_s` is of every call that is not known to take longer. `unanswered` begins the sentence of an error where
    a call is not answered. `broker_config` is what is set for the broker while it runs, which goes with the logs that
    are to be made; None: nobody knows. `config_went` is told of it once such a call is over, however it ended. `close`
    closes the channel."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        *,
        timeout_s: float,
        unanswered: str = "log-storage",
        seen: Callable[[str], None] = lambda incarnation: None,
        broker_config: Callable[[], Mapping[str, str] | None] = lambda: None,
        config_went: Callable[[Mapping[str, str] | None], object] = lambda values: None,
    ) -> None:
        self._channel = channel
        self._stub = log_storage_pb2_grpc.LogStorageStub(channel)
        self._timeout_s = timeout_s
        self._unanswered = unanswered
        self._seen = seen
        self._broker_config = broker_config
        self._config_went = config_went

    async def close(self) -> None:
        await self._channel.close(None)

    async def create_logs(self, logs: Sequence[NewLog]) -> list[CreateAnswer]:
        """A log that is there takes the configuration. The answers come in the order of the logs, and one that did not
        come is LOG_STORAGE_ERROR. INCONSISTENT_TOPIC_ID: another topic's log is in the way (RULES 9.3)."""
        answers: list[CreateAnswer] = []
        while len(answers) < len(logs):
            answers += await self._create_some(logs[len(answers) : len(answers) + LOGS_AT_ONCE])
            if not answers[-1].incarnation:  # the others would be waited for as long, and for nothing
                return answers + [answers[-1]] * (len(logs) - len(answers))
        return answers

    async def _create_some(self, logs: Sequence[NewLog]) -> list[CreateAnswer]:
        values = self._broker_config()
        request = log_storage_pb2.CreateLogsRequest(
            logs=map(create_request, logs),
            broker_config=None if values is None else common_pb2.DynamicConfig(values=values),
        )
        try:
            response = await self._stub.CreateLogs(request, timeout=self._timeout_s)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                return await asyncio.gather(*map(self._create_log, request.logs))  # of a log-storage of before
            refusal = CreateAnswer(StorageError(ErrorCode.LOG_STORAGE_ERROR, self._no_answer(error)))
            return [refusal] * len(logs)
        finally:
            self._config_went(values)
        self._seen(response.incarnation)
        return [
            CreateAnswer(storage_error(result.error), response.incarnation)
            for _, result in zip(logs, response.results, strict=True)
        ]

    async def _create_log(self, request: log_storage_pb2.CreateLogRequest) -> CreateAnswer:
        try:
            response = await self._answer(self._stub.CreateLog(request, timeout=self._timeout_s))
        except StorageUnavailableError as error:
            return CreateAnswer(StorageError(ErrorCode.LOG_STORAGE_ERROR, str(error)))
        return CreateAnswer(storage_error(response.error), response.incarnation)

    async def alter_broker_config(self, values: Mapping[str, str]) -> tuple[str, Sequence[common_pb2.StaticSetting]]:
        """Hands over all that is set for this broker while it runs. The incarnation that has taken it, and the settings
        that it was started with."""
        request = log_storage_pb2.AlterBrokerConfigRequest(config=common_pb2.DynamicConfig(values=values))
        response = await self._answer(self._stub.AlterBrokerConfig(request, timeout=self._timeout_s))
        return response.incarnation, response.settings

    async def delete_log(self, key: PartitionKey, leader_epoch: int) -> StorageError:
        request = log_storage_pb2.DeleteLogRequest(partition=to_key(key), leader_epoch=leader_epoch)
        response = await self._answer(self._stub.DeleteLog(request, timeout=self._timeout_s))
        return storage_error(response.error)

    async def fence(
        self,
        role: Role,
        partitions: Sequence[tuple[PartitionKey, int]],
        *,
        replica_manager_incarnation: str = "",
        wait_for_ready: bool = False,
    ) -> list[FencedLog]:
        """RULES 3.1, 3.2: `partitions` are (key, leader epoch); the answers come in their order. A leader's fence is
        that of its replica-manager's incarnation."""
        request = log_storage_pb2.FenceEpochRequest(
            role=ROLES[role],
            replica_manager_incarnation=replica_manager_incarnation,
            partitions=[
                log_storage_pb2.FencePartition(partition=to_key(key), leader_epoch=leader_epoch)
                for key, leader_epoch in partitions
            ],
        )
        call = self._stub.FenceEpoch(request, timeout=self._timeout_s, wait_for_ready=wait_for_ready)
        response = await self._answer(call)
        return [
            fenced_log(result, response.incarnation) for _, result in zip(partitions, response.results, strict=True)
        ]

    async def truncate_to(
        self,
        key: PartitionKey,
        leader_epoch: int,
        offset: int,
        unclean_epoch: int,
        expected_log_end_offset: int,
        expected_last_epoch: int,
    ) -> TruncatedLog:
        request = log_storage_pb2.TruncateToRequest(
            partition=to_key(key),
            leader_epoch=leader_epoch,
            offset=offset,
            unclean_epoch=unclean_epoch,
            expected_log_end_offset=expected_log_end_offset,
            expected_last_epoch=expected_last_epoch,
        )
        return truncated_log(await self._answer(self._stub.TruncateTo(request, timeout=self._timeout_s)))

    async def truncate_fully_and_start_at(
        self,
        key: PartitionKey,
        leader_epoch: int,
        offset: int,
        unclean_epoch: int,
        expected_log_end_offset: int,
        expected_last_epoch: int,
    ) -> TruncatedLog:
        request = log_storage_pb2.TruncateFullyAndStartAtRequest(
            partition=to_key(key),
            leader_epoch=leader_epoch,
            offset=offset,
            unclean_epoch=unclean_epoch,
            expected_log_end_offset=expected_log_end_offset,
            expected_last_epoch=expected_last_epoch,
        )
        return truncated_log(await self._answer(self._stub.TruncateFullyAndStartAt(request, timeout=self._timeout_s)))

    async def read(self, key: PartitionKey, offset: int, max_offset: int, max_bytes: int) -> ReadAnswer:
        """Whole batches from the one that holds `offset`; none with a base offset at or above `max_offset` (-1: no
        bound)."""
        request = log_storage_pb2.ReadRequest(
            partition=to_key(key), offset=offset, max_offset=max_offset, max_bytes=max_bytes
        )
        if (span := under_way.get()) is not None:
            request.traceparent = span.traceparent
        response = await self._answer(self._stub.Read(request, timeout=self._timeout_s))
        return ReadAnswer(
            storage_error(response.error),
            response.records,
            response.log.log_end_offset,
            response.log.log_start_offset,
            response.incarnation,
            response.log.offline,
        )

    async def list_offsets(self, lookups: Sequence[OffsetLookup]) -> list[OffsetAnswer]:
        """The answers come in the order of the lookups."""
        request = log_storage_pb2.LogListOffsetsRequest()
        async for key, timestamp, max_offset in by_turns(lookups):
            request.partitions.add(partition=to_key(key), timestamp=timestamp, max_offset=max_offset)
        response = await self._answer(self._stub.ListOffsets(request, timeout=self._timeout_s))
        return [
            OffsetAnswer(
                response.incarnation, storage_error(each.error), each.offset, each.timestamp, each.leader_epoch
            )
            async for each in by_turns(response.results)
        ]

    async def list_batches(
        self, key: PartitionKey, offset: int, max_batches: int, *, check_crcs: bool
    ) -> log_storage_pb2.LogListBatchesResponse:
        """As log-storage answers it."""
        request = log_storage_pb2.LogListBatchesRequest(
            partition=to_key(key), offset=offset, max_batches=max_batches, check_crcs=check_crcs
        )
        response = await self._answer(self._stub.ListBatches(request, timeout=LISTING_TIMEOUT_S))
        return response

    async def drop_damaged(self, key: PartitionKey, leader_epoch: int) -> StorageError:
        """RULES 7.6: only after a committed state of this leader epoch that has this broker neither in the ISR nor in
        `elr`."""
        request = log_storage_pb2.DropDamagedRequest(partition=to_key(key), leader_epoch=leader_epoch)
        response = await self._answer(self._stub.DropDamaged(request, timeout=self._timeout_s))
        return storage_error(response.error)

    async def raise_log_start(
        self, key: PartitionKey, leader_epoch: int, log_start_offset: int
    ) -> tuple[StorageError, int]:
        """The error and the log start afterwards."""
        request = log_storage_pb2.RaiseLogStartRequest(
            partition=to_key(key), leader_epoch=leader_epoch, log_start_offset=log_start_offset
        )
        response = await self._answer(self._stub.RaiseLogStart(request, timeout=self._timeout_s))
        return storage_error(response.error), response.log.log_start_offset

    async def checkpoint_high_watermarks(self, marks: Sequence[tuple[PartitionKey, int, int]]) -> None:
        """`marks` are (key, leader epoch, high watermark) of what this broker leads. What is refused is fenced
        already, so its mark is of no use."""
        request = log_storage_pb2.CheckpointHighWatermarksRequest()
        async for key, leader_epoch, high_watermark in by_turns(marks):
            request.partitions.add(partition=to_key(key), leader_epoch=leader_epoch, high_watermark=high_watermark)
        await self._answer(self._stub.CheckpointHighWatermarks(request, timeout=self._timeout_s))

    async def describe(self) -> Description:
        """Raises `StorageUnavailableError` too while log-storage is opening its logs."""
        call = self._stub.DescribeLogs(
            log_storage_pb2.DescribeLogsRequest(), timeout=self._timeout_s, wait_for_ready=True
        )
        response = await self._unseen_answer(call)
        if response.opening:
            # Not all logs are among these, and nothing else is answered: no fence that another incarnation asks for.
            raise StorageUnavailableError("log-storage is opening its logs")
        self._seen(response.incarnation)
        logs = [
            LogDescription(from_key(log.partition), log.topic, log_state(log.log), log.log.offline)
            async for log in by_turns(response.logs)
        ]
        return Description(
            response.incarnation,
            tuple(logs),
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

    async def is_opening(self) -> bool:
        """Tells whether log-storage opens its logs. Raises `StorageUnavailableError`."""
        nobody = PartitionKey(bytes(16), 0)  # the state of no log is asked for
        request = log_storage_pb2.DescribeLogsRequest(partitions=[to_key(nobody)])
        return (await self._unseen_answer(self._stub.DescribeLogs(request, timeout=self._timeout_s))).opening

    async def describe_logs(self, keys: Sequence[PartitionKey] = ()) -> log_storage_pb2.DescribeLogsResponse:
        """As log-storage answers it; no keys: all."""
        request = log_storage_pb2.DescribeLogsRequest()
        async for key in by_turns(keys):
            request.partitions.add(topic_id=key.topic_id, partition=key.partition)
        response = await self._answer(self._stub.DescribeLogs(request, timeout=self._timeout_s))
        return response

    async def alter_log_dirs(self, moves: Sequence[tuple[PartitionKey, str]]) -> list[StorageError]:
        """`moves` are (key, directory); the answers come in their order."""
        request = log_storage_pb2.AlterLogDirsRequest()
        async for key, log_dir in by_turns(moves):
            request.moves.add(partition=to_key(key), log_dir=log_dir)
        response = await self._answer(self._stub.AlterReplicaLogDirs(request, timeout=self._timeout_s))
        return [storage_error(result.error) async for result in by_turns(response.results)]

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
        """Syncs logs, and says why single ones are not on disk.

        Raises:
            StorageUnavailableError: no answer, or a directory in use took less than was asked.
        """
        response = await self._answer(self._stub.Flush(request, timeout=FLUSH_TIMEOUT_S))
        if request.incarnation not in ("", response.incarnation):
            raise StorageUnavailableError("log-storage was started again")
        for refused in response.errors:
            if not refused.HasField("partition"):
                raise StorageUnavailableError(f"log-storage: {refused.error.message}")
        return {from_key(refused.partition): refused.error.message for refused in response.errors}

    async def _answer(self, call: Awaitable[_Response]) -> _Response:
        response = await self._unseen_answer(call)
        self._seen(response.incarnation)
        return response

    async def _unseen_answer(self, call: Awaitable[_Response]) -> _Response:
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            raise StorageUnavailableError(self._no_answer(error)) from error

    def _no_answer(self, error: grpc.aio.AioRpcError) -> str:
        return f"{self._unanswered}: {error.code().name}: {error.details()}"
