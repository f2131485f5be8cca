"""The fence as the service raises it, keeps it and holds to it (RULES 3.1, 3.2); `fence.py` has its rules."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from highwater.errors import ErrorCode
from highwater.log_storage.errors import LogError
from highwater.log_storage.fence import Fence, FenceVerdict, admission, propose
from highwater.log_storage.log.log import Log
from highwater.log_storage.log_manager.hosted_log import HostedLog
from highwater.log_storage.log_manager.log_dir import LogDir
from highwater.log_storage.server.conversions import fill_log, refuse
from highwater.log_storage.server.log_access import LogAccess
from highwater.log_storage.thread_work import to_its_end
from highwater.model.fence_role import Role
from highwater.model.partition import PartitionKey
from highwater.rpc.partition_keys import from_key
from highwater.rpc.process.loop_turn import LoopTurn
from highwater.telemetry.log import get_logger
from highwater.v1 import log_storage_pb2

LEADER = int(Role.LEADER)
FOLLOWER = int(Role.FOLLOWER)

_log = get_logger("log_storage.fences")

MAX_PARTITIONS = 2_000  # of one call: they are decided on at once


class Fences:
    """The call that raises fences."""

    def __init__(self, access: LogAccess) -> None:
        self._access = access
        self._manager = access.manager
        self._incarnation = access.incarnation

    async def FenceEpoch(
        self, request: log_storage_pb2.FenceEpochRequest, context: Any
    ) -> log_storage_pb2.FenceEpochResponse:
        """RULES 3.1, 3.2. A raised fence shuts out the writes of the earlier one from the moment it is decided, so
        the log stands still while the fence goes to disk; the state in the answer is read after that."""
        if len(request.partitions) > MAX_PARTITIONS:
            told = f"fences of {len(request.partitions)} partitions: {MAX_PARTITIONS} are the most, send several"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, told)
        response, turn = log_storage_pb2.FenceEpochResponse(incarnation=self._incarnation), LoopTurn()
        refused = await self._raise_fences(request)
        for asked, refusal in zip(request.partitions, refused, strict=True):
            if turn.over():
                await turn.give_way()
            await self._answer_fence(request, asked, refusal, response.results.add(partition=asked.partition))
        # The log end in the answer is taken for acknowledged (RULES 4.1). Others may be fenced meanwhile.
        await asyncio.gather(*map(self._sync_fenced, response.results))
        return response

    async def _raise_fences(self, request: log_storage_pb2.FenceEpochRequest) -> list[LogError | None]:
        """Decides on the fences and writes those that are raised; what was refused of them."""
        while True:
            asked_of = [self._manager.logs.find(from_key(asked.partition)) for asked in request.partitions]
            for hosted in asked_of:
                if hosted is not None:
                    await hosted.fences_free()
            async with self._access.fencing:
                if any(hosted is not None and hosted.fences_held for hosted in asked_of):
                    continue  # since then
                raised: dict[LogDir, dict[PartitionKey, Fence]] = {}
                refused: list[LogError | None] = []
                for asked in request.partitions:
                    try:
                        self._propose(request, asked, raised)
                        refused.append(None)
                    except LogError as error:
                        refused.append(error)
                await self._record(raised)
                return refused

    async def _sync_fenced(self, result: log_storage_pb2.FenceResult) -> None:
        """Syncs what the log held as it was fenced, where `flush.messages` says so."""
        hosted = self._manager.logs.find(from_key(result.partition))
        if result.error.code or hosted is None or hosted.log is None or not hosted.log.flusher.must_sync:
            return
        try:
            await self._access.sync(hosted, result.log.log_end_offset)
        except LogError as error:
            refuse(result, error)
            result.log.offline = bool(hosted.offline_reason)

    def _propose(
        self,
        request: log_storage_pb2.FenceEpochRequest,
        asked: log_storage_pb2.FencePartition,
        raised: dict[LogDir, dict[PartitionKey, Fence]],
    ) -> None:
        if request.role not in (LEADER, FOLLOWER) or asked.leader_epoch < 0:
            raise LogError(ErrorCode.INVALID_REQUEST, "a fence has ROLE_LEADER or ROLE_FOLLOWER and an epoch from 0 on")
        hosted = self._manager.logs.get(from_key(asked.partition))
        log = hosted.online()
        proposed = self._asked_fence(request, asked)
        verdict = propose(hosted.fence, proposed)
        behind_log = proposed.role is Role.LEADER and asked.leader_epoch < log.last_epoch
        if verdict is FenceVerdict.REFUSED or behind_log:
            raise LogError(
                ErrorCode.STALE_FENCE,
                f"{proposed} is refused: the fence is {hosted.fence}, the log's last epoch {log.last_epoch}",
            )
        if verdict is FenceVerdict.RAISED or not hosted.log_dir.fences.written(hosted.key):
            proposed = proposed.after(hosted.fence)
            hosted.log_dir.fences.fences[hosted.key] = proposed
            raised.setdefault(hosted.log_dir, {})[hosted.key] = proposed

    def _asked_fence(self, request: log_storage_pb2.FenceEpochRequest, asked: log_storage_pb2.FencePartition) -> Fence:
        role = Role(request.role)
        replica_manager = request.replica_manager_incarnation if role is Role.LEADER else ""
        return Fence(asked.leader_epoch, role, replica_manager, self._incarnation)

    async def _record(self, raised: dict[LogDir, dict[PartitionKey, Fence]]) -> None:
        """One fdatasync a log directory. What could not be written is not `fences.written`."""
        records = [self._access.to_thread(log_dir.record_fences, fences) for log_dir, fences in raised.items()]
        for outcome in await to_its_end(asyncio.gather(*records, return_exceptions=True)):
            if isinstance(outcome, OSError):
                _log.error("fences could not be written: %s", outcome)
            elif isinstance(outcome, BaseException):
                raise outcome

    async def _answer_fence(
        self,
        request: log_storage_pb2.FenceEpochRequest,
        asked: log_storage_pb2.FencePartition,
        refused: LogError | None,
        result: log_storage_pb2.FenceResult,
    ) -> None:
        hosted = self._manager.logs.find(from_key(asked.partition))
        result.fenced_epoch = -1
        try:
            if refused is not None:
                raise refused
            if hosted is None:
                raise LogError(ErrorCode.UNKNOWN_TOPIC_ID, "the log was deleted meanwhile")
            await hosted.idle()
            if self._manager.logs.find(hosted.key) is not hosted:
                raise LogError(ErrorCode.UNKNOWN_TOPIC_ID, "the log was deleted meanwhile")
            proposed = self._asked_fence(request, asked)
            if propose(hosted.fence, proposed) is not FenceVerdict.UNCHANGED:  # by a later call
                raise LogError(ErrorCode.STALE_FENCE, f"{proposed} is not the fence any more: it is {hosted.fence}")
            if not hosted.log_dir.fences.written(hosted.key):
                full = hosted.log_dir.disk.full
                raise LogError(
                    ErrorCode.STORAGE_FULL if full else ErrorCode.LOG_STORAGE_ERROR,
                    f"fences cannot be written in {hosted.log_dir.path}: see the log",
                )
            log = hosted.online()
            if request.role == LEADER:
                log.become_leader(asked.leader_epoch)
            else:
                log.become_follower()
            for entry in log.epochs.entries:
                result.epochs.add(leader_epoch=entry.leader_epoch, start_offset=entry.start_offset)
        except LogError as error:
            refuse(result, error)
        if hosted is not None:
            result.fenced_epoch = hosted.fence.leader_epoch if hosted.fence is not None else -1
            fill_log(result.log, hosted)


def admit(hosted: HostedLog, role: Role, leader_epoch: int, incarnation: str) -> None:
    """RULES 3.1. Raises `LogError` (UNKNOWN_FENCE, STALE_FENCE)."""
    fence = hosted.log_dir.fences.fences.get(hosted.key)
    code = admission(fence, role, leader_epoch, incarnation)
    if code is not ErrorCode.NONE:
        raise LogError(
            code,
            f"a write as {role.name} under leader epoch {leader_epoch} to {hosted.directory}: the fence is {fence}",
        )


def check_decided_on(
    log: Log, request: log_storage_pb2.TruncateToRequest | log_storage_pb2.TruncateFullyAndStartAtRequest
) -> None:
    """A truncation that arrives late must not cut what was acknowledged since (RULES 3.4, 4.1). Raises `LogError`
    (OFFSET_MISMATCH)."""
    if not request.HasField("expected_log_end_offset"):
        return
    decided_on = (request.expected_log_end_offset, request.expected_last_epoch)
    if decided_on != (log.state.log_end_offset, log.state.last_epoch):
        raise LogError(
            ErrorCode.OFFSET_MISMATCH,
            f"the truncation was decided on a log that ends at {decided_on[0]} in epoch {decided_on[1]}; this one ends "
            f"at {log.state.log_end_offset} in epoch {log.state.last_epoch}",
        )
