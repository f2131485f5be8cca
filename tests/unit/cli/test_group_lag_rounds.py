"""Rounds over all groups: what is asked of the cluster, what is shown of it, and what is not any more."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from highwater.cli.groups import lag_rounds
from highwater.cli.groups.lag_metrics import LagMetrics
from highwater.cli.groups.lag_rounds import DESCRIBED_AT_ONCE, MOST_READ, Lag, LagRounds, Round
from highwater.client import (
    CommittedOffset,
    GroupDescription,
    GroupListing,
    LeaderNotAvailableError,
    OffsetAndTimestamp,
    TopicPartition,
)

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


class Cluster:
    """What an `Admin` says of groups, and of ends."""

    def __init__(self, groups: Mapping[str, Mapping[TopicPartition, int]], ends: Mapping[TopicPartition, int]) -> None:
        self.groups = {name: dict(offsets) for name, offsets in groups.items()}
        self.ends = dict(ends)
        self.silent: set[str] = set()
        self.described: list[int] = []
        self.read: list[dict[TopicPartition, int]] = []
        self.times: dict[TopicPartition, int] = {}

    async def list_groups(self) -> list[GroupListing]:
        return [GroupListing(name, "empty", 0) for name in sorted(self.groups)]

    async def describe_groups(self, names: Sequence[str], *, include_offsets: bool) -> list[GroupDescription]:
        assert include_offsets
        self.described.append(len(names))
        if self.silent & set(names):
            raise LeaderNotAvailableError("the coordinator is on its way")
        return [
            GroupDescription(
                name,
                "empty",
                offsets={one: CommittedOffset(offset, -1, "", 0) for one, offset in self.groups[name].items()},
            )
            for name in names
        ]

    async def list_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndTimestamp]:
        wanted = list(partitions)
        if any(one not in self.ends for one in wanted):
            raise LeaderNotAvailableError("a partition has no leader")
        return {one: OffsetAndTimestamp(self.ends[one], -1, 0) for one in wanted}

    async def record_times(self, positions: Mapping[TopicPartition, int], _: str) -> dict[TopicPartition, int]:
        if positions:
            self.read.append(dict(positions))
        return {one: self.times[one] for one in positions if one in self.times}


class Clock:
    def __init__(self) -> None:
        self.now_ms = 100_000

    def __call__(self) -> int:
        return self.now_ms


def rounds(
    monkeypatch: pytest.MonkeyPatch, cluster: Cluster, clock: Clock, *, most: int = 1_000, pattern: str | None = None
) -> LagRounds:
    monkeypatch.setattr(lag_rounds, "record_times", cluster.record_times)
    admin: Any = cluster
    return LagRounds(admin, "", None if pattern is None else re.compile(pattern), most, clock)


async def test_a_group_falls_behind_and_catches_up(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, clock = Cluster({"g": {A: 10, B: 4}}, {A: 10, B: 4}), Clock()
    taken = rounds(monkeypatch, cluster, clock)
    assert (await taken.take(5)).lags == {"g": {A: Lag(0, 0.0), B: Lag(0, 0.0)}}
    clock.now_ms, cluster.ends[A] = 130_000, 20
    assert (await taken.take(5)).lags["g"][A] == Lag(10, 30.0)
    clock.now_ms, cluster.groups["g"][A] = 160_000, 15
    assert (await taken.take(5)).lags["g"][A] == Lag(5, 45.0)
    cluster.groups["g"][A] = 20
    assert (await taken.take(5)).lags["g"][A] == Lag(0, 0.0)
    assert cluster.read == []


async def test_one_record_is_read_of_what_was_behind_before(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, clock = Cluster({"g": {A: 5}, "h": {A: 3}, "i": {A: 10, B: 1}}, {A: 10, B: 2}), Clock()
    cluster.times[A] = 40_000
    taken = rounds(monkeypatch, cluster, clock)
    found = await taken.take(5)
    assert cluster.read == [{A: 3, B: 1}]  # where the last of them is
    assert found.lags["h"] == {A: Lag(7, 60.0)}
    assert found.lags["g"][A].seconds == pytest.approx(60 - 60 * 2 / 7, abs=0.01)
    assert found.lags["i"][B] == Lag(1, 0.0)  # no time of it: from the first look on
    clock.now_ms += 30_000
    assert (await taken.take(5)).lags["i"][B] == Lag(1, 30.0)
    for _ in range(5):
        await taken.take(5)
    assert cluster.read == [{A: 3, B: 1}, {B: 1}, {B: 1}]  # a partition that does not tell is not asked for ever


async def test_only_so_many_records_are_read_in_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    partitions = [TopicPartition("t", number) for number in range(3 * MOST_READ)]
    cluster = Cluster({"g": dict.fromkeys(partitions, 1)}, dict.fromkeys(partitions, 2))
    cluster.times = dict.fromkeys(partitions, 1_000)
    taken = rounds(monkeypatch, cluster, Clock())
    for _ in range(4):
        await taken.take(5)
    assert [len(each) for each in cluster.read] == [MOST_READ] * 3


async def test_groups_beyond_the_bound_are_left_out_and_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"g{number:04}" for number in range(10 * DESCRIBED_AT_ONCE)]
    cluster = Cluster({name: {A: 1, B: 1} for name in names}, {A: 1, B: 1})
    found = await rounds(monkeypatch, cluster, Clock(), most=101).take(5)
    assert list(found.lags) == names[:50]
    assert found.left_out == len(names) - 50
    assert cluster.described == [DESCRIBED_AT_ONCE] * 2
    chosen = await rounds(monkeypatch, cluster, Clock(), pattern="g000[12]").take(5)
    assert (list(chosen.lags), chosen.left_out) == (["g0001", "g0002"], 0)


async def test_an_end_that_is_not_known_and_a_group_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    other = TopicPartition("u", 0)
    cluster = Cluster({"g": {A: 1, other: 1}, "h": {A: 1}}, {A: 3})
    found = await rounds(monkeypatch, cluster, Clock()).take(5)
    assert found.lags["g"].keys() == {A}  # the other topic's trouble does not hide it
    assert found.unknown == 1
    cluster.silent = {"h"}
    silent = await rounds(monkeypatch, cluster, Clock()).take(5)
    assert (silent.listed, silent.lags, silent.left_out) == ({"g", "h"}, {}, 0)


def shown(metrics: LagMetrics) -> dict[str, float]:
    """`name{label,…}` of groups, without what is of the export."""
    return {
        f"{sample.name.removeprefix('highwater_group_')}{{{','.join(sample.labels.values())}}}": sample.value
        for family in metrics.metrics.registry.collect()
        for sample in family.samples
        if sample.labels
    }


def a_round(**lags: dict[TopicPartition, Lag]) -> Round:
    return Round(frozenset(lags), dict.fromkeys(lags, 2), lags)


def test_a_topic_is_the_sum_of_its_partitions_and_the_worst_of_their_ages() -> None:
    metrics = LagMetrics(by_partition=False, stale_s=90, clock_s=lambda: 0.0)
    metrics.took(a_round(g={A: Lag(3, 1.5), B: Lag(4, 0.5)}), 0.1)
    assert shown(metrics) == {"members{g}": 2, "lag_offsets{g,t}": 7, "lag_seconds{g,t}": 1.5}


def test_partitions_are_shown_where_they_are_asked_for_and_go_with_their_offsets() -> None:
    metrics = LagMetrics(by_partition=True, stale_s=90, clock_s=lambda: 0.0)
    metrics.took(a_round(g={A: Lag(3, 1.5), B: Lag(4, 0.5)}), 0.1)
    assert shown(metrics)["partition_lag_offsets{g,t,1}"] == 4
    assert shown(metrics)["partition_lag_seconds{g,t,0}"] == 1.5
    metrics.took(a_round(g={A: Lag(2, 1.0)}), 0.1)
    assert [each for each in shown(metrics) if each.endswith("{g,t,1}")] == []
    metrics.took(a_round(g={}), 0.1)
    assert shown(metrics) == {"members{g}": 2}


def test_a_group_that_is_gone_or_silent_for_long_is_not_shown() -> None:
    now_s = 0.0
    metrics = LagMetrics(by_partition=True, stale_s=90, clock_s=lambda: now_s)
    metrics.took(a_round(g={A: Lag(3, 1.5)}, h={A: Lag(0, 0.0)}), 0.1)
    now_s = 60.0
    metrics.took(Round(frozenset({"g"})), 0.1)  # it has not answered; h is not there any more
    assert {each.partition("{")[2].split(",")[0].rstrip("}") for each in shown(metrics)} == {"g"}
    now_s = 91.0
    metrics.failed()
    assert shown(metrics) == {}


def test_a_scrape_sees_no_half_of_a_round() -> None:
    """It is made in a thread of its own, family by family, while the loop shows the next round."""
    metrics = LagMetrics(by_partition=True, stale_s=90, clock_s=lambda: 0.0)
    scrape = iter(metrics.metrics.registry.collect())
    before = [next(scrape)]
    metrics.took(a_round(g={A: Lag(3, 1.5)}), 0.1)
    assert [sample for family in [*before, *scrape] for sample in family.samples if sample.labels] == []
    assert shown(metrics)["members{g}"] == 2
