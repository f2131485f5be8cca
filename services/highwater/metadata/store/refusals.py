"""An etcd that refuses: said once in a while, and never asked in a tight loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from highwater.metadata.store.etcd_errors import Refused
from highwater.telemetry.log import get_logger

_log = get_logger(__name__)

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
FORGOTTEN_AFTER_S = 10.0  # without a refusal, the next one is the first again
SAY_AGAIN_S = 30.0


class Refusals:
    """The refusals that one store meets. Many callers may be refused at once: the pause grows by time, not by their
    number."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._pause_s = FIRST_PAUSE_S
        self._last_s = -FORGOTTEN_AFTER_S
        self._grown_s = 0.0
        self._said = ""
        self._said_s = 0.0

    async def pause(self, error: Refused, remaining_s: float) -> None:
        """Waits before the refusal is told: 0.1 s at first, doubled up to 2 s while there are more, and at most
        `remaining_s`."""
        pause_s = self.noted(error)
        await asyncio.sleep(max(0.0, min(pause_s, remaining_s)))

    def noted(self, error: Refused) -> float:
        """The pause, in seconds."""
        now_s = self._clock_s()
        if now_s - self._last_s >= FORGOTTEN_AFTER_S:
            self._pause_s, self._grown_s, self._said = FIRST_PAUSE_S, now_s, ""
        elif now_s - self._grown_s >= self._pause_s:
            self._pause_s, self._grown_s = min(2 * self._pause_s, LONGEST_PAUSE_S), now_s
        self._last_s = now_s
        if str(error) != self._said or now_s - self._said_s >= SAY_AGAIN_S:
            self._said, self._said_s = str(error), now_s
            _log.error("%s: it is asked again until that is put right", error)
        return self._pause_s
