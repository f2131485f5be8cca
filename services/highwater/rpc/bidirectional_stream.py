"""A bidirectional stream driven from both ends: one task writes what there is to ask, another takes what comes back, a
third ends it where nothing does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar, cast

import grpc.aio
from grpc.aio import EOF  # type: ignore[attr-defined]

from highwater.rpc.overdue import until_overdue

Request = TypeVar("Request")
Response = TypeVar("Response")


class StreamEndedError(Exception):
    """The stream broke, or its server closed it; says why."""


class OverdueError(StreamEndedError):
    """The peer has not answered within the limit."""


async def drive_stream(
    call: grpc.aio.StreamStreamCall[Any, Any],
    requests: AsyncIterator[Request],
    received: Callable[[Response], None],
    *,
    oldest: Callable[[], object | None],
    limit_s: float,
) -> None:
    """Runs until `requests` ends, then returns; the call is cancelled either way. `oldest` tells which request has gone
    without an answer for longest, None while there is none.

    Raises:
        OverdueError: that has been the same one for `limit_s`.
        StreamEndedError: the stream broke or was closed by the server.
        Whatever `requests` and `received` raise.
    """

    async def write() -> None:
        async for request in requests:
            try:
                await call.write(request)
            except asyncio.InvalidStateError:  # the call has ended: grpc.aio tells the reader the reason
                code, details = await call.code(), await call.details()
                raise StreamEndedError(f"{code.name}: {details}") from None

    async def read() -> None:
        while (response := await call.read()) is not EOF:
            received(cast(Response, response))
        raise StreamEndedError("closed by the server")

    async def watch() -> None:
        await until_overdue(oldest, limit_s)
        raise OverdueError(f"no answer within {limit_s:g} s")

    tasks = (asyncio.create_task(watch()), asyncio.create_task(write()), asyncio.create_task(read()))
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        # Where several ended at once, the reader knows why.
        for task in sorted(done, key=tasks.index, reverse=True):
            if task.cancelled():
                raise StreamEndedError("the connection was closed")  # which cancels what is under way on it
            task.result()
    except grpc.aio.AioRpcError as error:
        raise StreamEndedError(f"{error.code().name}: {error.details()}") from error
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        call.cancel()
