"""When a member without a log starts a new cluster: by cases, and by every history of three members."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from highwater.kube.etcd_member.first_start import Answer, Heard, Step, next_step, what_is_missing
from highwater.kube.etcd_member.volume import Held

EMPTY, PREPARED, AGREED, JOINING, REMAINS = Held.EMPTY, Held.PREPARED, Held.AGREED, Held.JOINING, Held.REMAINS
ETCD, SILENCE, ANOTHER = Heard.ETCD, Heard.SILENCE, Heard.ANOTHER


@pytest.mark.parametrize(
    ("held", "others", "step"),
    [
        (EMPTY, (EMPTY, EMPTY), Step.PREPARE),
        (EMPTY, (PREPARED, AGREED), Step.PREPARE),
        (EMPTY, (EMPTY, SILENCE), Step.WAIT),
        (EMPTY, (EMPTY, ETCD), Step.WAIT),
        (EMPTY, (EMPTY, JOINING), Step.WAIT),
        (EMPTY, (EMPTY, REMAINS), Step.WAIT),
        (EMPTY, (EMPTY, ANOTHER), Step.WAIT),
        (EMPTY, (), Step.PREPARE),
        (PREPARED, (PREPARED, EMPTY), Step.WAIT),
        (PREPARED, (PREPARED, SILENCE), Step.WAIT),
        (PREPARED, (PREPARED, AGREED), Step.AGREE),
        (PREPARED, (ETCD, PREPARED), Step.AGREE),
        (PREPARED, (), Step.AGREE),
        (AGREED, (SILENCE, SILENCE), Step.AGREE),
        (JOINING, (EMPTY, EMPTY), Step.WAIT),
        (REMAINS, (EMPTY, EMPTY), Step.WAIT),
    ],
)
def test_a_new_cluster_needs_the_word_of_all(held: Held, others: tuple[Answer, ...], step: Step) -> None:
    assert next_step(held, {f"etcd-{n}": answer for n, answer in enumerate(others)}) is step


@pytest.mark.parametrize(
    ("held", "others", "said"),
    [
        (EMPTY, (ETCD, SILENCE), "b does not answer"),
        (EMPTY, (ETCD, ETCD), "a, b is at work"),
        (EMPTY, (ETCD, EMPTY), "only a has a log"),
        (EMPTY, (ETCD, EMPTY), "a majority of the volumes is lost"),
        (EMPTY, (SILENCE, EMPTY), "a does not answer"),
        (EMPTY, (SILENCE, EMPTY), "a majority of the volumes is lost"),
        (EMPTY, (REMAINS, EMPTY), "a held a member once"),
        (REMAINS, (EMPTY, EMPTY), "this one held a member once"),
        (EMPTY, (ANOTHER, EMPTY), "a would start another cluster"),
        (PREPARED, (EMPTY, PREPARED), "a, b is about to start"),
    ],
)
def test_what_is_waited_for_is_said(held: Held, others: tuple[Answer, ...], said: str) -> None:
    assert said in what_is_missing(held, dict(zip("ab", others, strict=True)))


@dataclass(frozen=True)
class World:
    """Three members.

    `first` are those at work, or with a log, under the id that a new cluster gives them; `counted` those of them that
    another etcd ran beside: alone, nobody hears a vote. `used` are the counted ones whose volumes are lost, as long as
    a log is left somewhere: without one, nothing remembers what they voted. `entries` has the members
    whose volumes hold what was acknowledged; None: nothing was.
    """

    held: tuple[Held, ...] = (EMPTY, EMPTY, EMPTY)
    first: frozenset[int] = frozenset()
    counted: frozenset[int] = frozenset()
    used: frozenset[int] = frozenset()
    entries: frozenset[int] | None = None

    def answers(self, asker: int, silent: frozenset[int]) -> dict[str, Answer]:
        return {
            str(n): SILENCE if n in silent else ETCD if held is Held.STARTED else held
            for n, held in enumerate(self.held)
            if n != asker
        }


def holding(world: World, member: int, held: Held) -> World:
    return replace(world, held=tuple(held if n == member else old for n, old in enumerate(world.held)))


def successors(world: World) -> Iterator[tuple[str, World]]:
    started = frozenset(n for n in range(3) if world.held[n] is Held.STARTED)
    if len(started) >= 2:
        counted = world.counted | (started & world.first)
        yield "acknowledge", replace(world, counted=counted, entries=(world.entries or frozenset()) | started)
        world = replace(world, counted=counted)
    for n in range(3):
        if world.held[n] is not EMPTY:
            yield (
                f"lose {n}",
                replace(
                    holding(world, n, EMPTY),
                    first=world.first - {n},
                    counted=world.counted - {n},
                    used=(world.used | (world.counted & {n})) if started - {n} else frozenset(),
                    entries=None if world.entries is None else world.entries - {n},
                ),
            )
        if n in started:
            continue
        if world.held[n] is AGREED:
            # The window between the init container and etcd's start is a state of its own.
            yield f"start {n}", replace(holding(world, n, Held.STARTED), first=world.first | {n})
        if len(started) == 2 and world.held[n] in (EMPTY, JOINING):
            yield f"replace {n}", holding(world, n, Held.STARTED)
        for silent in (frozenset[int](), frozenset({(n + 1) % 3}), frozenset({(n + 2) % 3})):
            step = next_step(world.held[n], world.answers(n, silent))
            if step is Step.PREPARE:
                yield f"prepare {n}", holding(world, n, PREPARED)
            elif step is Step.AGREE:
                yield f"agree {n}", holding(world, n, AGREED)


def test_no_history_starts_an_id_twice_while_what_it_may_have_acknowledged_is_somewhere() -> None:
    first = World()
    seen: dict[World, tuple[str, World] | None] = {first: None}
    queue = deque([first])
    started_anew = replaced = 0
    while queue:
        world = queue.popleft()
        for event, after in successors(world):
            kind, number = event.split(" ")[0], int(event[-1]) if event[-1].isdigit() else -1
            if kind == "start":
                started_anew += 1
                lost_votes = number in world.used and bool(world.entries)
                assert not lost_votes, f"{event} in {world}"
            replaced += kind == "replace"
            if after not in seen:
                seen[after] = (event, world)
                queue.append(after)
    assert len(seen) > 100
    assert started_anew
    assert replaced
