"""The turns that others have of the event loop while a request is carried out."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def with_turns(request: Coroutine[Any, Any, Any]) -> tuple[Any, int]:
    """The response, and how often others had the event loop until then."""
    turns = 0

    async def take() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    beside = asyncio.create_task(take())
    try:
        return await request, turns
    finally:
        beside.cancel()
