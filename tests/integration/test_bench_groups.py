"""The bench's figures of groups, with few members: that they can be taken, and say something."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bench.groups.highwater import HighwaterGroups
from bench.groups.sizes import GroupSizes
from bench.highwater_side import HighwaterSide
from bench.work import Work
from highwater.cli.local_cluster import LocalCluster

pytestmark = pytest.mark.alone

SMALL = GroupSizes(
    members=3,
    partitions=6,
    rounds=1,
    gap_members=2,
    gap_partitions=4,
    watch_s=0.3,
    commits=10,
    consume_tables=1,
    consume_pairs=1,
    idle_groups=20,
    idle_members=5,
    idle_settle_s=0.1,
    idle_window_s=0.3,
    session_timeout_ms=2_000,
    heartbeat_interval_ms=500,
)


@pytest.fixture
def groups(group_cluster: LocalCluster, tmp_path: Path) -> Iterator[HighwaterGroups]:
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    side = HighwaterSide(group_cluster, Work())
    yield HighwaterGroups(side, tmp_path, SMALL)
    side.close()
    left = [process for process in psutil.Process().children(recursive=True) if process.pid not in before]
    assert not [process for process in left if "resource_tracker" not in " ".join(process.cmdline())]


@pytest.mark.parametrize(
    ("figure", "bounds"),
    [
        ("group_rebalance", {"group_rebalance": (0.001, 20)}),
        ("group_failover", {"group_failover": (1.0, 30)}),  # a session timeout less a sign of life that is due
        ("group_join_gap", {"group_join_gap": (1, 30_000)}),
        ("commit_p50", {"commit_p50": (0.1, 5_000)}),
        ("group_consume", {"group_consume": (1, 10_000)}),
        ("group_idle", {"group_idle": (0, 400), "group_idle_members": (0, 400)}),
    ],
)
def test_a_figure_is_taken_and_nothing_is_left_running(
    groups: HighwaterGroups, figure: str, bounds: dict[str, tuple[float, float]]
) -> None:
    found = getattr(groups, figure)(f"bench-{figure.replace('_', '-')}")
    assert found.keys() == bounds.keys()
    for name, (low, high) in bounds.items():
        assert low <= found[name] <= high, found
