"""The progress of opening a log directory: told while it goes on, in the log and to whoever asks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from highwater.telemetry.log import get_logger, pairs

TOLD_EVERY_MS = 5_000

_log = get_logger("log_storage.recovery")


class OpeningStopped(BaseException):
    """The logs are not to be opened any further: the process is to end. What has been done of it stands, as after a
    kill. No `Exception`: nobody is to take it for a log's trouble."""


class RecoveryProgress:
    """Counted up by the threads that open the logs. `total_bytes` is what an unclean stop leaves to be scanned. Where
    `stopping` is set, they end: `scanned` and `opening` raise `OpeningStopped`."""

    def __init__(self, path: Path, now_ms: Callable[[], int], stopping: threading.Event) -> None:
        self._stopping = stopping
        self.total_logs = self.opened_logs = 0
        self.total_bytes = self.scanned_bytes = 0
        self._path = path
        self._now_ms = now_ms
        self._told_ms = now_ms()
        self._lock = threading.Lock()

    def begin(self, total_logs: int, total_bytes: int) -> None:
        self.total_logs, self.total_bytes = total_logs, total_bytes
        if total_bytes:
            _log.info("recovering %s %s", self._path, pairs(logs=total_logs, bytes=total_bytes))

    def opening(self) -> None:
        """The next log. Raises `OpeningStopped`."""
        if self._stopping.is_set():
            raise OpeningStopped

    def scanned(self, size_bytes: int) -> None:
        """So many more bytes. Raises `OpeningStopped`."""
        self.opening()
        with self._lock:
            self.scanned_bytes += size_bytes
            now_ms = self._now_ms()
            if now_ms - self._told_ms < TOLD_EVERY_MS:
                return
            self._told_ms = now_ms
        _log.info(
            "recovering %s %s",
            self._path,
            pairs(
                opened=f"{self.opened_logs}/{self.total_logs}",
                scanned_bytes=f"{self.scanned_bytes}/{self.total_bytes}",
            ),
        )

    def opened(self) -> None:
        with self._lock:
            self.opened_logs += 1
