"""The order of figures, and what becomes of those that cannot be measured."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from bench.scale.__main__ import Measured, limited


class Cluster:
    name = "Highwater"

    def __init__(self, data: Path, log: list[str]) -> None:
        assert data.is_dir()
        self._log = log

    def start(self) -> None:
        self._log.append("start")

    def stop(self) -> None:
        self._log.append("stop")

    def seen(self) -> str:
        return ""

    def scale_create(self) -> dict[str, float]:
        self._log.append("create")
        return {"scale_create": 1.5, "scale_create_last": 0.6}

    def scale_idle(self) -> dict[str, float]:
        raise TimeoutError("12 of 300 have no leader after 60 s")

    def scale_restart(self) -> dict[str, float]:
        self._log.append("restart")
        return {"scale_restart": 3.0}


def test_a_figure_that_failed_is_named_and_the_next_has_a_cluster_of_its_own() -> None:
    log: list[str] = []
    measured = Measured()
    measured.measure(lambda data: Cluster(data, log), ["scale_create", "scale_idle", "scale_restart"])
    assert log == ["start", "create", "stop", "start", "restart", "stop"]
    assert measured.values == {"scale_create": 1.5, "scale_create_last": 0.6, "scale_restart": 3.0}
    assert measured.figure_of["scale_create_last"] == "scale_create"
    assert measured.failures == [
        "Highwater: scale_idle was not measured: TimeoutError: 12 of 300 have no leader after 60 s"
    ]


def test_nothing_is_started_for_no_figure() -> None:
    log: list[str] = []
    Measured().measure(lambda data: Cluster(data, log), [])
    assert log == []


def test_a_cluster_that_does_not_start_is_told_with_the_figure_and_stopped() -> None:
    class Broken(Cluster):
        def start(self) -> None:
            raise RuntimeError("no etcd")

    log: list[str] = []
    measured = Measured()
    measured.measure(lambda data: Broken(data, log), ["scale_create"])
    assert measured.failures == ["Highwater: scale_create was not measured: RuntimeError: no etcd"]
    assert log == ["stop"]


def test_what_takes_too_long_ends_and_nothing_is_interrupted_afterwards() -> None:
    with pytest.raises(TimeoutError, match="it was not over after 1 s"), limited(1):
        time.sleep(5)
    with limited(1):
        pass
    time.sleep(1.1)
