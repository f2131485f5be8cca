"""Carries Fence actions to log-storage: those of one turn of the event loop in one call for each role (RULES 3.1)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence

from highwater.errors import ErrorCode
from highwater.log_storage_client.client import LogStorageClient
from highwater.log_storage_client.values import FencedLog, StorageUnavailableError
from highwater.model.fence_role import Role
from highwater.model.partition import PartitionKey
from highwater.replica_manager.partition.actions import Fence, FenceAnswer
from highwater.telemetry.log import get_logger, pairs

logger = get_logger("replica_manager.fencer")

CALL_PARTITIONS = 1_000
ANSWERED_AT_ONCE = 100
"""Answers that are taken before others have a turn of the event loop: each is some 100 us of it."""

Answered = Callable[[PartitionKey, FenceAnswer], None]
_Due = tuple[PartitionKey, Fence, Answered, "asyncio.Future[FenceAnswer]"]


class Fencer:
    """Fences under this replica-manager's `incarnation`."""

    def __init__(self, storage: LogStorageClient, incarnation: str) -> None:
        self._storage = storage
        self._incarnation = incarnation
        self._due: list[_Due] = []
        self._gathering = 0  # who submits more, in later turns of the event loop
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(self, key: PartitionKey, fence: Fence, answered: Answered) -> asyncio.Future[FenceAnswer]:
        """`answered` is called with the answer, an error included, before the future is done."""
        loop = asyncio.get_running_loop()
        if not self._due and not self._gathering:
            loop.call_soon(self._flush)
        future: asyncio.Future[FenceAnswer] = loop.create_future()
        self._due.append((key, fence, answered, future))
        return future

    @contextlib.contextmanager
    def gathering(self) -> Iterator[None]:
        """Keeps what is submitted meanwhile until the end, as if it were one turn's: a call of log-storage is an
        fdatasync. Not for long, and never around a wait for a fence."""
        self._gathering += 1
        try:
            yield
        finally:
            self._gathering -= 1
            if not self._gathering:
                self._flush()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _flush(self) -> None:
        due, self._due = self._due, []
        for role in Role:
            of_role = [item for item in due if item[1].role is role]
            for start in range(0, len(of_role), CALL_PARTITIONS):
                task = asyncio.ensure_future(self._fence(role, of_role[start : start + CALL_PARTITIONS]))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _fence(self, role: Role, due: Sequence[_Due]) -> None:
        try:
            partitions = [(key, fence.leader_epoch) for key, fence, _, _ in due]
            # Asked for as soon as the append stream has met another incarnation: this channel may have to connect yet,
            # and a fence that failed is only tried again when the instruction comes again.
            fenced = await self._storage.fence(
                role,
                partitions,
                replica_manager_incarnation=self._incarnation if role is Role.LEADER else "",
                wait_for_ready=True,
            )
            answers = [_answer(role, fence, log) for (_, fence, _, _), log in zip(due, fenced, strict=True)]
        except StorageUnavailableError as error:
            logger.warning("cannot fence %d partitions: %s", len(due), error)
            answers = _failed(role, due)
        except Exception:  # a mistake of ours: loud, and the controller is told that it failed
            logger.exception("cannot fence %d partitions", len(due))
            answers = _failed(role, due)
        for number, ((key, _, answered, future), answer) in enumerate(zip(due, answers, strict=True), 1):
            try:
                answered(key, answer)
            except Exception:  # one partition's: the others are not to wait for it
                logger.exception("a fence's answer could not be taken %s", pairs(partition=key))
            if not future.done():
                future.set_result(answer)
            if number % ANSWERED_AT_ONCE == 0:
                await asyncio.sleep(0)


def _answer(role: Role, fence: Fence, fenced: FencedLog) -> FenceAnswer:
    return FenceAnswer(
        role=role,
        leader_epoch=fence.leader_epoch,
        error=fenced.error.code,
        log_end_offset=fenced.log.log_end_offset,
        last_epoch=fenced.log.last_epoch,
        log_start_offset=fenced.log.log_start_offset,
        high_watermark=fenced.log.high_watermark,
        incarnation=fenced.incarnation,
        epochs=fenced.epochs,
        offline=fenced.offline,
    )


def _failed(role: Role, due: Sequence[_Due]) -> list[FenceAnswer]:
    return [FenceAnswer(role, fence.leader_epoch, ErrorCode.LOG_STORAGE_ERROR) for _, fence, _, _ in due]
