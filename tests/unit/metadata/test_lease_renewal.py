"""The thread that renews a lease: nothing on the event loop delays it, and it ends with what it speaks for (RULES
8.2)."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from highwater.metadata.leases.lease_renewal import LeaseRenewal, next_turn_ms
from highwater.metadata.leases.leased_key import boottime_ms
from highwater.metadata.store.blocking_leases import BlockingLeases
from highwater.metadata.store.etcd_errors import LeaseNotFound, StoreClosed, Unavailable

TTL_S = 1
PATIENCE_MS = 500
LONG_PATIENCE_MS = 20_000  # where a machine that is busy itself must not end it
SOON_S = 10.0
SLACK_MS = 1_000  # of a thread on a busy machine


class Leases:
    """Answers at once as it was told, last; and notes when it was asked."""

    def __init__(self) -> None:
        self.answer: Exception | None = None
        self.asked_ms: list[int] = []
        self.closed = threading.Event()
        self.hanging = False

    def renew(self, lease: int, timeout_s: float) -> int:
        self.asked_ms.append(boottime_ms())
        if self.hanging:
            self.closed.wait()
        if self.closed.is_set():
            raise StoreClosed
        if self.answer is not None:
            raise self.answer
        return TTL_S

    def close(self) -> None:
        self.closed.set()


@contextlib.asynccontextmanager
async def renewed(
    leases: Leases, *, alive: bool = True, patience_ms: int = LONG_PATIENCE_MS
) -> AsyncIterator[LeaseRenewal]:
    renewal = LeaseRenewal(
        cast(BlockingLeases, leases),
        7,
        key="/k",
        ttl_s=TTL_S,
        patience_ms=patience_ms,
        granted_ms=boottime_ms(),
        clock_ms=boottime_ms,
    )

    async def live() -> None:
        while True:
            renewal.show_life(boottime_ms())
            await asyncio.sleep(PATIENCE_MS / 10_000)

    living = asyncio.create_task(live()) if alive else None
    try:
        yield renewal
    finally:
        if living is not None:
            living.cancel()
        renewal.close()


async def until(condition: Any) -> None:
    async with asyncio.timeout(SOON_S):
        while not condition():  # noqa: ASYNC110 - a thread makes it true
            await asyncio.sleep(0.005)


def busy(seconds: float = SOON_S, until: Any = lambda: False) -> None:
    """Holds the event loop, for so long or until the condition is true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not until():
        pass


def test_a_renewal_comes_when_it_is_due_or_while_it_may() -> None:
    assert next_turn_ms(due_ms=1_300, earliest_ms=300, last_call_ms=1_700) == 1_300
    assert next_turn_ms(due_ms=1_300, earliest_ms=300, last_call_ms=900) == 900
    # Not at once after the last one.
    assert next_turn_ms(due_ms=1_300, earliest_ms=1_200, last_call_ms=900) == 1_200
    assert next_turn_ms(due_ms=1_300, earliest_ms=1_400, last_call_ms=900) == 1_300


async def test_it_is_renewed_every_third_of_its_time_while_there_is_life() -> None:
    leases = Leases()
    async with renewed(leases) as renewal:
        await until(lambda: len(leases.asked_ms) == 5)
        # The read of the list and of the value are two moments.
        assert renewal.confirmed_until_ms in {each + TTL_S * 1000 for each in leases.asked_ms[-2:]}
    spans = [later - earlier for earlier, later in zip(leases.asked_ms, leases.asked_ms[1:], strict=False)]
    assert min(spans) >= TTL_S * 1000 // 3 - 1


async def test_a_busy_event_loop_does_not_delay_a_renewal() -> None:
    leases = Leases()
    async with renewed(leases) as renewal:
        await until(lambda: leases.asked_ms)
        confirmed_ms = renewal.confirmed_until_ms
        busy(until=lambda: renewal.confirmed_until_ms > confirmed_ms)
        assert renewal.confirmed_until_ms > confirmed_ms, "nothing was confirmed while the event loop was busy"


async def test_an_event_loop_that_is_stuck_has_its_patience_and_then_the_time_to_live() -> None:
    """RULES 8.2: none comes later than the last sign of life allows."""
    leases = Leases()
    async with renewed(leases, alive=False, patience_ms=PATIENCE_MS) as renewal:
        alive_ms = boottime_ms()
        renewal.show_life(alive_ms)
        busy((PATIENCE_MS + 2 * SLACK_MS) / 1000)
        assert all(each <= alive_ms + PATIENCE_MS + SLACK_MS for each in leases.asked_ms)
        assert renewal.confirmed_until_ms <= alive_ms + PATIENCE_MS + SLACK_MS + TTL_S * 1000


async def test_a_sign_of_life_that_is_old_already_renews_nothing() -> None:
    """The answer to a probe that took longer than it may; what comes in time is used at once."""
    leases = Leases()
    async with renewed(leases, alive=False, patience_ms=PATIENCE_MS) as renewal:
        await asyncio.sleep((PATIENCE_MS + SLACK_MS) / 1000)
        asked = len(leases.asked_ms)
        renewal.show_life(boottime_ms() - PATIENCE_MS - 100)
        await asyncio.sleep(0.2)
        assert len(leases.asked_ms) == asked
        renewal.show_life(boottime_ms())
        await until(lambda: len(leases.asked_ms) > asked)


async def test_what_cannot_be_renewed_is_tried_again() -> None:
    leases = Leases()
    leases.answer = Unavailable("made up")
    async with renewed(leases) as renewal:
        granted_until_ms = renewal.confirmed_until_ms
        await until(lambda: len(leases.asked_ms) == 4)
        assert renewal.confirmed_until_ms == granted_until_ms
        leases.answer = None
        await until(lambda: renewal.confirmed_until_ms > granted_until_ms)


async def test_a_lease_that_is_gone_is_confirmed_no_more() -> None:
    """Although the event loop has not heard of it yet: it refuses acks 0 and 1 at once (RULES 8.1)."""
    leases = Leases()
    leases.answer = LeaseNotFound("made up")
    async with renewed(leases) as renewal:
        busy(until=lambda: renewal.confirmed_until_ms == 0)
        assert renewal.confirmed_until_ms == 0
        await asyncio.wait_for(renewal.ended(), SOON_S)
        assert len(leases.asked_ms) == 1


async def test_a_mistake_in_the_thread_is_told() -> None:
    leases = Leases()
    leases.answer = RuntimeError("made up")
    async with renewed(leases) as renewal:
        with pytest.raises(RuntimeError, match="made up"):
            await asyncio.wait_for(renewal.ended(), SOON_S)


async def test_closing_ends_a_call_under_way_and_the_wait_for_life() -> None:
    leases = Leases()
    leases.hanging = True
    async with renewed(leases) as renewal:
        await until(lambda: leases.asked_ms)
        renewal.close()
        await asyncio.wait_for(renewal.ended(), SOON_S)
    leases = Leases()
    async with renewed(leases, alive=False, patience_ms=PATIENCE_MS) as renewal:
        await asyncio.sleep(1.5 * PATIENCE_MS / 1000)
        renewal.close()
        await asyncio.wait_for(renewal.ended(), SOON_S)
