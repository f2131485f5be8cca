"""The search for logs that nobody wants any more (RULES 9.2, 9.3)."""

from __future__ import annotations

from collections.abc import Callable, Collection

from highwater.model.partition import PartitionKey
from highwater.replica_manager.membership.purge import Purge

FIRST_PAUSE_MS = 1_000
LONGEST_PAUSE_MS = 60_000


class Strays:
    """After each registration, as nobody told this broker what happened to topics while it was away or cut off; and
    after a deletion that failed, since the topic is gone then and no instruction comes again. `hosted` are the replicas
    in memory. While nothing is due, `tick` does nothing."""

    def __init__(self, purge: Purge, hosted: Collection[PartitionKey], now_ms: Callable[[], int]) -> None:
        self._purge = purge
        self._hosted = hosted
        self._now_ms = now_ms
        self._due_ms: int | None = None
        self._pause_ms = FIRST_PAUSE_MS
        self._again = False  # another is to follow: the search under way may have passed over what is looked for now

    def registered(self) -> None:
        self._again = True
        self._due_ms = self._now_ms()
        self._pause_ms = FIRST_PAUSE_MS

    def remained(self) -> None:
        """A log that was to be deleted is still there."""
        self._again = True
        if self._due_ms is None:
            self._due_ms = self._now_ms() + self._pause_ms

    async def tick(self) -> None:
        """Raises `StoreError`, `StorageUnavailableError`; then it is tried again."""
        if self._due_ms is None or self._now_ms() < self._due_ms:
            return
        self._due_ms = self._now_ms() + self._pause_ms
        self._pause_ms = min(2 * self._pause_ms, LONGEST_PAUSE_MS)
        self._again = False
        done = await self._purge.delete_strays(list(self._hosted))
        if done and not self._again:
            self._due_ms, self._pause_ms = None, FIRST_PAUSE_MS
