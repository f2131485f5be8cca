"""The delays of a service's event loop: how much later than due it comes round to something, for a callback that holds
it or for other work on the machine."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

from highwater.telemetry.log import get_logger, pairs
from highwater.telemetry.loop_idle import LoopIdle
from highwater.telemetry.metrics import Metrics

_log = get_logger(__name__)

LOOK_S = 0.1  # between two looks: of a shorter delay some are missed, and of any up to so much
LONG_S = 0.05  # what is counted
WARN_S = 0.5  # what is told: an eighth of a broker's lease
WARN_AGAIN_S = 10.0


class LoopDelay:
    """Looks ten times a second how late a timer is. Run `watch` as a task of the loop."""

    def __init__(self, metrics: Metrics, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._metrics = metrics
        self._count = metrics.counter("loop_delays", "Delays of the event loop of more than 50 ms")
        longest = metrics.gauge(
            "loop_longest_delay_seconds", "Longest delay of the event loop since this was read last"
        )
        longest.set_function(self._take_longest)
        self._taking = threading.Lock()  # metrics are read in a thread of their own
        self._longest_s = 0.0
        self._long_ones = 0  # since the last warning
        self._warned_s = -WARN_AGAIN_S
        self._idle: LoopIdle | None = None  # of the loop by which it is watched

    async def watch(self) -> None:
        """Never returns."""
        self._idle = self._idle or LoopIdle(self._metrics)
        while True:
            due_s = self._clock_s() + LOOK_S
            await asyncio.sleep(LOOK_S)
            self.came_round(self._clock_s() - due_s)
            self._idle.look()

    def came_round(self, late_s: float) -> None:
        """Notes that the loop did so, late by `late_s`."""
        with self._taking:
            self._longest_s = max(self._longest_s, late_s)
        if late_s <= LONG_S:
            return
        self._count.inc()
        self._long_ones += 1
        now_s = self._clock_s()
        if late_s >= WARN_S and now_s - self._warned_s >= WARN_AGAIN_S:
            _log.warning(
                "the event loop was delayed %s", pairs(ms=round(1000 * late_s), delays_over_50_ms=self._long_ones)
            )
            self._warned_s, self._long_ones = now_s, 0

    def _take_longest(self) -> float:
        with self._taking:
            taken, self._longest_s = self._longest_s, 0.0
        return taken
