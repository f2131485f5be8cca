"""A bidirectional stream driven from both ends: one task writes what there is to ask, another takes what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar, cast

import grpc.aio
from grpc.aio import EOF  # type: ignore[attr-defined]

Request = TypeVar("Request")
Response = TypeVar("Response")


class ConversationEndedError(Exception):
    """The stream broke, or its server closed it; says why."""


async def converse(
    call: grpc.aio.StreamStreamCall[Any, Any],
    requests: AsyncIterator[Request],
    received: Callable[[Response], None],
) -> None:
    """Runs until `requests` ends, then returns; the call is cancelled either way.

    Raises:
        ConversationEndedError: the stream broke or was closed by the server.
        Whatever `requests` and `received` raise.
    """

    async def write() -> None:
        async for request in requests:
            await call.write(request)

    async def read() -> None:
        while (response := await call.read()) is not EOF:
            received(cast(Response, response))
        raise ConversationEndedError("closed by the server")

    halves = (asyncio.create_task(write()), asyncio.create_task(read()))
    try:
        done, _ = await asyncio.wait(halves, return_when=asyncio.FIRST_COMPLETED)
        # Where both ended at once, the reader knows why.
        for half in sorted(done, key=halves.index, reverse=True):
            half.result()
    except grpc.aio.AioRpcError as error:
        raise ConversationEndedError(f"{error.code().name}: {error.details()}") from error
    except asyncio.InvalidStateError:  # a write on a call that has ended: grpc.aio tells the reader the reason
        code, details = await call.code(), await call.details()
        raise ConversationEndedError(f"{code.name}: {details}") from None
    finally:
        for half in halves:
            half.cancel()
        await asyncio.gather(*halves, return_exceptions=True)
        call.cancel()
