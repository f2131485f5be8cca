"""Histograms of requests, and the idle share of an event loop."""

from __future__ import annotations

import asyncio
import time

from prometheus_client import generate_latest

from highwater.telemetry.loop_idle import WINDOW_S, LoopIdle, TimedEventLoop
from highwater.telemetry.metrics import Metrics
from highwater.telemetry.request_times import RequestMetrics
from highwater.telemetry.tallies import TIMING_BUCKETS_S, Timing


def values(metrics: Metrics) -> dict[str, float]:
    lines = generate_latest(metrics.registry).decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def test_a_timing_is_a_histogram() -> None:
    timing = Timing()
    for seconds in (0.0, 0.001, 0.0011, 0.3, 100.0):
        timing.observe(seconds)
    assert timing.buckets() == [
        ("0.001", 2.0),  # a bucket's bound is in it
        ("0.004", 3.0),
        ("0.016", 3.0),
        ("0.064", 3.0),
        ("0.25", 3.0),
        ("1.0", 4.0),
        ("5.0", 4.0),
        ("+Inf", 5.0),
    ]
    assert len(TIMING_BUCKETS_S) == 7


def test_requests_are_told_by_type_and_phase() -> None:
    metrics = Metrics("s")
    requests = RequestMetrics(metrics)
    produce = requests.of("Produce")
    produce.total.observe(0.5)
    produce.remote.observe(0.25)
    requests.total("Metadata").observe(0.1)
    found = values(metrics)
    of = 'highwater_s_request_seconds_{}{{phase="{}",request="{}"}}'
    for kind, phase, request, value in (
        ("count", "total", "Produce", 1.0),
        ("sum", "total", "Produce", 0.5),
        ("sum", "remote", "Produce", 0.25),
        ("count", "queue", "Produce", 0.0),
        ("count", "total", "Metadata", 1.0),
    ):
        name = of.format(kind, phase, request)
        other = f'highwater_s_request_seconds_{kind}{{request="{request}",phase="{phase}"}}'
        assert found.get(name, found.get(other)) == value


def test_the_idle_share_of_an_event_loop() -> None:
    metrics, now_s = Metrics("s"), [0.0]

    async def work() -> tuple[float, float]:
        idle = LoopIdle(metrics, clock_s=lambda: now_s[0])
        await asyncio.sleep(0.05)
        waited_s = values(metrics)["highwater_s_loop_idle_seconds_total"]
        time.sleep(0.05)  # noqa: ASYNC251  # the loop is busy meanwhile
        await asyncio.sleep(0)
        busy_s = values(metrics)["highwater_s_loop_idle_seconds_total"] - waited_s
        now_s[0] = WINDOW_S
        idle.look()
        return waited_s, busy_s

    with asyncio.Runner(loop_factory=TimedEventLoop) as runner:
        waited_s, busy_s = runner.run(work())
    assert waited_s >= 0.04
    assert busy_s < 0.04
    assert 0 < values(metrics)["highwater_s_loop_idle_ratio"] < 0.1  # of ten seconds by that clock


async def test_on_another_loop_nothing_is_told() -> None:
    metrics = Metrics("s")
    LoopIdle(metrics).look()
    assert "highwater_s_loop_idle_seconds_total" not in values(metrics)
