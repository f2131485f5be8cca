"""Log lines about single partitions, summed up: where all of a broker's fail at once there is one line of it, not one
for each of ten thousand."""

from __future__ import annotations

import asyncio
import atexit
import logging
from dataclasses import dataclass

from highwater.telemetry.log import pairs

WITHIN_S = 0.1
MAX_KINDS = 100  # that wait at a time


@dataclass(slots=True)
class _Waiting:
    first: str  # what the first of them says
    count: int = 1


class SummedLog:
    """Makes one line of what is alike (level, message and cause) within `WITHIN_S`: of a single one what it says, of
    several their number, the cause, and what the first says. Each by itself is logged at DEBUG.

    Outside an event loop each is logged at once."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._waiting: dict[tuple[int, str, str], _Waiting] = {}
        self._loop: asyncio.AbstractEventLoop | None = None  # that the timer is of
        self._timer: asyncio.TimerHandle | None = None
        atexit.register(self.flush)

    def note(self, level: int, message: str, details: str, *, cause: str = "") -> None:
        """`details`: of this one, as `pairs` makes them. `cause` is among them, and is the same of those that are
        alike."""
        if not self._logger.isEnabledFor(level):
            return
        self._logger.debug("%s %s", message, details)
        kind = (level, message, cause)
        waiting = self._waiting.get(kind)
        if waiting is not None:
            waiting.count += 1
            return
        if len(self._waiting) >= MAX_KINDS:
            self.flush()
        self._waiting[kind] = _Waiting(details)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.flush()
            return
        if self._timer is None or self._loop is not loop:  # that of a loop that has ended never comes
            self._loop, self._timer = loop, loop.call_later(WITHIN_S, self.flush)

    def flush(self) -> None:
        """Logs what waits, now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        summed, self._waiting = self._waiting, {}
        for (level, message, cause), waiting in summed.items():
            if waiting.count == 1:
                self._logger.log(level, "%s %s", message, waiting.first)
            else:
                told = {"count": waiting.count} | ({"cause": cause} if cause else {})
                self._logger.log(level, "%s %s, the first: %s", message, pairs(**told), waiting.first)
