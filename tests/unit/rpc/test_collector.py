"""Full garbage collections of a service: what one has taken long over, the next ones leave alone for a day."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from highwater.rpc.process.collector import DAY_S, LONG_S, ROOM, CalmCollector

SHORT_S, LONG_ENOUGH_S = LONG_S / 2, 2 * LONG_S


class Node:
    """One of a cycle."""

    def __init__(self) -> None:
        self.itself = self


class World:
    def __init__(self) -> None:
        self.now_s = 5.0
        self.cpu_s = 0.0
        self.costs_s = 0.0  # a collection
        gc.callbacks.append(self._costs)  # before the collector's own, at the end as at the beginning
        self.collector = CalmCollector(clock_s=lambda: self.now_s, cpu_s=lambda: self.cpu_s)
        self.collector.start()

    def _costs(self, phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            self.cpu_s += self.costs_s

    def collect(self, costs_s: float) -> None:
        self.costs_s = costs_s
        gc.collect()

    def stop(self) -> None:
        self.collector.stop()
        gc.callbacks.remove(self._costs)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.stop()


def frozen_by(world: World, costs_s: float) -> int:
    before = gc.get_freeze_count()
    world.collect(costs_s)
    return gc.get_freeze_count() - before


def test_what_is_imported_is_frozen_at_the_start(world: World) -> None:
    assert gc.get_freeze_count() > 10_000


def test_what_a_long_collection_leaves_is_frozen(world: World) -> None:
    kept = [[number] for number in range(10_000)]
    assert frozen_by(world, SHORT_S) == 0
    assert frozen_by(world, LONG_ENOUGH_S) >= len(kept)


def test_what_nothing_refers_to_goes_although_it_is_frozen(world: World) -> None:
    class Plain:
        pass

    kept = Plain()
    gone = weakref.ref(kept)
    world.collect(LONG_ENOUGH_S)
    del kept
    assert gone() is None


def test_a_frozen_cycle_goes_within_a_day(world: World) -> None:
    node = Node()
    gone = weakref.ref(node)
    world.collect(LONG_ENOUGH_S)
    del node
    for _ in range(3):
        world.collect(0)
    assert gone() is not None
    world.now_s += DAY_S
    world.collect(0)  # after which everything is walked over
    world.collect(LONG_ENOUGH_S)
    assert gone() is None
    assert frozen_by(world, 0) == 0, "another day has begun, and all is frozen again"
    assert gc.get_freeze_count() > 10_000


def test_young_collections_are_not_looked_at(world: World) -> None:
    world.costs_s = 10 * LONG_S
    before = gc.get_freeze_count()
    gc.collect(1)
    assert gc.get_freeze_count() == before


def test_frozen_cycles_do_not_pile_up(world: World) -> None:
    """Each collection freezes what lives at that moment; of that only a collection of everything finds the cycles."""
    gone: list[weakref.ref[Node]] = []
    for _ in range(24):
        kept = [Node() for _ in range(ROOM // 4)]
        gone += [weakref.ref(node) for node in kept[:100]]
        world.collect(LONG_ENOUGH_S)
        del kept
    alive = sum(1 for each in gone if each() is not None)
    assert alive <= len(gone) // 2
