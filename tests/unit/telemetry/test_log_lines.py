"""Lines for people, lines of JSON, and how many there are of those that repeat."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator

import pytest

from highwater.telemetry import log, repeated_lines
from highwater.telemetry.log import JsonFormatter, get_logger, identify, pairs
from highwater.telemetry.repeated_lines import BURST, PERIOD_S, RepeatedLines
from highwater.telemetry.summed_log import SummedLog


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kept]:
    """All that is logged below `highwater.lines`, at INFO."""
    monkeypatch.setattr(log, "_ids", {})
    handler, logger = Kept(), get_logger("lines")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


def test_json_has_the_pairs_and_the_ids_of_the_process(kept: Kept) -> None:
    kept.setFormatter(JsonFormatter("replica-manager"))
    identify(broker_id=1, broker_epoch=7)
    get_logger("lines").info("leading %s", pairs(topic="t", partition=3, leader_epoch=5, broker_epoch=9))
    (line,) = map(json.loads, kept.lines)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert line == {
        "level": "INFO",
        "service": "replica-manager",
        "logger": "highwater.lines",
        "message": "leading",
        "broker_id": 1,
        "broker_epoch": 7,
        "topic": "t",
        "partition": 3,
        "leader_epoch": 5,
        "of_broker_epoch": 9,
    }
    identify(broker_epoch=None)
    get_logger("lines").warning("%s: %s", "a", "b")
    assert json.loads(kept.lines[1])["message"] == "a: b"
    assert "broker_epoch" not in json.loads(kept.lines[1])


def test_json_of_what_is_no_json(kept: Kept) -> None:
    kept.setFormatter(JsonFormatter("s"))
    try:
        raise ValueError("bad\nnews")
    except ValueError:
        get_logger("lines").exception("failed %s", pairs(key=b"\xff", error=ValueError("x")))
    assert len(kept.lines) == 1
    line = json.loads(kept.lines[0])
    assert line["key"] == "b'\\xff'"
    assert line["error"] == "x"  # what the line says of itself goes before the traceback
    assert "ValueError: bad" in line["traceback"]


def test_a_summed_line_is_json_too(kept: Kept) -> None:
    kept.setFormatter(JsonFormatter("s"))
    summed = SummedLog(get_logger("lines"))
    summed.note(logging.INFO, "refused", pairs(partition=0, error="E"), cause="E")
    assert {"message": "refused", "partition": 0, "error": "E"}.items() <= json.loads(kept.lines[0]).items()


def test_what_repeats_is_written_a_few_times_and_counted(kept: Kept) -> None:
    clock = Clock()
    repeated = RepeatedLines(kept, clock_s=clock)
    logger = get_logger("lines")
    for number in range(10_000):
        logger.warning("cannot reach %s", number)
    logger.warning("another place")
    assert kept.lines == [*(f"cannot reach {number}" for number in range(BURST)), "another place"]
    clock.now_s += PERIOD_S
    repeated.flush()
    assert kept.lines[BURST + 1 :] == [f"cannot reach 9999 (the last of {10_000 - BURST} lines alike)"]
    for number in range(500):  # it goes on: a line each window
        logger.warning("cannot reach %s", number)
    clock.now_s += PERIOD_S
    repeated.flush()
    assert kept.lines[BURST + 2 :] == ["cannot reach 499 (the last of 500 lines alike)"]
    clock.now_s += 2 * PERIOD_S  # and is over: told at once again
    repeated.flush()
    logger.warning("cannot reach %s", "x")
    assert kept.lines[BURST + 3 :] == ["cannot reach x"]


def test_a_slow_retry_becomes_rare(kept: Kept) -> None:
    """One every two seconds, for an hour: some at once, then a line or two every ten seconds."""
    clock = Clock()
    repeated = RepeatedLines(kept, clock_s=clock)
    for number in range(1_800):
        get_logger("lines").warning("cannot register yet: %s", number)
        clock.now_s += 2
        if number % 5 == 4:
            repeated.flush()  # as its timer does
    assert BURST < len(kept.lines) < 2 * 360


def test_at_debug_all_are_written(kept: Kept) -> None:
    RepeatedLines(kept)
    logger = get_logger("lines")
    logger.setLevel(logging.DEBUG)
    for number in range(100):
        logger.warning("cannot reach %s", number)
    assert len(kept.lines) == 100


def test_tracebacks_are_counted_as_other_lines(kept: Kept) -> None:
    repeated = RepeatedLines(kept)
    for _ in range(100):
        get_logger("lines").error("failed", exc_info=ValueError("x"))
    assert len(kept.lines) == BURST
    repeated.flush()
    assert kept.lines[BURST:] == ["failed (the last of 90 lines alike)"]


def test_places_are_bounded(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_lines, "MAX_PLACES", 10)
    repeated = RepeatedLines(kept)
    for number in range(100):
        get_logger("lines").info(f"made by an f-string: {number}")
    assert len(repeated._allowances) <= 10
