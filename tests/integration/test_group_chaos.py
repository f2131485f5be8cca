"""Twenty members of a group, brokers and members that die and stand still: nothing is skipped, nothing is read by two
at once, and all is shared out again. `group_chaos.py` does the same by hand, for longer and with other seeds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from group_chaos import SETTINGS, Chaos
from group_history import Run, jumps, overlaps, repeated, skipped
from running_cluster import deployment, running_cluster

from highwater.cli.local_cluster import LocalCluster

_SECONDS = 10.0


@pytest.fixture(scope="module")
def chaos_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running_cluster(tmp_path_factory.mktemp("chaos"), settings=SETTINGS) as cluster:
        yield cluster


@pytest.mark.parametrize(
    ("seed", "commits_first"),
    [pytest.param(1, False, id="at-least-once"), pytest.param(2, True, id="at-most-once", marks=pytest.mark.long)],
)
async def test_members_and_brokers_come_and_go(
    chaos_cluster: LocalCluster, tmp_path: Path, seed: int, commits_first: bool
) -> None:
    async with deployment(chaos_cluster) as deployed:
        chaos = Chaos(deployed, f"chaos-{seed}", seed, commits_first, tmp_path)
        try:
            await chaos.run(_SECONDS)
        finally:
            print("\n".join(chaos.log))


def run(at: float, share: str, first: int, last: int) -> Run:
    return Run(at, share[0], share, 0, first, last)


def test_the_history_is_read_as_it_should_be() -> None:
    """The checks find what they are for."""
    good = {0: [run(1, "a1", 0, 4), run(2, "b1", 3, 7), run(3, "a2", 8, 9)]}
    assert overlaps(good) == jumps(good) == skipped(good, {0: 10}) == []
    assert len(repeated(good)) == 1
    assert len(overlaps({0: [run(1, "a1", 0, 4), run(2, "b1", 5, 7), run(3, "a1", 5, 7)]})) == 1
    assert len(jumps({0: [run(1, "a1", 0, 4), run(2, "a1", 6, 7)]})) == 1
    assert len(skipped({0: [run(1, "a1", 0, 4), run(2, "b1", 6, 7)]}, {0: 8})) == 1
    assert len(skipped({0: [run(1, "a1", 0, 4)]}, {0: 8})) == 1
