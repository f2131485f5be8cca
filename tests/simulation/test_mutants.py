"""The simulation has teeth: each known mistake, put back, is found by a seed that the code as it is passes."""

from __future__ import annotations

import pytest

from .mutants import MUTANTS, Mutant

MOST_SEEDS = 150  # what one of 20 finds is passed over by all of these once in 2,000 times


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_is_caught(mutant: Mutant) -> None:
    for seed in range(1, MOST_SEEDS + 1):
        result = mutant.run(seed)
        if not result.invariant.startswith(mutant.caught_by):
            continue  # passed, or failed by what follows from the mistake only later
        innocent = mutant.run_without(seed)
        assert not innocent.failed, innocent.report
        print(f"{mutant.name} (RULES {mutant.rule}): invariant {result.invariant}, after {seed} seeds")
        return
    pytest.fail(f"{mutant.name} (RULES {mutant.rule}) was not caught by {MOST_SEEDS} seeds")
