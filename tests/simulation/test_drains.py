"""Brokers drained two at once, again and again, leave every ISR at its minimum (RULES 7.8). `world.py` has the run."""

from __future__ import annotations

from random import Random

from .settings import drain_alone, draw
from .world import World

SEEDS = 40
STEPS = 10_000


def test_no_isr_falls_below_its_minimum() -> None:
    drained = 0
    for seed in range(1, SEEDS + 1):
        settings = draw(Random(seed))
        drain_alone(settings)
        world = World(seed, settings)
        world.run(STEPS)  # raises `InvariantError`
        drained += world.faults.drained
    assert drained > 2 * SEEDS
