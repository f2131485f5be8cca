"""The LogStorage service: what its calls are made of. Rules of a single log are in `log/`, those of the fence in
`fence.py`; the parts have their order in time."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any

from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.log_storage.server.append_and_read import AppendAndRead
from highwater.log_storage.server.broker_config import BrokerConfig, Take, nothing_to_take
from highwater.log_storage.server.fences import Fences
from highwater.log_storage.server.flush_and_checkpoint import FlushAndCheckpoint
from highwater.log_storage.server.list_batches import BatchListing
from highwater.log_storage.server.log_access import LogAccess
from highwater.log_storage.server.log_lifecycle import LogLifecycle
from highwater.log_storage.server.log_moves import LogMoves
from highwater.log_storage.server.truncation import Truncations
from highwater.telemetry.metrics import Metrics
from highwater.telemetry.tracing import Tracer
from highwater.v1 import common_pb2, log_storage_pb2, log_storage_pb2_grpc


class LogStorageServicer(log_storage_pb2_grpc.LogStorageServicer):
    """Hands each call to the part that answers it. The parts share `access`."""

    def __init__(
        self,
        manager: LogManager,
        incarnation: str,
        threads: Executor,
        metrics: Metrics,
        take_config: Take = nothing_to_take,
        settings: Sequence[common_pb2.StaticSetting] = (),
        tracer: Tracer | None = None,
    ) -> None:
        """`take_config` makes what is set while the broker runs count, `settings` are those of the start."""
        self.access = LogAccess(manager, incarnation, threads, metrics)
        self.config = BrokerConfig(incarnation, take_config, settings)
        self.append_and_read = AppendAndRead(self.access, metrics, tracer)
        self.fences = Fences(self.access)
        self.truncations = Truncations(self.access)
        self.lifecycle = LogLifecycle(self.access, self.config)
        self.listing = BatchListing(self.access)
        self.moves = LogMoves(self.access, metrics)
        self.flushes = FlushAndCheckpoint(self.access, metrics)

    async def Append(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        await self.append_and_read.Append(request_iterator, context)

    async def Read(self, request: log_storage_pb2.ReadRequest, context: Any) -> log_storage_pb2.ReadResponse:
        return await self.append_and_read.Read(request, context)

    async def ListOffsets(
        self, request: log_storage_pb2.LogListOffsetsRequest, context: Any
    ) -> log_storage_pb2.LogListOffsetsResponse:
        return await self.append_and_read.ListOffsets(request, context)

    async def EndOffsetForEpoch(
        self, request: log_storage_pb2.EndOffsetForEpochRequest, context: Any
    ) -> log_storage_pb2.EndOffsetForEpochResponse:
        return await self.append_and_read.EndOffsetForEpoch(request, context)

    async def FenceEpoch(
        self, request: log_storage_pb2.FenceEpochRequest, context: Any
    ) -> log_storage_pb2.FenceEpochResponse:
        return await self.fences.FenceEpoch(request, context)

    async def TruncateTo(
        self, request: log_storage_pb2.TruncateToRequest, context: Any
    ) -> log_storage_pb2.TruncateResponse:
        return await self.truncations.TruncateTo(request, context)

    async def TruncateFullyAndStartAt(
        self, request: log_storage_pb2.TruncateFullyAndStartAtRequest, context: Any
    ) -> log_storage_pb2.TruncateResponse:
        return await self.truncations.TruncateFullyAndStartAt(request, context)

    async def DropDamaged(
        self, request: log_storage_pb2.DropDamagedRequest, context: Any
    ) -> log_storage_pb2.DropDamagedResponse:
        return await self.truncations.DropDamaged(request, context)

    async def RaiseLogStart(
        self, request: log_storage_pb2.RaiseLogStartRequest, context: Any
    ) -> log_storage_pb2.RaiseLogStartResponse:
        return await self.truncations.RaiseLogStart(request, context)

    async def CreateLog(
        self, request: log_storage_pb2.CreateLogRequest, context: Any
    ) -> log_storage_pb2.CreateLogResponse:
        return await self.lifecycle.CreateLog(request, context)

    async def CreateLogs(
        self, request: log_storage_pb2.CreateLogsRequest, context: Any
    ) -> log_storage_pb2.CreateLogsResponse:
        return await self.lifecycle.CreateLogs(request, context)

    async def DeleteLog(
        self, request: log_storage_pb2.DeleteLogRequest, context: Any
    ) -> log_storage_pb2.DeleteLogResponse:
        return await self.lifecycle.DeleteLog(request, context)

    async def DescribeLogs(
        self, request: log_storage_pb2.DescribeLogsRequest, context: Any
    ) -> log_storage_pb2.DescribeLogsResponse:
        return await self.lifecycle.DescribeLogs(request, context)

    async def AlterLogConfig(
        self, request: log_storage_pb2.AlterLogConfigRequest, context: Any
    ) -> log_storage_pb2.AlterLogConfigResponse:
        return await self.lifecycle.AlterLogConfig(request, context)

    async def AlterBrokerConfig(
        self, request: log_storage_pb2.AlterBrokerConfigRequest, context: Any
    ) -> log_storage_pb2.AlterBrokerConfigResponse:
        return await self.config.AlterBrokerConfig(request, context)

    async def ListBatches(
        self, request: log_storage_pb2.LogListBatchesRequest, context: Any
    ) -> log_storage_pb2.LogListBatchesResponse:
        return await self.listing.ListBatches(request, context)

    async def AlterReplicaLogDirs(
        self, request: log_storage_pb2.AlterLogDirsRequest, context: Any
    ) -> log_storage_pb2.AlterLogDirsResponse:
        return await self.moves.AlterReplicaLogDirs(request, context)

    async def Flush(self, request: log_storage_pb2.FlushRequest, context: Any) -> log_storage_pb2.FlushResponse:
        return await self.flushes.Flush(request, context)

    async def CheckpointHighWatermarks(
        self, request: log_storage_pb2.CheckpointHighWatermarksRequest, context: Any
    ) -> log_storage_pb2.CheckpointHighWatermarksResponse:
        return await self.flushes.CheckpointHighWatermarks(request, context)
