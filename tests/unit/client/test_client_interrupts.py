"""An interrupt at each point at which Python runs a signal's handler: when a function begins, and when one in C has
returned. What the blocking clients share, their event loop, goes on."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from types import FrameType

import pytest
from test_client_exit import serving

from highwater.client import ClientClosedError, HighwaterError
from highwater.client.blocking import Producer
from highwater.client.blocking.event_loop_thread import event_loop_thread
from highwater.client.blocking.producer import HAND_OVER_BYTES

pytestmark = [
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # in a callback of a weak reference
]


@pytest.fixture
def address() -> Iterator[str]:
    with serving() as found:
        yield found


def interrupted_at(point: int, work: Callable[[], object]) -> bool:
    """False: the work was done before so many points."""
    passed, before = 0, sys.getprofile()

    def profile(frame: FrameType, event: str, _: object) -> None:
        nonlocal passed
        if event in ("call", "c_return"):
            passed += 1
            if passed == point:
                raise KeyboardInterrupt

    sys.setprofile(profile)
    try:
        work()
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(before)
    return passed >= point


def loop_answers() -> bool:
    return event_loop_thread().run(asyncio.sleep(0, True), 10)


def test_the_event_loop_outlives_an_interrupt_of_a_wait() -> None:
    """One that fell behind a condition's taking its lock left it locked, and the loop stood still for ever."""
    for point in count(1):
        if not interrupted_at(point, lambda: event_loop_thread().run(asyncio.sleep(0.002))):
            break
        assert loop_answers()
    assert point > 10


def test_nothing_goes_on_for_a_wait_that_is_interrupted() -> None:
    told: list[str] = []

    async def work() -> None:
        told.append("begun")
        try:
            await asyncio.sleep(0.02)
        except asyncio.CancelledError:
            told.append("cancelled")
            raise
        told.append("ended")

    for point in count(1):
        interrupted = interrupted_at(point, lambda: event_loop_thread().run(work()))
        assert loop_answers()
        assert loop_answers()  # a task that is cancelled is told a turn later
        assert told in ([], ["begun", "cancelled"], ["begun", "ended"])
        if not interrupted:
            break
        told.clear()
    assert point > 10


def test_a_producer_that_is_interrupted_sends_the_rest(address: str) -> None:
    """And the one that is stopped then does not hang."""
    acknowledged = 0
    for point in count(1):
        producer = Producer(address, linger_ms=0).start()
        producer.send_and_wait("t", b"x", partition=0)

        def work(producer: Producer = producer) -> None:
            producer.send("t", b"x", partition=0)
            producer.flush()

        interrupted = interrupted_at(point, work)
        assert producer.send_and_wait("t", b"x", partition=0).offset > acknowledged
        acknowledged = producer.send_and_wait("t", b"x", partition=0).offset
        stopped = interrupted_at(point, producer.stop)
        assert loop_answers()
        producer.stop()
        with pytest.raises(ClientClosedError):
            producer.send("t", b"x")
        if not interrupted and not stopped:
            break
    assert point > 50


def test_what_an_interrupted_send_left_makes_room(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody handed it over, and what did not fit beside it waited in vain."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with Producer(address, max_block_ms=5_000) as producer:
        producer.send_and_wait("t", b"x")
        with monkeypatch.context() as patched:
            patched.setattr(event_loop_thread(), "call_soon", interrupted)
            with pytest.raises(KeyboardInterrupt):
                producer.send("t", b"x" * (HAND_OVER_BYTES // 2))
        for _ in range(3):
            producer.send("t", b"x" * (HAND_OVER_BYTES // 2))
        with suppress(HighwaterError):  # they are larger than what is taken
            producer.flush()
