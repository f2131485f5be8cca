"""This broker's logs that are offline, as log-storage says (RULES 7.7).

A log that went offline takes nothing until log-storage is started again, so the set only grows under one incarnation.
It is learned from whichever answer says so first: an append, a read or a fence of the log itself, or the number of
offline logs in every answer of the append stream (a broker that only follows appends nothing).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from logging import ERROR

from highwater.log_storage_client.client import LogStorageClient
from highwater.model.partition import PartitionKey
from highwater.replica_manager.storage.inquiry import Inquiry
from highwater.supervision import TaskSupervisor
from highwater.telemetry.log import get_logger, pairs
from highwater.telemetry.summed_log import SummedLog

failures = SummedLog(get_logger("replica_manager.offline_logs"))


class OfflineLogs:
    """`failed` is called with each log once, when it is found offline."""

    def __init__(
        self,
        storage: LogStorageClient,
        failed: Callable[[PartitionKey], None],
        supervisor: TaskSupervisor | None = None,
    ) -> None:
        self._storage = storage
        self._failed = failed
        self._known: set[PartitionKey] = set()
        self._inquiry = Inquiry("offline", self._ask, self.seen, supervisor)

    def __contains__(self, key: PartitionKey) -> bool:
        return key in self._known

    def __len__(self) -> int:
        return len(self._known)

    def seen(self, keys: Iterable[PartitionKey]) -> None:
        """log-storage answered that these are offline."""
        for key in keys:
            if key not in self._known:
                self._known.add(key)
                failures.note(ERROR, "a log is offline", pairs(partition=key))
                self._failed(key)

    def serves(self, key: PartitionKey) -> None:
        """log-storage fenced or made this log."""
        self._known.discard(key)

    def restarted(self) -> None:
        """Another incarnation of log-storage: whatever was offline may be sound again."""
        self._known.clear()
        self._inquiry.outdated()

    def count_changed(self, count: int) -> None:
        """The number of offline logs is another one than before: which they are is asked for."""
        if count:
            self._inquiry.begin()

    async def stop(self) -> None:
        await self._inquiry.stop()

    async def _ask(self) -> set[PartitionKey]:
        described = await self._storage.describe()
        return {log.key for log in described.logs if log.offline}
