"""Thousands of steps that await nothing leave others their turn."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest
from counted_turns import with_turns

from highwater.rpc.process import loop_turn
from highwater.rpc.process.loop_turn import by_turns, sorted_by_turns


async def test_all_come_in_their_order() -> None:
    assert [item async for item in by_turns(range(1000))] == list(range(1000))
    assert [item async for item in by_turns([])] == []


async def test_thousands_are_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = [(7 * number) % 10_007 for number in range(10_007)]
    assert [item async for item in sorted_by_turns(numbers)] == list(range(10_007))
    assert [item async for item in sorted_by_turns([])] == []
    monkeypatch.setattr(loop_turn, "TURN_S", 0.0)
    _, turns = await with_turns(anext(sorted_by_turns(numbers)))
    assert turns >= 9


async def test_others_have_their_turn_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = count()
    taken = 0

    async def take() -> None:
        nonlocal taken
        while True:
            await asyncio.sleep(0)
            taken = next(turns)

    beside = asyncio.create_task(take())
    await asyncio.sleep(0)
    before = taken
    assert [item async for item in by_turns(range(100))] == list(range(100))
    within_one = taken - before
    monkeypatch.setattr(loop_turn, "TURN_S", 0.0)
    assert [item async for item in by_turns(range(100))] == list(range(100))
    beside.cancel()
    assert within_one <= 1
    assert taken - before - within_one >= 90
