"""The time that an event loop waits for something to do."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable

from highwater.telemetry.metrics import Metrics

WINDOW_S = 10.0  # of the share


class TimedSelector(selectors.DefaultSelector):
    """Sums up what it waits. A selector that is asked for what there is at once does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waited_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        began_s = time.perf_counter()
        try:
            return super().select(timeout)
        finally:
            self.waited_s += time.perf_counter() - began_s


class TimedEventLoop(asyncio.SelectorEventLoop):
    """The event loop of a service's process."""

    def __init__(self) -> None:
        self.selector = TimedSelector()
        super().__init__(self.selector)


def loop_waited_s() -> float | None:
    """Seconds that the running event loop has waited so far; None where that is no `TimedEventLoop`."""
    loop = asyncio.get_running_loop()
    return loop.selector.waited_s if isinstance(loop, TimedEventLoop) else None


class LoopIdle:
    """Kafka's `RequestHandlerAvgIdlePercent`, for the event loop by which a service does its work. Use it on the loop;
    where that is no `TimedEventLoop` it tells nothing."""

    def __init__(self, metrics: Metrics, *, clock_s: Callable[[], float] = time.perf_counter) -> None:
        loop = asyncio.get_running_loop()
        self._selector = loop.selector if isinstance(loop, TimedEventLoop) else None
        self._clock_s = clock_s
        self._began = (clock_s(), self._waited_s())
        self._ratio = 1.0
        metrics.gauge(
            "loop_idle_ratio", "Share of the last ten seconds in which the event loop had nothing to do"
        ).set_function(lambda: self._ratio)
        metrics.read_counter(
            "loop_idle_seconds",
            "Time in which the event loop had nothing to do",
            (),
            lambda: [((), self._waited_s())] if self._selector is not None else [],
        )

    def look(self) -> None:
        """To be called every now and then."""
        now_s, waited_s = self._clock_s(), self._waited_s()
        began_s, before_s = self._began
        if now_s - began_s >= WINDOW_S:
            self._ratio = min((waited_s - before_s) / (now_s - began_s), 1.0)
            self._began = (now_s, waited_s)

    def _waited_s(self) -> float:
        return 0.0 if self._selector is None else self._selector.waited_s
