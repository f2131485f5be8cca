"""Log lines about single partitions, summed up: where all of a broker's fail at once there is one line of it, not one
for each of ten thousand, and where they go on failing fewer and fewer."""

from __future__ import annotations

import asyncio
import atexit
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from highwater.telemetry.log import pairs

WITHIN_S = 0.1
LONGEST_S = 10.0
SLOWER = 4  # each wait of what goes on is so many times the one before
MAX_KINDS = 100  # that wait, or have waited not long ago

_Kind = tuple[int, str, str]


@dataclass(slots=True)
class _Waiting:
    first: str  # what the first of them says
    due_s: float
    count: int = 1


@dataclass(slots=True)
class _Told:
    at_s: float
    pause_s: float  # that was waited before


class SummedLog:
    """Makes one line of what is alike (level, message and cause) within `WITHIN_S`: of a single one what it says, of
    several their number, the cause, and what the first says. What comes again soon after is summed up for longer, up to
    `LONGEST_S`. Each by itself is logged at DEBUG.

    Outside an event loop each is logged at once."""

    def __init__(self, logger: logging.Logger, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._clock_s = clock_s
        self._waiting: dict[_Kind, _Waiting] = {}
        self._told: dict[_Kind, _Told] = {}
        self._loop: asyncio.AbstractEventLoop | None = None  # that the timer is of
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
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
            self._keep_timer(waiting)
            return
        if len(self._waiting) >= MAX_KINDS:
            self.flush()
        now_s = self._clock_s()
        pause_s = self._pause_s(kind, now_s)
        self._waiting[kind] = _Waiting(details, now_s + pause_s)
        loop = _running_loop()
        if loop is None:
            self.flush()
        else:
            self._look_again(loop, pause_s)

    def _keep_timer(self, waiting: _Waiting) -> None:
        """The timer may be that of a loop that has ended: a process may have several, one after the other."""
        loop = _running_loop()
        if loop is not None and loop is not self._loop:
            self._look_again(loop, max(waiting.due_s - self._clock_s(), 0.0))

    def _pause_s(self, kind: _Kind, now_s: float) -> float:
        told = self._told.get(kind)
        if told is None or now_s - told.at_s > LONGEST_S:
            return WITHIN_S
        return min(SLOWER * told.pause_s, LONGEST_S)

    def _look_again(self, loop: asyncio.AbstractEventLoop, pause_s: float) -> None:
        due_s = self._clock_s() + pause_s
        if self._timer is not None and self._loop is loop and self._timer_s <= due_s:
            return
        if self._timer is not None:  # that of a loop that has ended never comes
            self._timer.cancel()
        self._loop, self._timer_s = loop, due_s
        self._timer = loop.call_later(pause_s, self._flush_due)

    def _flush_due(self) -> None:
        self._timer = None
        now_s = self._clock_s()
        due = {kind: waiting for kind, waiting in self._waiting.items() if waiting.due_s <= now_s + WITHIN_S / 2}
        for kind in due:
            del self._waiting[kind]
        self._tell(due, spaced=True)
        if self._waiting and self._loop is not None:
            first_s = min(waiting.due_s for waiting in self._waiting.values())
            self._look_again(self._loop, max(first_s - now_s, WITHIN_S / 2))

    def flush(self) -> None:
        """Logs what waits, now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        summed, self._waiting = self._waiting, {}
        self._tell(summed)

    def _tell(self, summed: dict[_Kind, _Waiting], *, spaced: bool = False) -> None:
        """`spaced`: they have waited for their time, and there are no more of them than that lets through. Others are
        counted as any line is."""
        now_s = self._clock_s()
        for kind, waiting in summed.items():
            level, message, cause = kind
            extra = {"summed": message} if spaced else {}
            if waiting.count == 1:
                self._logger.log(level, "%s %s", message, waiting.first, extra=extra)
            else:
                told = {"count": waiting.count} | ({"cause": cause} if cause else {})
                self._logger.log(level, "%s %s, the first: %s", message, pairs(**told), waiting.first, extra=extra)
            self._told[kind] = _Told(now_s, self._pause_s(kind, now_s))
        if len(self._told) > MAX_KINDS:
            self._told = {kind: told for kind, told in self._told.items() if now_s - told.at_s <= LONGEST_S}
            for kind in list(self._told)[:-MAX_KINDS]:
                del self._told[kind]


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
