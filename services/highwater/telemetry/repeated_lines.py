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
WINDOW_S = 10.0
MAX_PLACES = 1_000

_Place = tuple[str, int, str]  # logger, level, message before its values


@dataclass(slots=True)
class _Window:
    began_s: float
    written: int = 0
    left_out: int = 0
    last: logging.LogRecord | None = None  # of those left out


class RepeatedLines(logging.Filter):
    """A filter of a handler. Of the lines of one place it lets `BURST` pass within `WINDOW_S`; those beyond are one
    line at its end, with their number and what the last of them says, and as long as it goes on there is one line each
    `WINDOW_S`. A logger at DEBUG tells all."""

    def __init__(self, handler: logging.Handler, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._handler = handler
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._windows: dict[_Place, _Window] = {}
        self._timer: threading.Timer | None = None
        handler.addFilter(self)
        atexit.register(self.flush)

    def filter(self, record: logging.LogRecord) -> bool:
        if hasattr(record, "summed") or logging.getLogger(record.name).isEnabledFor(logging.DEBUG):
            return True
        place, now_s = (record.name, record.levelno, str(record.msg)), self._clock_s()
        with self._lock:
            window = self._windows.get(place)
            if window is None or (now_s - window.began_s > WINDOW_S and not window.left_out):
                if len(self._windows) >= MAX_PLACES:
                    self._forget(now_s)
                window = self._windows[place] = _Window(now_s)
            if window.written < BURST:
                window.written += 1
                return True
            window.left_out += 1
            window.last = record
            if self._timer is None:
                self._timer = threading.Timer(WINDOW_S, self.flush)
                self._timer.daemon = True
                self._timer.start()
        return False

    def _forget(self, now_s: float) -> None:
        self._windows = {
            place: window
            for place, window in self._windows.items()
            if window.left_out or now_s - window.began_s <= WINDOW_S
        }
        if len(self._windows) >= MAX_PLACES:
            self._windows.clear()

    def flush(self) -> None:
        """Writes what was left out, now."""
        told = []
        with self._lock:
            self._timer = None
            now_s = self._clock_s()
            for window in self._windows.values():
                if window.last is not None:
                    told.append((window.last, window.left_out))
                    window.began_s, window.left_out, window.last = now_s, 0, None
                    window.written = BURST  # it goes on, or is forgotten when it does not
        for record, left_out in told:
            record.msg = f"{record.getMessage()} (the last of {left_out} lines alike)"
            record.args, record.exc_info, record.exc_text = (), None, None
            record.summed = record.msg
            self._handler.handle(record)
