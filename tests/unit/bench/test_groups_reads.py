"""What is said of groups from what their members have read, and its description."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from time import monotonic

import pytest

from bench.__main__ import MEASURES
from bench.groups.consuming import PairedRates
from bench.groups.feed import Feed
from bench.groups.reads import Read, first_reads, longest_gap, owners_of, unsettled
from bench.groups.sizes import GroupSizes
from bench.results import AIMS

GROUP_AIMS = [name for name in AIMS if name.startswith("group_") or name == "commit_p50"]


def test_shares_are_settled_when_each_partition_has_one_owner_and_none_has_many_more() -> None:
    assert unsettled({1: frozenset({0, 1}), 2: frozenset({2})}, 3) == ""
    assert unsettled({1: frozenset({0, 1}), 2: frozenset()}, 3).startswith("2 of 3 partitions have owners, with 0 to 2")
    assert unsettled({1: frozenset({0, 1}), 2: frozenset({1, 2})}, 3).endswith("4 in all")
    assert unsettled({1: frozenset({0, 1, 2}), 2: frozenset({3})}, 4)
    assert owners_of({1: frozenset({0, 1}), 2: frozenset({2})}) == {0: 1, 1: 1, 2: 2}


def test_the_first_reads_after_a_moment_are_those_of_others() -> None:
    reads = [Read(3.0, 2, 0), Read(1.0, 1, 0), Read(2.5, 9, 0), Read(2.6, 2, 0), Read(2.7, 1, 1)]
    assert first_reads(reads, 2.0, without=9) == {0: Read(2.6, 2, 0), 1: Read(2.7, 1, 1)}
    assert first_reads(reads, 2.0, without=-1)[0] == Read(2.5, 9, 0)
    assert first_reads(reads, 3.0, without=-1) == {}


def test_a_gap_is_that_of_one_partition_and_lies_in_the_window() -> None:
    reads = [Read(at, 1, partition) for at, partition in ((0.1, 0), (0.9, 0), (1.0, 1), (1.6, 0), (1.8, 1), (2.2, 0))]
    assert longest_gap(reads, [0], 0.5, 2.0) == pytest.approx(0.7)
    assert longest_gap(reads, [0, 1], 0.5, 2.0) == pytest.approx(0.8)
    assert longest_gap(reads, [0], 0.5, 1.5) == pytest.approx(0.6), "to the end"
    assert longest_gap([], [3], 1.0, 4.0) == 3.0, "never read"
    assert longest_gap(list(reversed(reads)), [0], 0.5, 2.0) == pytest.approx(0.7)


def test_a_feed_sends_to_each_in_turn_at_its_pace_until_it_is_over() -> None:
    sent: list[tuple[float, int]] = []
    began = monotonic()
    with Feed(lambda partition: sent.append((monotonic(), partition)), [4, 7], 0.01) as feed:
        deadline = monotonic() + 10
        while len(sent) < 20 and monotonic() < deadline:
            pass
    assert [partition for _, partition in sent[:4]] == [4, 7, 4, 7]
    assert sent[19][0] - began >= 0.099
    assert not feed.running


def test_a_feed_raises_what_kept_it_from_sending() -> None:
    def send(_: int) -> None:
        raise ValueError("no such partition")

    def fed() -> None:
        with Feed(send, [0], 0.001) as feed:
            while feed.running:
                pass

    with pytest.raises(ValueError, match="no such partition"):
        fed()


def test_pairs_are_taken_until_there_are_enough_or_the_time_is_over() -> None:
    rates = PairedRates(GroupSizes(consume_pairs=3, consume_time_s=60))
    for number in count():
        if not rates.wants_more():
            break
        rates.add((90.0, 96.0, 99.0)[number], 100.0)
    assert rates.count == 3
    assert rates.percent() == 96.0
    hurried = PairedRates(GroupSizes(consume_pairs=3, consume_time_s=0))
    assert hurried.wants_more(), "one at least"
    hurried.add(1.0, 1.0)
    assert not hurried.wants_more()


def test_every_figure_of_groups_is_measured_and_described_with_its_aim() -> None:
    page = (Path(__file__).parents[3] / "docs" / "benchmarks.md").read_text()
    section = page[page.index("\n## Groups") :]
    for name in GROUP_AIMS:
        aim = AIMS[name]
        assert any(name.startswith(kind) for kind in MEASURES), name
        row = next(line for line in section.splitlines() if line.startswith("| `") and f"`{name}`" in line)
        assert aim.target is not None
        assert f"{'≥' if aim.higher_is_better else '≤'} {aim.target:g} " in row, name
