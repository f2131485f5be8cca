"""Sends calls as bytes, whatever they are, and tells what was wrong with an answer."""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

import grpc
import grpc.aio
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from highwater.errors import ErrorCode
from highwater.rpc.connections.channel import open_channel
from highwater.rpc.framed_stream import Kind, frame, hello

from .calls import Call
from .cluster import FuzzedCluster
from .live import is_list
from .rpcs import APPEND_SOCKET, CLIENT, CONTROLLER, FETCHER, INTERNAL, LOG_STORAGE

DEADLINE_S = 2.0  # of one call: a fetch may ask to wait for a minute
_READ_AT_MOST = 20  # responses of a stream that does not end
_HALF_BYTES = 60_000  # what HTTP/2 takes before it is told of a window
# What a server says whose handler raised something that it did not expect.
_UNEXPECTED = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.DATA_LOSS}
# What was sent were no bytes of a message, on a stream as well (any other error leaves a traceback in the log); what
# grpc.aio says of a stream that the server has ended meanwhile.
_EXPECTED = ("DecodeError", "Internal error from Core", "unhandled errors in a TaskGroup")
_NAMES = {int(code): code.name for code in ErrorCode}


def address_of(cluster: FuzzedCluster, server: str) -> str:
    """Of broker 1, or the controller."""
    return {
        CLIENT: lambda: cluster.client_addresses[0],
        INTERNAL: lambda: cluster.addresses["replica-manager-1"],
        LOG_STORAGE: lambda: cluster.addresses["log-storage-1"],
        APPEND_SOCKET: lambda: cluster.addresses["log-storage-1"] + ".append",
        FETCHER: lambda: cluster.addresses["fetcher-1"],
        CONTROLLER: lambda: cluster.addresses["controller"],
    }[server]()


class Sender:
    """`statuses` counts what was answered, by RPC and gRPC status; `errors` by RPC and error code."""

    def __init__(self, cluster: FuzzedCluster) -> None:
        self._cluster = cluster
        self._channels: dict[str, grpc.aio.Channel] = {}
        self.statuses: Counter[tuple[str, str]] = Counter()
        self.errors: Counter[tuple[str, str]] = Counter()

    async def __aenter__(self) -> Sender:
        return self

    async def __aexit__(self, *_: object) -> None:
        for channel in self._channels.values():
            await channel.close()

    async def send(self, call: Call, payloads: Sequence[bytes]) -> str | None:
        """Returns what is wrong with the answer; None: nothing."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                if call.server == APPEND_SOCKET:
                    await self._over_append_socket(call, payloads)
                elif call.ending == "half":
                    await self._half(call, payloads)
                else:
                    return await self._over_grpc(call, payloads)
        except TimeoutError:
            self.statuses[call.path, "deadline"] += 1
        except OSError as error:
            self.statuses[call.path, type(error).__name__] += 1
        return None

    async def _over_grpc(self, call: Call, payloads: Sequence[bytes]) -> str | None:
        address = address_of(self._cluster, call.server)
        if address not in self._channels:
            self._channels[address] = open_channel(address)
        channel, rpc = self._channels[address], call.rpc
        kind = ("stream" if rpc.client_streams else "unary") + "_" + ("stream" if rpc.server_streams else "unary")
        method = getattr(channel, kind)(call.path)
        problem = None
        running = method(_each(payloads) if rpc.client_streams else payloads[0], timeout=DEADLINE_S)
        try:
            if call.ending == "cancel":
                await asyncio.sleep(0)
                running.cancel()
            elif rpc.server_streams:
                read = 0
                async for response in running:
                    problem = problem or self._examine(call, response)
                    read += 1
                    if read == _READ_AT_MOST:
                        break
            else:
                problem = self._examine(call, await running)
            self.statuses[call.path, "OK"] += 1
        except grpc.aio.AioRpcError as error:
            self.statuses[call.path, error.code().name] += 1
            if error.code() in _UNEXPECTED and not any(each in (error.details() or "") for each in _EXPECTED):
                return f"{call.path} at {call.server}: {error.code().name}: {error.details()}"
        finally:
            running.cancel()
        return problem

    def _examine(self, call: Call, response: bytes) -> str | None:
        message = GetMessageClass(call.rpc.response)()
        message.MergeFromString(response)
        codes = set(_error_codes(message))
        for code in codes:
            self.errors[call.path, _NAMES.get(code, str(code))] += 1
        if ErrorCode.UNKNOWN_SERVER_ERROR in codes:
            return f"{call.path} at {call.server}: answered UNKNOWN_SERVER_ERROR: {str(message)[:500]}"
        return None

    async def _over_append_socket(self, call: Call, payloads: Sequence[bytes]) -> None:
        path = address_of(self._cluster, call.server).removeprefix("unix:")
        reader, writer = await asyncio.open_unix_connection(path)
        try:
            data = hello() + b"".join(frame(Kind.MESSAGE, payload) for payload in payloads)
            writer.write(data[:-1] if call.ending == "half" else data)
            await writer.drain()
            if call.ending == "close":
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.1):
                        while await reader.read(1 << 16):
                            pass
            self.statuses[call.path, "OK"] += 1
        finally:
            writer.close()

    async def _half(self, call: Call, payloads: Sequence[bytes]) -> None:
        """By hand: no gRPC client ends within a message."""
        address = address_of(self._cluster, call.server)
        if address.startswith("unix:"):
            _, writer = await asyncio.open_unix_connection(address.removeprefix("unix:"))
        else:
            host, _, port = address.rpartition(":")
            _, writer = await asyncio.open_connection(host, int(port))
        try:
            headers = b"".join(
                b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value
                for name, value in (
                    (b":method", b"POST"),
                    (b":scheme", b"http"),
                    (b":path", call.path.encode()),
                    (b":authority", b"broker"),
                    (b"te", b"trailers"),
                    (b"content-type", b"application/grpc"),
                )
            )
            writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0, b"") + _frame(1, 4, 1, headers))
            data = b"".join(struct.pack(">BI", 0, len(payload)) + payload for payload in payloads)[:-1]
            for begin in range(0, min(len(data), _HALF_BYTES), 16_000):
                writer.write(_frame(0, 0, 1, data[begin : min(begin + 16_000, _HALF_BYTES)]))
            await writer.drain()
            self.statuses[call.path, "half"] += 1
        finally:
            writer.close()


async def _each(payloads: Sequence[bytes]) -> AsyncIterator[bytes]:
    for payload in payloads:
        yield payload


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _error_codes(message: Message) -> list[int]:
    """Of every `Error` in it."""
    if message.DESCRIPTOR.name == "Error":
        return [message.code]  # type: ignore[attr-defined]
    found = []
    for field, value in message.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for each in value if is_list(value) else (value,):
                found += _error_codes(each)
    return found
