"""Counts the turns that others have of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any


class Turns:
    """How often others had the event loop so far."""

    def __init__(self) -> None:
        self.count = 0

    async def take(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.count += 1


@contextmanager
def counted_turns() -> Iterator[Turns]:
    """Of others, beside what the body awaits."""
    turns = Turns()
    beside = asyncio.create_task(turns.take())
    try:
        yield turns
    finally:
        beside.cancel()


async def with_turns(request: Coroutine[Any, Any, Any]) -> tuple[Any, int]:
    """The response, and how often others had the event loop until then."""
    with counted_turns() as turns:
        response = await request
        return response, turns.count
