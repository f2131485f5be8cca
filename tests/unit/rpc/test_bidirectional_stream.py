"""The end of a bidirectional stream that was cut off from below."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from grpc.aio import EOF  # type: ignore[attr-defined]

from highwater.rpc.bidirectional_stream import StreamEndedError, drive_stream


class Call:
    """A call on a channel that is closed: its reader is cancelled."""

    def __init__(self) -> None:
        self.reading: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def write(self, request: object) -> None:
        self.reading.cancel()

    async def read(self) -> Any:
        await self.reading
        return EOF

    def cancel(self) -> None: ...


async def one() -> AsyncIterator[bytes]:
    yield b""
    await asyncio.Event().wait()


async def test_a_call_that_is_cancelled_with_its_channel_is_a_broken_one() -> None:
    """Not a cancellation of who talks: its session would end for good (RULES 8.8)."""
    call: Any = Call()
    with pytest.raises(StreamEndedError, match="closed"):
        await asyncio.wait_for(
            drive_stream(call, one(), lambda response: None, oldest=lambda: None, limit_s=60.0), timeout=10.0
        )


async def test_who_is_cancelled_ends() -> None:
    call: Any = Call()

    async def nothing() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    talking = asyncio.create_task(
        drive_stream(call, nothing(), lambda response: None, oldest=lambda: None, limit_s=60.0)
    )
    await asyncio.sleep(0)
    talking.cancel()
    await asyncio.wait((talking,), timeout=10.0)
    assert talking.cancelled()


@pytest.mark.parametrize("mistake", [asyncio.InvalidStateError, ValueError])
async def test_a_mistake_in_taking_an_answer_ends_the_stream(mistake: type[Exception]) -> None:
    """Also the one that a write raises on a call that has ended: this call goes on, and nothing would be answered on it
    any more."""

    class Answering(Call):
        async def write(self, request: object) -> None: ...

        async def read(self) -> Any:
            return b""

        async def code(self) -> Any:
            await asyncio.Event().wait()

    def received(response: object) -> None:
        raise mistake

    call: Any = Answering()
    with pytest.raises(mistake):
        await asyncio.wait_for(drive_stream(call, one(), received, oldest=lambda: None, limit_s=60.0), timeout=10.0)
