"""Creates, deletes, configures and describes logs."""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter
from collections.abc import Sequence
from typing import Any

from highwater.errors import ErrorCode
from highwater.log_storage.errors import LogError
from highwater.log_storage.log_manager.log_creation import WantedLog
from highwater.log_storage.server.broker_config import BrokerConfig
from highwater.log_storage.server.conversions import Answering, describe, recovery_proto, refuse
from highwater.log_storage.server.log_access import LogAccess
from highwater.model.partition import PartitionKey
from highwater.rpc.errors import to_proto
from highwater.rpc.partition_keys import from_key, to_key
from highwater.rpc.process.loop_turn import by_turns
from highwater.v1 import common_pb2, log_storage_pb2


class LogLifecycle:
    """The calls that create, delete, configure and describe logs."""

    def __init__(self, access: LogAccess, config: BrokerConfig) -> None:
        self._access = access
        self._config = config
        self._manager = access.manager
        self._incarnation = access.incarnation

    async def CreateLog(
        self, request: log_storage_pb2.CreateLogRequest, context: Any
    ) -> log_storage_pb2.CreateLogResponse:
        (made,) = await self._create([request])
        response = log_storage_pb2.CreateLogResponse(incarnation=self._incarnation)
        if isinstance(made, LogError):
            refuse(response, made)
        else:
            response.created = made
        return response

    async def CreateLogs(
        self, request: log_storage_pb2.CreateLogsRequest, context: Any
    ) -> log_storage_pb2.CreateLogsResponse:
        if request.HasField("broker_config"):
            # A log that does not take it keeps no others from being made: they have it, and that one is given it anew.
            with contextlib.suppress(LogError, OSError):
                await self._config.given(request.broker_config)
        response = log_storage_pb2.CreateLogsResponse(incarnation=self._incarnation)
        outcomes = await self._create(request.logs)
        async for made in by_turns(outcomes):
            result = response.results.add()
            if isinstance(made, LogError):
                refuse(result, made)
            else:
                result.created = made
        return response

    async def _create(self, asked: Sequence[log_storage_pb2.CreateLogRequest]) -> list[bool | LogError]:
        """Tells of each whether it was made, or its error. One that was there takes the configuration when nobody has
        it alone. There may be thousands: the event loop gets its turns between them."""
        logs = self._manager.logs
        made: list[bool | LogError] = [False] * len(asked)
        wanted: dict[int, WantedLog] = {}
        async with self._access.lifecycle_lock:
            async for index, each in by_turns(enumerate(asked)):
                key = from_key(each.partition)
                if logs.find(key) is None:
                    newer = each.newer_than_incarnation == self._incarnation
                    wanted[index] = WantedLog(each.topic, key, dict(each.config), newer)
            if wanted:
                outcomes = await self._access.in_thread(self._manager.create_all, list(wanted.values()))
                for index, outcome in zip(wanted, outcomes, strict=True):
                    made[index] = outcome
        async for index, each in by_turns(enumerate(asked)):
            if index in wanted:
                continue
            try:
                hosted = await self._access.idle(each.partition)
                hosted.configure(logs.config, dict(each.config))
                logs.due.touch(hosted)
            except LogError as error:
                made[index] = error
        return made

    async def DeleteLog(
        self, request: log_storage_pb2.DeleteLogRequest, context: Any
    ) -> log_storage_pb2.DeleteLogResponse:
        response = log_storage_pb2.DeleteLogResponse(incarnation=self._incarnation)
        key = from_key(request.partition)
        with Answering(response):
            hosted = self._manager.logs.find(key)
            if hosted is not None:
                try:
                    # First the log, for which a flush may have to end; other logs are not held up by that.
                    async with hosted.alone(), self._access.unfenced(hosted), self._access.lifecycle_lock:
                        if self._manager.logs.find(key) is hosted:
                            await self._access.in_thread(self._delete, key, request.leader_epoch)
                finally:  # also where the caller has gone away meanwhile
                    self._access.remove_left()
        return response

    def _delete(self, key: PartitionKey, leader_epoch: int) -> None:
        removable = self._manager.delete(key, leader_epoch)
        if removable is not None:
            self._manager.logs.removable.append(removable)

    async def DescribeLogs(
        self, request: log_storage_pb2.DescribeLogsRequest, context: Any
    ) -> log_storage_pb2.DescribeLogsResponse:
        response = log_storage_pb2.DescribeLogsResponse(incarnation=self._incarnation, opening=not self._manager.loaded)
        if request.partitions:
            await self._describe_asked(request.partitions, response)
        else:
            async for hosted in by_turns(self._manager.logs):
                describe(hosted, response.logs.add(partition=to_key(hosted.key)))
        logs_in = Counter(hosted.log_dir for hosted in self._manager.logs)
        for log_dir in self._manager.logs.log_dirs:
            described = response.log_dirs.add(
                path=str(log_dir.path), tail_lost=log_dir.tail_lost, cluster_id=log_dir.cluster_id
            )
            described.logs = logs_in[log_dir]
            described.full = log_dir.disk.full
            described.doubted = bool(log_dir.disk.doubt)
            progress = log_dir.recovery
            if progress is not None:
                described.recovery.CopyFrom(recovery_proto(progress))
            described.directory_id = log_dir.properties.directory_id
            if log_dir.offline:
                described.error.CopyFrom(to_proto(ErrorCode.LOG_STORAGE_ERROR, log_dir.offline))
                continue
            try:
                usage = shutil.disk_usage(log_dir.path)
                described.total_bytes, described.usable_bytes = usage.total, usage.free
            except OSError as error:
                described.error.CopyFrom(to_proto(ErrorCode.LOG_STORAGE_ERROR, f"{log_dir.path}: {error}"))
        return response

    async def _describe_asked(
        self, partitions: Sequence[common_pb2.PartitionKey], response: log_storage_pb2.DescribeLogsResponse
    ) -> None:
        """Those that there are, then the others; each as it is in its turn."""
        missing = []
        async for key in by_turns(map(from_key, partitions)):
            hosted = self._manager.logs.find(key)
            if hosted is None:
                missing.append(key)
            else:
                describe(hosted, response.logs.add(partition=to_key(key)))
        async for key in by_turns(missing):
            error = to_proto(ErrorCode.UNKNOWN_TOPIC_ID, f"this broker has no log of {key}")
            response.logs.add(partition=to_key(key), fenced_epoch=-1, error=error)

    async def AlterLogConfig(
        self, request: log_storage_pb2.AlterLogConfigRequest, context: Any
    ) -> log_storage_pb2.AlterLogConfigResponse:
        response = log_storage_pb2.AlterLogConfigResponse(incarnation=self._incarnation)
        with Answering(response):
            hosted = await self._access.idle(request.partition)
            topic = dict(request.config)
            config = self._manager.logs.config.with_topic(topic)
            await self._access.in_thread(hosted.allow_unflushed, config)  # it may write to disk
            hosted.configure(self._manager.logs.config, topic)
            self._manager.logs.due.touch(hosted)
        return response
