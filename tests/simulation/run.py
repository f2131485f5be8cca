"""Runs seeds, and says how to run a failing one again."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

from .history import InvariantError
from .settings import Settings
from .world import STEPS, World, describe


@dataclass(frozen=True, slots=True)
class Result:
    seed: int
    steps: int
    acknowledged: int
    elections: int
    taken: int = 0  # partitions, by members of groups
    committed: int = 0  # offsets
    held: int = 0  # times that a throttle held something back
    invariant: str = ""  # that did not hold; "assertion" for one of the production code's own
    report: str = ""

    @property
    def failed(self) -> bool:
        return bool(self.invariant)


def command(seed: int, steps: int, flags: str) -> str:
    return f"python -m tests.simulation --seed {seed}" + ("" if steps == STEPS else f" --steps {steps}") + flags


def run_seed(
    seed: int, steps: int = STEPS, verbose: bool = False, settings: Settings | None = None, flags: str = ""
) -> Result:
    """`flags`: what else the command line needs to make these settings."""
    world = World(seed, settings, verbose=verbose)
    invariant = report = ""
    try:
        world.run(steps)
    except Exception as error:
        invariant = error.invariant if isinstance(error, InvariantError) else "assertion"
        lines = [describe(event) for event in world.events]
        trace = "" if isinstance(error, InvariantError) else traceback.format_exc()
        report = "\n".join([*lines, trace, f"seed {seed}: {error!r}", f"replay: {command(seed, steps, flags)}"])
    history = world.history
    taken = committed = 0
    if world.groups is not None:
        taken, committed = world.groups.checks.taken, world.groups.checks.commits.acknowledged
    return Result(
        seed,
        world.scheduler.steps,
        history.acknowledged,
        history.elections,
        taken,
        committed,
        world.throttles.held,
        invariant,
        report,
    )


def run_seeds(seeds: Sequence[int], steps: int = STEPS) -> list[Result]:
    return [run_seed(seed, steps) for seed in seeds]


def _run(seed: int, options: argparse.Namespace) -> Result:
    from .mutants import MUTANTS  # which run seeds themselves

    for mutant in MUTANTS:
        if options.mutant and mutant.name.startswith(options.mutant):
            return mutant.run(seed, options.verbose)
        if options.bias and mutant.name.startswith(options.bias):
            return mutant.run_without(seed, options.verbose)
    return run_seed(seed, options.steps, options.verbose)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many, from the first on")
    parser.add_argument("--steps", type=int, default=STEPS, help="of each seed, before everything is healed")
    parser.add_argument("--verbose", action="store_true", help="print every event")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first failing seed")
    parser.add_argument("--mutant", default="", help="the beginning of a known mistake's name (`mutants.py`): make it")
    parser.add_argument("--bias", default="", help="the same, but its settings only")
    options = parser.parse_args()
    started = time.perf_counter()
    results: list[Result] = []
    for seed in range(options.seed, options.seed + options.seeds):
        results.append(_run(seed, options))
        if results[-1].failed:
            print(results[-1].report, flush=True)
            if not options.keep_going:
                break
    seconds = time.perf_counter() - started
    failed = [result.seed for result in results if result.failed]
    print(
        f"{len(results)} seeds, {sum(r.steps for r in results)} steps, {sum(r.acknowledged for r in results)} batches"
        f" acknowledged, {sum(r.elections for r in results)} leaderships, {seconds:.1f} s; failed: {failed or 'none'}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
