"""Asking log-storage for what its append answers only count: which logs are offline, or damaged."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from highwater.log_storage_client.values import StorageUnavailableError
from highwater.model.partition import PartitionKey
from highwater.supervision import TaskSupervisor
from highwater.telemetry.log import get_logger

logger = get_logger("replica_manager.inquiry")

RETRY_S = 0.5


class Inquiry:
    """One question at a time. `ask` raises `StorageUnavailableError` where it has no answer: it is asked again after
    `RETRY_S`. `found` is told what it answers. `condition`, "offline" or "damaged", is what the log speaks of."""

    def __init__(
        self,
        condition: str,
        ask: Callable[[], Awaitable[set[PartitionKey]]],
        found: Callable[[set[PartitionKey]], None],
        supervisor: TaskSupervisor | None = None,
    ) -> None:
        self._condition = condition
        self._supervisor = supervisor or TaskSupervisor()
        self._ask = ask
        self._found = found
        self._changes = 0
        self._asking: asyncio.Task[None] | None = None
        self._ask_again = False

    def begin(self) -> None:
        """Asks, once more where a question is under way already: its answer may be older than what has changed."""
        self._ask_again = True
        if self._asking is None:
            self._asking = self._supervisor.run_once(f"{self._condition}-logs", self._run, self._failed)

    def outdated(self) -> None:
        """Log-storage has started again, or let go of damage: an answer that is under way may be from before that."""
        self._changes += 1

    async def stop(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    def _failed(self, error: Exception) -> None:
        """A mistake of ours. Who is offline or damaged must be known all the same."""
        asyncio.get_running_loop().call_later(RETRY_S, self.begin)

    async def _run(self) -> None:
        try:
            while self._ask_again:
                self._ask_again = False
                changes = self._changes
                try:
                    answer = await self._ask()
                except StorageUnavailableError as error:
                    logger.warning("which logs are %s is not known yet: %s", self._condition, error)
                    self._ask_again = True
                    await asyncio.sleep(RETRY_S)
                else:
                    if changes == self._changes:
                        self._found(answer)
                    else:
                        self._ask_again = True
        finally:
            self._asking = None
