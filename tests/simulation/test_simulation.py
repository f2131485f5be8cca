"""A thousand seeds, each a cluster with its own faults; see `world.py`.

HIGHWATER_SIMULATION_SEEDS=100000 makes it as many; HIGHWATER_SIMULATION_FIRST_SEED says where they begin.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from .run import Result, run_seed, run_seeds

SEEDS = int(os.environ.get("HIGHWATER_SIMULATION_SEEDS", "1000"))
FIRST_SEED = int(os.environ.get("HIGHWATER_SIMULATION_FIRST_SEED", "1"))
WORKERS = 1 if "PYTEST_XDIST_WORKER" in os.environ else 2  # other tests have the other processor
CHUNK = 25
RUN_TWICE = (3, 4, 5, 6, 7, 8, 9, 10)


@pytest.mark.timeout(120 + SEEDS)
def test_invariants_hold() -> None:
    chunks = [
        range(first, min(first + CHUNK, FIRST_SEED + SEEDS)) for first in range(FIRST_SEED, FIRST_SEED + SEEDS, CHUNK)
    ]
    results: list[Result] = []
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as workers:
        for done in workers.map(run_seeds, chunks):
            results += done
    failed = [result for result in results if result.failed]
    summary = "\n".join(f"seed {result.seed}: {result.invariant}" for result in failed)
    assert not failed, f"{failed[0].report}\n\n{len(failed)} of {len(results)} seeds failed:\n{summary}"
    # It was not for nothing: clients got their answers, and leaders changed.
    assert sum(result.acknowledged for result in results) > 20 * SEEDS
    assert sum(result.elections for result in results) > 2 * SEEDS
    # Members of groups shared partitions and committed offsets.
    assert sum(result.taken for result in results) > SEEDS
    assert sum(result.committed for result in results) > 4 * SEEDS
    assert sum(result.held for result in results) > 4 * SEEDS, "throttles held nothing back"


def test_a_seed_is_one_run_everywhere() -> None:
    """Nothing hangs on the order of a set or of a hash, or on what is logged: another process, with other hashes, which
    logs everything, takes the same steps."""
    here = [run_seed(seed) for seed in RUN_TWICE]
    assert any(result.taken for result in here), "one of them is to have groups"
    program = (
        "import logging\n"
        "logging.basicConfig(level=logging.DEBUG)\n"
        "from tests.simulation.run import run_seed\n"
        f"for seed in {RUN_TWICE}:\n"
        "    result = run_seed(seed)\n"
        "    print(result.steps, result.acknowledged, result.elections, result.committed, result.held)\n"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    there = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[2],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert any(result.held for result in here), "one of them is to throttle"
    expected = [
        f"{result.steps} {result.acknowledged} {result.elections} {result.committed} {result.held}" for result in here
    ]
    assert there.stdout.splitlines() == expected


def test_a_failing_seed_says_how_to_run_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from .history import History, InvariantError

    def acked(*_: object) -> None:
        raise InvariantError("1", "made up")

    monkeypatch.setattr(History, "acked", acked)
    result = run_seed(3)
    assert result.invariant == "1"
    assert result.report.endswith("replay: python -m tests.simulation --seed 3")
