"""A channel whose calls go by the certificates that stand in the files when they begin."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import grpc
import grpc.aio

from highwater.rpc.connections.tls import Certificates

_LOOK_AGAIN_S = 5.0  # while a connection is waited for


class _Connection:
    """A channel with the certificates of one generation, and how many calls are under way on it."""

    def __init__(self, channel: grpc.aio.Channel, generation: int) -> None:
        self.channel = channel
        self.generation = generation
        self.calls = 0
        self.retired = False


class _Method(NamedTuple):
    """A method's name, and how its messages are written and read."""

    arguments: tuple[Any, ...]
    options: dict[str, Any]


class RenewedChannel(grpc.aio.Channel):
    """Opens another channel when the `certificates` have been replaced; the former one goes when its calls have ended.
    So nothing that is under way fails: a stream lives on with the certificates with which it began, and whoever opens
    the next one shows the new ones."""

    def __init__(self, certificates: Certificates, open_one: Callable[[], grpc.aio.Channel]) -> None:
        self._certificates = certificates
        self._open = open_one
        self._closing: set[asyncio.Task[None]] = set()
        self._retired: set[_Connection] = set()
        self._closed = False
        self._present = _Connection(open_one(), certificates.generation)

    def _current(self) -> _Connection:
        before = self._present
        if self._closed:
            return before
        self._certificates.look()
        generation = self._certificates.generation
        if generation != before.generation:
            self._present = _Connection(self._open(), generation)
            before.retired = True
            self._retired.add(before)
            self._close_unused(before)
        return self._present

    def _close_unused(self, connection: _Connection) -> None:
        if connection.retired and not connection.calls and connection in self._retired:
            self._retired.discard(connection)
            closing = asyncio.get_running_loop().create_task(connection.channel.close(None))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def _call(self, kind: str, method: _Method, arguments: Any, named: Any) -> Any:
        connection = self._current()
        call = getattr(connection.channel, kind)(*method.arguments, **method.options)(*arguments, **named)
        connection.calls += 1

        def ended(_: object) -> None:
            connection.calls -= 1
            self._close_unused(connection)

        call.add_done_callback(ended)
        return call

    def _callable(self, kind: str, method: _Method) -> Any:
        return lambda *arguments, **named: self._call(kind, method, arguments, named)

    def unary_unary(self, *arguments: Any, **options: Any) -> Any:
        return self._callable("unary_unary", _Method(arguments, options))

    def unary_stream(self, *arguments: Any, **options: Any) -> Any:
        return self._callable("unary_stream", _Method(arguments, options))

    def stream_unary(self, *arguments: Any, **options: Any) -> Any:
        return self._callable("stream_unary", _Method(arguments, options))

    def stream_stream(self, *arguments: Any, **options: Any) -> Any:
        return self._callable("stream_stream", _Method(arguments, options))

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._current().channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._current().channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """Also by certificates that come while it waits."""
        while True:
            connection = self._current()
            ready = asyncio.ensure_future(connection.channel.channel_ready())
            try:
                done, _ = await asyncio.wait((ready,), timeout=_LOOK_AGAIN_S)
                if done:
                    return ready.result()
            finally:
                ready.cancel()
                await asyncio.gather(ready, return_exceptions=True)

    async def close(self, grace: float | None = None) -> None:
        self._closed = True
        retired, self._retired = self._retired, set()
        channels = (self._present.channel, *(connection.channel for connection in retired))
        await asyncio.gather(*(channel.close(grace) for channel in channels), *self._closing)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close(None)
