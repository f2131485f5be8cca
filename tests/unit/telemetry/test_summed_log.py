"""A thousand lines alike are one line with their number and cause."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from highwater.telemetry import summed_log
from highwater.telemetry.log import get_logger, pairs
from highwater.telemetry.summed_log import MAX_KINDS, SummedLog

DEADLINE_S = 10


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """At INFO and above, as they come."""
    with caplog.at_level(logging.INFO, "highwater.summed"):
        found: list[str] = []

        class Kept(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                found.append(f"{record.levelname} {record.getMessage()}")

        logger, handler = get_logger("summed"), Kept()
        logger.addHandler(handler)
        yield found
        logger.removeHandler(handler)


async def test_what_is_alike_is_one_line(lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    flushed = asyncio.Event()
    summed = SummedLog(get_logger("summed"))
    tell = summed._tell
    monkeypatch.setattr(summed, "_tell", lambda due, **how: (tell(due, **how), flushed.set()))
    for number in range(10_000):
        error = "STALE_FENCE" if number % 2 else "LOG_STORAGE_ERROR"
        summed.note(logging.WARNING, "refused", pairs(partition=number, error=error), cause=error)
    summed.note(logging.INFO, "leading", pairs(partition=7))
    assert lines == []
    async with asyncio.timeout(DEADLINE_S):
        await flushed.wait()
    summed.flush()  # the last was a little later
    assert lines == [
        "WARNING refused count=5000 cause=LOG_STORAGE_ERROR, the first: partition=0 error=LOG_STORAGE_ERROR",
        "WARNING refused count=5000 cause=STALE_FENCE, the first: partition=1 error=STALE_FENCE",
        "INFO leading partition=7",
    ]
    summed.note(logging.INFO, "leading", pairs(partition=8))
    summed.flush()
    assert lines[3:] == ["INFO leading partition=8"]


async def test_kinds_that_wait_are_bounded(lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summed_log, "WITHIN_S", 3600)
    summed = SummedLog(get_logger("summed"))
    for number in range(MAX_KINDS + 1):
        summed.note(logging.INFO, "refused", pairs(cause=number), cause=str(number))
    assert len(lines) == MAX_KINDS
    summed.flush()
    assert len(lines) == MAX_KINDS + 1


def test_outside_an_event_loop_nothing_waits(lines: list[str]) -> None:
    summed = SummedLog(get_logger("summed"))
    summed.note(logging.INFO, "leading", pairs(partition=7))
    assert lines == ["INFO leading partition=7"]


async def test_each_is_told_at_debug(lines: list[str], caplog: pytest.LogCaptureFixture) -> None:
    summed = SummedLog(get_logger("summed"))
    with caplog.at_level(logging.DEBUG, "highwater.summed"):
        for number in range(3):
            summed.note(logging.INFO, "leading", pairs(partition=number))
        summed.flush()
    assert lines[:3] == [f"DEBUG leading partition={number}" for number in range(3)]
    assert lines[3:] == ["INFO leading count=3, the first: partition=0"]


async def test_what_goes_on_is_told_less_and_less_often(lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    clock_s = 1_000.0
    pauses: list[float] = []
    summed = SummedLog(get_logger("summed"), clock_s=lambda: clock_s)
    summed._loop = asyncio.get_running_loop()
    monkeypatch.setattr(summed, "_look_again", lambda loop, pause_s: pauses.append(round(pause_s, 3)))
    for _ in range(6):
        summed.note(logging.INFO, "refused", pairs(partition=1), cause="E")
        summed.note(logging.INFO, "refused", pairs(partition=2), cause="E")
        clock_s += pauses[-1]
        summed._flush_due()
    assert pauses == [0.1, 0.4, 1.6, 6.4, 10.0, 10.0]
    assert lines == ["INFO refused count=2 cause=E, the first: partition=1"] * 6
    clock_s += summed_log.LONGEST_S + 1  # over, and begun anew
    summed.note(logging.INFO, "refused", pairs(partition=3), cause="E")
    assert pauses[6:] == [0.1]


async def test_one_kind_does_not_wait_for_another(lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    summed = SummedLog(get_logger("summed"))
    for _ in range(2):
        summed.note(logging.INFO, "slow", pairs(partition=1))
        summed.flush()
    summed.note(logging.INFO, "slow", pairs(partition=1))  # waits 1.6 s
    summed.note(logging.INFO, "quick", pairs(partition=2))
    told, tell = asyncio.Event(), summed._tell
    monkeypatch.setattr(summed, "_tell", lambda due, **how: (tell(due, **how), told.set()))
    async with asyncio.timeout(DEADLINE_S):
        await told.wait()
    assert lines == ["INFO slow partition=1"] * 2 + ["INFO quick partition=2"]


def test_a_loop_that_has_ended_keeps_nothing_back(lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    summed = SummedLog(get_logger("summed"))

    async def note(waits: bool) -> None:
        told, tell = asyncio.Event(), summed._tell
        monkeypatch.setattr(summed, "_tell", lambda due, **how: (tell(due, **how), told.set()))
        summed.note(logging.INFO, "refused", pairs(partition=1), cause="E")
        if waits:
            async with asyncio.timeout(DEADLINE_S):
                await told.wait()

    asyncio.run(note(waits=False))  # ends before its timer comes
    asyncio.run(note(waits=True))
    assert lines == ["INFO refused count=2 cause=E, the first: partition=1"]
