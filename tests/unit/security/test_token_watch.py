"""Streams end with their tokens, and with nothing else: whatever becomes of a look at the tokens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from highwater.security import token_watch
from highwater.security.principal import user
from highwater.security.token_watch import TOKEN_ENDED, TokenWatch
from highwater.security.tokens import ShownToken


class Tokens:
    """Those that count, and a clock."""

    def __init__(self) -> None:
        self.counts = True
        self.revision = 0
        self.now_s = 0.0
        self.looked = asyncio.Event()
        self.fails = False

    def look(self) -> int:
        self.looked.set()
        if self.fails:
            raise RuntimeError("a mistake of ours")
        return self.revision

    def shown(self, until_s: float = 100.0) -> ShownToken:
        return ShownToken(user("alice"), lambda: self.counts, until_s)

    async def some_looks(self) -> None:
        for _ in range(4):
            self.looked.clear()
            await asyncio.wait_for(self.looked.wait(), 10)


class AbortedError(Exception):
    """As gRPC raises where a call is ended."""


class Context:
    """What a handler writes to, and how its call was ended."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.aborted: tuple[Any, ...] = ()

    async def write(self, response: Any) -> None:
        self.begun.set()

    async def abort(self, *status: Any) -> None:
        self.aborted = status
        raise AbortedError


@pytest.fixture
def tokens(monkeypatch: pytest.MonkeyPatch) -> Tokens:
    monkeypatch.setattr(token_watch, "TICK_S", 0.002)
    return Tokens()


async def written(requests: Any, context: Any) -> None:
    await context.write(b"begun")
    await asyncio.Event().wait()


async def generated(requests: Any, context: Any) -> AsyncIterator[bytes]:
    yield b"begun"
    await asyncio.Event().wait()


class Stream:
    """One that is being served."""

    def __init__(self, tokens: Tokens, behaviour: Any, until_s: float = 100.0) -> None:
        self.watch = TokenWatch(tokens.look, lambda: tokens.now_s)
        self.context = Context()
        handler = self.watch.watched(grpc.stream_stream_rpc_method_handler(behaviour), tokens.shown(until_s))
        self.serving = asyncio.create_task(handler.stream_stream(None, self.context))

    async def begun(self) -> None:
        await asyncio.wait_for(self.context.begun.wait(), 10)

    async def has_ended(self) -> bool:
        """With its token, and leaving nothing behind."""
        with pytest.raises(AbortedError):
            await asyncio.wait_for(self.serving, 10)
        code, _, trailing = self.context.aborted
        return code is grpc.StatusCode.UNAUTHENTICATED and trailing == ((TOKEN_ENDED, "true"),) and not len(self.watch)


BEHAVIOURS = pytest.mark.parametrize("behaviour", [written, generated])


@BEHAVIOURS
async def test_a_stream_ends_when_its_token_expires(tokens: Tokens, behaviour: Any) -> None:
    stream = Stream(tokens, behaviour)
    await stream.begun()
    await tokens.some_looks()
    assert not stream.serving.done()
    tokens.now_s = 100.0
    assert await stream.has_ended()


@BEHAVIOURS
async def test_a_stream_ends_when_its_token_is_taken_away(tokens: Tokens, behaviour: Any) -> None:
    stream = Stream(tokens, behaviour)
    await stream.begun()
    tokens.counts, tokens.revision = False, 1
    assert await stream.has_ended()


async def test_a_look_that_fails_is_not_the_last(tokens: Tokens) -> None:
    """Else no stream would end any more, until another one is opened."""
    errors: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context["exception"]))
    stream = Stream(tokens, written)
    await stream.begun()
    tokens.fails = True
    await tokens.some_looks()
    assert {type(error) for error in errors} == {RuntimeError}
    tokens.fails, tokens.now_s = False, 100.0
    assert await stream.has_ended()


async def test_a_client_that_leaves_leaves_nothing_behind(tokens: Tokens) -> None:
    stream = Stream(tokens, written)
    await stream.begun()
    stream.serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stream.serving
    assert not len(stream.watch)
    assert not stream.context.aborted
