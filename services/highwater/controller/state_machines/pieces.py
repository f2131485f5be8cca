"""Decisions about thousands of partitions, which are reached a piece at a time. Pure.

Whoever drives one lets others have their turn between two pieces: answers, ticks and questions may come then, but no
event of etcd, nor another such decision. The actions are carried out at the end, all of them together.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator

from highwater.controller.state_machines.actions import Action

AT_ONCE = 240
"""Partitions of a piece: each is some 30 us."""
Pieces = Generator[None, None, list[Action]]
"""Its value are the actions."""


def whole(pieces: Pieces) -> list[Action]:
    """Decides it in one go."""
    while (actions := _next(pieces)) is None:
        pass
    return actions


async def in_turns(pieces: Pieces, others: Callable[[], Awaitable[object]]) -> list[Action]:
    """Decides it with `others` between two pieces."""
    while (actions := _next(pieces)) is None:
        await others()
    return actions


def _next(pieces: Pieces) -> list[Action] | None:
    """One more piece; the actions, once there is none."""
    try:
        next(pieces)
    except StopIteration as end:
        actions: list[Action] = end.value
        return actions
    return None
