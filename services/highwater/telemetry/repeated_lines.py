"""Log lines that say the same again and again: of those of one place in the program a few are written, the others are
counted. A process in trouble, with ten thousand partitions, retries a lot; its disk is not to fill up with that."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

BURST = 10  # lines of one place that are written at once
PERIOD_S = 10.0
MAX_PLACES = 1_000

_Place = tuple[str, int, str]  # logger, level, message before its values


@dataclass(slots=True)
class _Allowance:
    """Of one place: at most `BURST` lines, one more every `PERIOD_S`."""

    at_s: float
    lines: float = BURST
    left_out: int = 0
    last: logging.LogRecord | None = None  # of those left out

    def grow(self, now_s: float) -> None:
        self.lines = min(self.lines + (now_s - self.at_s) / PERIOD_S, BURST)
        self.at_s = now_s


class RepeatedLines(logging.Filter):
    """A filter of a handler. Of the lines of one place it lets `BURST` pass, and then one every `PERIOD_S`; those
    beyond are one line each `PERIOD_S`, with their number and what the last of them says. A logger at DEBUG tells
    all."""

    def __init__(self, handler: logging.Handler, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._handler = handler
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._allowances: dict[_Place, _Allowance] = {}
        self._timer: threading.Timer | None = None
        handler.addFilter(self)
        atexit.register(self.flush)

    def filter(self, record: logging.LogRecord) -> bool:
        if hasattr(record, "summed") or logging.getLogger(record.name).isEnabledFor(logging.DEBUG):
            return True
        place, now_s = (record.name, record.levelno, str(record.msg)), self._clock_s()
        with self._lock:
            allowance = self._allowances.get(place)
            if allowance is None:
                if len(self._allowances) >= MAX_PLACES:
                    self._forget(now_s)
                allowance = self._allowances[place] = _Allowance(now_s)
            allowance.grow(now_s)
            if allowance.lines >= 1:
                allowance.lines -= 1
                return True
            allowance.left_out += 1
            allowance.last = record
            if self._timer is None:
                self._timer = threading.Timer(PERIOD_S, self.flush)
                self._timer.daemon = True
                self._timer.start()
        return False

    def _forget(self, now_s: float) -> None:
        """Those that have their whole allowance again."""
        for place, allowance in list(self._allowances.items()):
            allowance.grow(now_s)
            if allowance.lines >= BURST:
                del self._allowances[place]
        if len(self._allowances) >= MAX_PLACES:
            self._allowances.clear()

    def flush(self) -> None:
        """Writes what was left out, now."""
        told = []
        with self._lock:
            self._timer = None
            now_s = self._clock_s()
            for allowance in self._allowances.values():
                if allowance.last is not None:
                    told.append((allowance.last, allowance.left_out))
                    allowance.left_out, allowance.last = 0, None
                    allowance.lines, allowance.at_s = 0.0, now_s  # that line is the next one
        for record, left_out in told:
            record.msg = f"{record.getMessage()} (the last of {left_out} lines alike)"
            record.args, record.exc_info, record.exc_text = (), None, None
            record.summed = record.msg
            self._handler.handle(record)
