"""The delays of an event loop, as metrics and as a line in the log."""

from __future__ import annotations

import asyncio
import time

import pytest
from prometheus_client import generate_latest

from highwater.telemetry.loop_delay import LOOK_S, LoopDelay
from highwater.telemetry.metrics import Metrics


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def read(metrics: Metrics) -> tuple[float, float]:
    """The longest delay, which begins anew by it, and the number of long ones."""
    lines = dict(line.rsplit(" ", 1) for line in generate_latest(metrics.registry).decode().splitlines())
    return float(lines["highwater_s_loop_longest_delay_seconds"]), float(lines["highwater_s_loop_delays_total"])


def test_the_longest_delay_is_that_since_the_last_reading() -> None:
    metrics = Metrics("s")
    delay = LoopDelay(metrics, clock_s=Clock())
    assert read(metrics) == (0.0, 0.0)
    for late_s in (0.01, 0.3, 0.06, 0.05):
        delay.came_round(late_s)
    assert read(metrics) == (0.3, 2.0)
    delay.came_round(0.02)
    assert read(metrics) == (0.02, 2.0)


def test_a_warning_is_given_every_ten_seconds_at_most(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    delay = LoopDelay(Metrics("s"), clock_s=clock)
    for late_s in (0.1, 0.7, 0.8, 0.2):
        delay.came_round(late_s)
    clock.now_s += 9.9
    delay.came_round(2.0)
    assert [record.getMessage() for record in caplog.records] == [
        "the event loop was delayed ms=700 delays_over_50_ms=2"
    ]
    clock.now_s += 0.1
    delay.came_round(0.49)
    delay.came_round(1.0)
    assert caplog.records[1].getMessage() == "the event loop was delayed ms=1000 delays_over_50_ms=5"
    assert len(caplog.records) == 2


async def test_a_callback_that_holds_the_loop_is_seen() -> None:
    metrics = Metrics("s")
    watching = asyncio.create_task(LoopDelay(metrics).watch())
    await asyncio.sleep(1.5 * LOOK_S)
    time.sleep(3 * LOOK_S)  # noqa: ASYNC251 - it holds the loop
    async with asyncio.timeout(10):
        while (seen := read(metrics))[1] == 0:  # noqa: ASYNC110 - the metrics tell nobody
            await asyncio.sleep(0.01)
    assert seen[0] >= 2 * LOOK_S - 0.02
    watching.cancel()
