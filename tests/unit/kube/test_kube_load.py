"""The longest silence of a partition, round by round."""

from __future__ import annotations

import pytest

from highwater.kube.load import ALL_ACKNOWLEDGED, Load, LoadOptions


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("highwater.kube.load.time", made)
    return made


def test_each_round_has_its_longest_silence(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    load = Load(LoadOptions("nowhere:1", seconds=1, partitions=2, writers=1))
    offset = 0

    def acknowledge(at_s: float, *partitions: int) -> None:
        nonlocal offset
        clock.now_s = at_s
        for partition in partitions:
            load.history.sent(0)
            load.acknowledged(0, offset, partition, offset, at_s)
            offset += 1

    acknowledge(101, 0)
    assert ALL_ACKNOWLEDGED not in capsys.readouterr().err
    acknowledge(102, 0, 1)
    assert ALL_ACKNOWLEDGED in capsys.readouterr().err
    load.begin_round()
    acknowledge(102.5, 0, 1)
    acknowledge(103, 0)
    # What is silent now counts here, and goes on in the next round.
    clock.now_s = 103.25
    load.begin_round()
    acknowledge(104, 0, 1)
    load.begin_round()
    acknowledge(104.25, 0, 1)
    load.end_round()
    assert load.rounds_s == [2, 0.75, 1.5, 0.25]
