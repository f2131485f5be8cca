"""When a peer that owes an answer is given up."""

from __future__ import annotations

import asyncio
import time

from highwater.rpc.overdue import until_overdue

LIMIT_S = 0.2


async def test_the_same_request_without_an_answer_is_overdue() -> None:
    request = object()
    began = time.monotonic()
    async with asyncio.timeout(10):
        await until_overdue(lambda: request, LIMIT_S)
    assert time.monotonic() - began >= LIMIT_S


async def test_slow_answers_one_after_the_other_are_not_overdue() -> None:
    looks = 0

    def oldest() -> object:
        nonlocal looks
        looks += 1
        return looks // 15  # fewer looks each than make the limit

    waiting = asyncio.create_task(until_overdue(oldest, LIMIT_S))
    async with asyncio.timeout(10):
        while looks < 100:  # noqa: ASYNC110
            await asyncio.sleep(LIMIT_S / 20)
    assert not waiting.done()
    waiting.cancel()


async def test_nothing_asked_is_nothing_owed() -> None:
    looks = 0

    def oldest() -> None:
        nonlocal looks
        looks += 1

    waiting = asyncio.create_task(until_overdue(oldest, LIMIT_S))
    async with asyncio.timeout(10):
        while looks < 50:  # noqa: ASYNC110
            await asyncio.sleep(LIMIT_S / 20)
    assert not waiting.done()
    waiting.cancel()


async def test_time_in_which_this_process_did_not_run_does_not_count() -> None:
    """As after SIGSTOP, or a loop that was busy: the answer may lie in the socket."""
    request: object | None = object()
    waiting = asyncio.create_task(until_overdue(lambda: request, LIMIT_S))
    await asyncio.sleep(LIMIT_S / 10)
    time.sleep(2 * LIMIT_S)  # noqa: ASYNC251
    await asyncio.sleep(LIMIT_S / 10)
    request = None  # read only now
    await asyncio.sleep(LIMIT_S)
    assert not waiting.done()
    waiting.cancel()
