"""Truncations and raised log starts as the service answers them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from highwater.errors import ErrorCode
from highwater.log_storage.errors import LogError
from highwater.log_storage.files import checkpoints
from highwater.log_storage.log_manager.hosted_log import HostedLog
from highwater.log_storage.log_manager.log_manager import Cut
from highwater.log_storage.server.conversions import Answering
from highwater.log_storage.server.fences import admit, check_decided_on
from highwater.log_storage.server.log_access import LogAccess
from highwater.model.fence_role import Role
from highwater.rpc.partition_keys import from_key
from highwater.v1 import log_storage_pb2


class Truncations:
    """The calls that cut a log at its end, and that raise its start."""

    def __init__(self, access: LogAccess) -> None:
        self._access = access
        self._manager = access.manager
        self._incarnation = access.incarnation

    async def TruncateTo(
        self, request: log_storage_pb2.TruncateToRequest, context: Any
    ) -> log_storage_pb2.TruncateResponse:
        return await self._cut(request, self._manager.begin_truncation)

    async def TruncateFullyAndStartAt(
        self, request: log_storage_pb2.TruncateFullyAndStartAtRequest, context: Any
    ) -> log_storage_pb2.TruncateResponse:
        return await self._cut(request, self._manager.begin_restart)

    async def _cut(
        self,
        request: log_storage_pb2.TruncateToRequest | log_storage_pb2.TruncateFullyAndStartAtRequest,
        begin: Callable[[HostedLog, int, int], Cut],
    ) -> log_storage_pb2.TruncateResponse:
        response = log_storage_pb2.TruncateResponse(incarnation=self._incarnation)
        with Answering(response) as answering:
            hosted = answering.hosted = self._manager.logs.get(from_key(request.partition))
            async with hosted.alone():
                admit(hosted, Role.FOLLOWER, request.leader_epoch, self._incarnation)
                check_decided_on(hosted.online(), request)
                self._manager.logs.due.touch(hosted)
                await self._access.wholly(self._carry_out(lambda: begin(hosted, request.offset, request.unclean_epoch)))
                if hosted.online().flusher.must_sync:  # the log end in the answer is taken for acknowledged (RULES 4.1)
                    await self._access.sync_held(hosted, hosted.online().log_end_offset)
        return response

    async def _carry_out(self, begin: Callable[[], Cut]) -> None:
        """Raises `LogError`."""
        cut = await self._access.in_thread(begin)
        if cut.to_checkpoint:
            try:
                await self._access.lower_checkpoints(cut.hosted.log_dir)
            except LogError:
                cut.withdraw()
                raise
        await self._access.in_thread(self._manager.finish, cut)

    async def DropDamaged(
        self, request: log_storage_pb2.DropDamagedRequest, context: Any
    ) -> log_storage_pb2.DropDamagedResponse:
        response = log_storage_pb2.DropDamagedResponse(incarnation=self._incarnation)
        with Answering(response) as answering:
            hosted = answering.hosted = self._manager.logs.get(from_key(request.partition))
            async with hosted.alone():
                fence = hosted.fence
                if fence is not None and (fence.leader_epoch, fence.role is Role.LEADER) >= (
                    request.leader_epoch,
                    True,
                ):
                    raise LogError(
                        ErrorCode.STALE_FENCE,
                        f"{hosted.directory} is not cut under epoch {request.leader_epoch}: the fence is {fence}",
                    )
                if hosted.known_damage and fence is not None and fence.after_loss is not fence:
                    await self._record_loss(hosted)
                self._manager.logs.due.touch(hosted)
                await self._access.in_thread(self._manager.drop_damaged, hosted)
                self._manager.logs.count_offline()
        return response

    async def _record_loss(self, hosted: HostedLog) -> None:
        """Before the log is cut, its fence ceases to say what it has led (RULES 7.9). Raises `LogError`."""
        async with self._access.fencing:
            fence = hosted.fence
            assert fence is not None
            try:
                await self._access.in_thread(hosted.log_dir.record_fences, {hosted.key: fence.after_loss})
            except OSError as error:
                raise hosted.log_dir.disk.refusal(error, f"cannot write the fence of {hosted.directory}") from error

    async def RaiseLogStart(
        self, request: log_storage_pb2.RaiseLogStartRequest, context: Any
    ) -> log_storage_pb2.RaiseLogStartResponse:
        response = log_storage_pb2.RaiseLogStartResponse(incarnation=self._incarnation)
        with Answering(response) as answering:
            hosted = answering.hosted = await self._access.idle(request.partition)
            await self._access.prepare_log_start(hosted, request.log_start_offset)
            hosted = answering.hosted = await self._access.idle(request.partition)
            fence = hosted.fence
            admit(hosted, fence.role if fence is not None else Role.LEADER, request.leader_epoch, self._incarnation)
            self._manager.logs.due.touch(hosted)
            hosted.online().log_start.raise_to(request.log_start_offset)
            await self._access.checkpoint(hosted.log_dir, checkpoints.LOG_STARTS)
        return response
