"""Sizes, shares of clients, and waits that name what is missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.results import AIMS
from bench.scale.__main__ import GROWING, OF_KAFKA
from bench.scale.many_clients import ClientLoad, divided
from bench.scale.sizes import DEFAULT_PARTITIONS, Sizes, growth, new_topics
from bench.scale.usage import cpu_and_memory
from bench.scale.waiting import until
from highwater.client import TopicPartition


def test_idle_partitions_stand_in_topics_of_a_hundred() -> None:
    assert new_topics(0, 250) == [("idle-000000", 100), ("idle-000100", 100), ("idle-000200", 50)]
    assert new_topics(200, 400) == [("idle-000200", 100), ("idle-000300", 100)]
    assert new_topics(300, 300) == []
    assert new_topics(3000, 300) == []


def test_topics_made_later_have_names_of_their_own() -> None:
    names = [name for have, want in ((0, 3), (3, 9), (9, 300), (300, 301)) for name, _ in new_topics(have, want)]
    assert len(names) == len(set(names))


def test_growth_is_from_the_first_to_the_last_and_not_to_one_that_met_a_pause() -> None:
    assert growth([1.0]) == (1.0, 1.0)
    assert growth([1.0, 2.0, 4.0]) == (1.0, 4.0)
    assert growth([1.0, 9.0, 1.2, *[1.5] * 6, 2.0, 30.0, 2.2]) == (1.2, 2.2)


def test_every_figure_has_its_own_size_unless_one_is_given() -> None:
    assert Sizes.of(None, 30).partitions == DEFAULT_PARTITIONS
    assert set(Sizes.of(300, 5).partitions.values()) == {300}
    assert set(GROWING) | {"scale_produce", "scale_clients", "scale_round"} == set(DEFAULT_PARTITIONS)
    assert set(OF_KAFKA) < set(GROWING)
    assert {name for name in AIMS if name.startswith("scale_")} >= {"scale_latency", "scale_longest_callback"}


def test_clients_are_divided_over_processes_and_keep_their_turn() -> None:
    partitions = [TopicPartition("t", number) for number in range(5)]
    shares = divided(ClientLoad("b", partitions, window_s=10), 3)
    assert [(share.first, len(share.partitions)) for share in shares] == [(0, 1), (1, 2), (3, 2)]
    assert [one for share in shares for one in share.partitions] == partitions
    assert {share.of for share in shares} == {5}
    assert sum(share.due for share in shares) == 5 * 20 * 10
    assert len(divided(ClientLoad("b", partitions[:2], window_s=10), 4)) == 2


def test_a_wait_ends_when_nothing_is_missing() -> None:
    told = iter(["2 have no leader", "1 has no leader", ""])
    slept: list[float] = []
    until(lambda: next(told), timeout_s=10, every_s=0.5, clock=lambda: 0.0, sleep=slept.append)
    assert slept == [0.5, 0.5]


def test_a_wait_that_is_over_says_what_is_missing() -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    with pytest.raises(TimeoutError, match=r"^12 of 300 have no leader after 60 s$"):
        until(lambda: "12 of 300 have no leader", timeout_s=60, every_s=0.5, clock=lambda: now[0], sleep=sleep)
    assert now == [60.0]


def test_cpu_is_that_of_the_window() -> None:
    def burn(seconds: float) -> None:
        end = os.times().user + seconds
        while os.times().user < end:
            pass

    assert sum(range(10**6))  # before the window
    used = cpu_and_memory({"busy": [os.getpid()], "nobody": []}, 0.3, wait=burn)
    cpu, memory = used["busy"]
    assert 10 < cpu <= 130
    assert 10 < memory < 10_000
    assert used["nobody"] == (0, 0)


def test_every_figure_is_described_with_its_aim() -> None:
    page = (Path(__file__).parents[3] / "docs" / "benchmarks.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `scale_")]
    for name, aim in AIMS.items():
        if name.startswith("scale_"):
            (row,) = (line for line in rows if f"`{name}`" in line)
            assert aim.target is None or f"{'≥' if aim.higher_is_better else '≤'} {aim.target:,} " in row, name
    sizes = {row.split("|")[2].strip() for row in rows}
    assert sizes == {f"{partitions:,}" for partitions in DEFAULT_PARTITIONS.values()}
