"""Which way the append stream takes, when it takes another, and what waits on it."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from append_server import APPEND_SOCKET, GRPC, AppendServer

from highwater.log_storage_client import append_socket, append_stream
from highwater.log_storage_client.values import Append, AppendAnswer, StorageUnavailableError
from highwater.model.partition import PartitionKey
from highwater.replica_manager.storage.leader_appends import MESSAGE_BYTES, LeaderAppends
from highwater.rpc import framed_stream
from highwater.v1 import log_storage_pb2

KEY = PartitionKey(b"t" * 16, 0)
DEADLINE_S = 20


class Answering:
    """log-storage that keeps what it is given."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.may_read = asyncio.Event()
        self.may_read.set()

    async def append(self, request_iterator: Any, call: Any) -> None:
        while (request := await call.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
            if request.partitions:
                await self.may_read.wait()
            response = log_storage_pb2.AppendResponse(correlation_id=request.correlation_id, incarnation="one")
            for partition in request.partitions:
                self.records.append(partition.records)
                response.results.add(base_offset=partition.expected_offset)
            await call.write(response)


class World:
    def __init__(self, directory: Path) -> None:
        self.address = f"unix:{directory}/s"
        self.storage = Answering()
        self.appends = LeaderAppends(self.address, lambda incarnation: None)
        self.server: AppendServer | None = None

    async def serve(self, transport: str, address: str = "", refusal: Callable[[], str] = lambda: "") -> AppendServer:
        self.server = AppendServer(address or self.address, transport, self.storage.append, refusal=refusal)
        await self.server.start()
        return self.server

    async def stop_serving(self) -> None:
        if self.server is not None:
            await self.server.stop()

    def append(self, records: bytes) -> asyncio.Future[AppendAnswer | None]:
        answered: asyncio.Future[AppendAnswer | None] = asyncio.get_running_loop().create_future()
        self.appends.send(Append(KEY, 1, 0, records), answered.set_result)
        return answered

    async def probe(self) -> str:
        """Once it is connected: what is asked in the moment that a stream breaks is of unknown outcome."""
        while True:
            try:
                return await self.appends.probe(DEADLINE_S)
            except StorageUnavailableError:
                await asyncio.sleep(0.01)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path)
    world.appends.start()
    async with asyncio.timeout(60):
        yield world
        await world.appends.stop()
        await world.stop_serving()


async def test_the_append_socket_is_taken_where_there_is_one(world: World) -> None:
    server = await world.serve(APPEND_SOCKET)
    assert await world.probe() == "one"
    assert (server.connections, server.grpc_streams) == (1, 0)


async def test_at_a_tcp_address_the_stream_is_grpc_s(world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    server = await world.serve(GRPC, address)
    appends = LeaderAppends(address, lambda incarnation: None)
    appends.start()
    assert await appends.probe(DEADLINE_S) == "one"
    assert server.grpc_streams == 1
    await appends.stop()


@pytest.mark.parametrize("left", ["nothing", "the socket of a killed process", "a file"])
async def test_an_older_log_storage_has_grpc_alone(world: World, tmp_path: Path, left: str) -> None:
    if left == "a file":
        (tmp_path / "s.append").write_text("no socket")
    elif left != "nothing":
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(f"{tmp_path}/s.append")
    server = await world.serve(GRPC)
    assert await world.probe() == "one"
    assert server.grpc_streams == 1
    (tmp_path / "s.append").unlink(missing_ok=True)


async def test_one_of_another_version_is_asked_by_grpc(world: World, tmp_path: Path) -> None:
    left = asyncio.Event()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(6)
        writer.write(framed_stream.frame(framed_stream.Kind.HELLO, b"\x63one"))
        if not await reader.read():
            left.set()
        writer.close()

    later = await asyncio.start_unix_server(greet, f"{tmp_path}/s.append")
    server = await world.serve(GRPC)
    assert await world.probe() == "one"
    assert server.grpc_streams == 1
    await left.wait()
    later.close()


async def test_after_an_upgrade_the_socket_is_taken_and_after_a_downgrade_grpc(world: World) -> None:
    for transport, expected in ((GRPC, (0, 1)), (APPEND_SOCKET, (1, 0)), (GRPC, (0, 1))):
        server = await world.serve(transport)
        await world.probe()
        assert (server.connections, server.grpc_streams) == expected
        await world.stop_serving()


async def test_a_restart_does_not_end_on_grpc(world: World) -> None:
    for _ in range(5):
        server = await world.serve(APPEND_SOCKET)
        await world.probe()
        assert (server.connections, server.grpc_streams) == (1, 0)
        await world.stop_serving()


async def test_one_look_that_finds_no_socket_is_not_believed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The channel may still be that to a process which has just ended: gRPC would carry the stream until the next."""
    looks = []

    async def too_early(*arguments: Any) -> Any:
        looks.append(arguments)
        return await append_socket.connect(*arguments) if len(looks) > 1 else None

    monkeypatch.setattr(append_stream, "connect", too_early)
    server = await world.serve(APPEND_SOCKET)
    await world.probe()
    assert (len(looks), server.connections, server.grpc_streams) == (2, 1, 0)


async def test_a_log_storage_that_lets_nobody_in_is_asked_again(world: World, caplog: pytest.LogCaptureFixture) -> None:
    reason = ["log-storage is opening its logs"]
    server = await world.serve(APPEND_SOCKET, refusal=lambda: reason[0])
    async with asyncio.timeout(DEADLINE_S):
        while caplog.text.count("UNAVAILABLE: log-storage is opening its logs") < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert await world.append(b"too early") is None
    reason[0] = ""
    assert await world.probe() == "one"
    assert (server.connections, server.grpc_streams, world.storage.records) == (1, 0, [])


async def test_one_that_does_not_greet_is_not_waited_for_for_ever(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(append_socket, "HELLO_TIMEOUT_S", 0.05)
    came = asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.set()
        await reader.read()
        writer.close()

    mute = await asyncio.start_unix_server(say_nothing, f"{tmp_path}/s.append")
    await world.serve(GRPC)
    await came.wait()
    async with asyncio.timeout(DEADLINE_S):
        while "no answer within 0.05 s" not in caplog.text:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    mute.close()


@pytest.mark.parametrize("what", [b"garbage", framed_stream.frame(framed_stream.Kind.MESSAGE, b"\xff\xff\xff")])
async def test_an_answer_that_cannot_be_read_leaves_the_outcome_open(
    world: World, tmp_path: Path, what: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """RULES 3.4."""
    streams = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        streams.append(writer)
        await reader.readexactly(6)
        writer.write(framed_stream.hello("one"))
        await reader.readexactly(6)
        writer.write(what)
        await reader.read()
        writer.close()

    spoilt = await asyncio.start_unix_server(answer, f"{tmp_path}/s.append")
    await world.serve(GRPC)
    with pytest.raises(StorageUnavailableError, match="broke"):
        await world.appends.probe(DEADLINE_S)
    assert "what log-storage sent cannot be read" in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    spoilt.close()


async def test_records_of_any_size_come_through(world: World) -> None:
    await world.serve(APPEND_SOCKET)
    await world.probe()
    sizes = [0, 1, 100, (256 << 10) - 40, 256 << 10, (1 << 20) + 1, 20 << 20]
    given = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    answered = await asyncio.gather(*map(world.append, given))
    assert all(answer is not None for answer in answered)
    assert world.storage.records == given


async def test_what_log_storage_does_not_take_waits_here_and_goes_out_gathered(world: World) -> None:
    server = await world.serve(APPEND_SOCKET)
    await world.probe()
    world.storage.may_read.clear()
    count, size = 400, 100 << 10
    waiting = [world.append(b"r" * size) for _ in range(count)]
    connection: Any = world.appends._stream._connection
    async with asyncio.timeout(DEADLINE_S):
        while connection._writable:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert connection._transport.get_write_buffer_size() <= 2 * MESSAGE_BYTES
    assert len(world.appends._pending) * size > count * size - (16 << 20)  # read ahead there, and the socket's own
    world.storage.may_read.set()
    assert all(answer is not None for answer in await asyncio.gather(*waiting))
    assert len(world.storage.records) == count
    assert server.connections == 1


async def test_a_message_that_is_too_large_is_of_unknown_outcome(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As with gRPC: the stream breaks, and goes on with what comes later."""
    await world.serve(APPEND_SOCKET)
    await world.probe()
    monkeypatch.setattr(framed_stream, "MAX_MESSAGE_BYTES", 1000)
    assert await world.append(b"r" * 1000) is None
    assert "bytes, where 1000 are the most" in caplog.text
    await world.probe()
    assert await world.append(b"r" * 100) is not None


async def test_a_silent_log_storage_breaks_the_stream(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_stream, "LIMIT_S", 0.2)
    await world.serve(APPEND_SOCKET)
    await world.probe()
    world.storage.may_read.clear()
    assert await world.append(b"r") is None


async def test_who_stops_leaves_no_connection(world: World) -> None:
    server = await world.serve(APPEND_SOCKET)
    await world.probe()
    await world.appends.stop()
    async with asyncio.timeout(DEADLINE_S):
        while server.connections:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
