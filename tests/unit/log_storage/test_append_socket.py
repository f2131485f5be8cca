"""The append socket as a peer meets it: who is let in, what is refused, and how much waits for whom. What its appends
do is in the tests that run over each transport."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from append_call import GREETING, HELLO, MESSAGE, REFUSED, AppendCall, frame
from log_storage_batches import batch
from log_storage_client import DEADLINE_S, LEADER, Storage, appending, key, running

from highwater.log_storage.log_manager import log_loader
from highwater.log_storage.server import append_socket
from highwater.log_storage.server.append_socket import AppendSocket
from highwater.log_storage.service import LogStorageService
from highwater.log_storage.settings import LogStorageSettings
from highwater.rpc.server import AddressInUseError
from highwater.rpc.settings import load
from highwater.supervision import TaskSupervisor
from highwater.telemetry.metrics import Metrics
from highwater.v1 import log_storage_pb2

PATIENCE_S = 0.1  # for what must not happen
CLOSED = "a connection to the append socket was closed"


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[Storage]:
    async with running(tmp_path) as storage:
        yield storage


def call_to(storage: Storage) -> AppendCall:
    return AppendCall(storage.service.addresses[0])


def connections(storage: Storage) -> int:
    value = storage.service.metrics.registry.get_sample_value("highwater_log_storage_append_connections")
    assert value is not None
    return int(value)


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def probed(call: AppendCall, number: int) -> log_storage_pb2.AppendResponse:
    await call.write(log_storage_pb2.AppendRequest(correlation_id=number))
    response: log_storage_pb2.AppendResponse = await call.read()
    return response


async def test_a_probe_is_answered_in_its_turn(storage: Storage) -> None:
    """RULES 8.2."""
    call = call_to(storage)
    response = await probed(call, 3)
    assert (response.correlation_id, response.incarnation) == (3, storage.service.incarnation)
    assert call.incarnation == storage.service.incarnation
    assert connections(storage) == 1
    call.cancel()
    await until(lambda: connections(storage) == 0)


async def test_its_file_has_the_rights_of_the_grpc_socket_and_outlives_a_kill(tmp_path: Path) -> None:
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(tmp_path / "s.append"))
    dead.close()
    async with running(tmp_path) as storage:
        modes = [stat.S_IMODE(os.stat(tmp_path / name).st_mode) for name in ("s", "s.append")]
        assert modes[0] == modes[1]
        assert (await probed(call_to(storage), 1)).correlation_id == 1


async def test_the_socket_of_a_process_that_listens_is_not_taken_from_it(tmp_path: Path) -> None:
    """RULES 8.7. Nor does the start that failed leave anything that answers."""
    other = socket.socket(socket.AF_UNIX)
    other.bind(str(tmp_path / "s.append"))
    other.listen()
    try:
        values = {"broker.id": "1", "log.dirs": str(tmp_path / "data"), "listen": f"unix:{tmp_path}/s"}
        service = LogStorageService(load(LogStorageSettings, values))
        with pytest.raises(AddressInUseError, match=r"s\.append: another process does"):
            await service.start()
        await service.stop()
    finally:
        other.close()


async def test_nobody_is_let_in_while_the_logs_are_being_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as storage:
        await storage.create(key())
    begun, may_go_on, open_log = threading.Event(), threading.Event(), log_loader.open_log

    def opened_later(*arguments: Any, **named: Any) -> Any:
        begun.set()
        may_go_on.wait(DEADLINE_S)
        return open_log(*arguments, **named)

    monkeypatch.setattr(log_loader, "open_log", opened_later)
    values = {"broker.id": "1", "log.dirs": str(tmp_path / "data"), "listen": f"unix:{tmp_path}/s"}
    service = LogStorageService(load(LogStorageSettings, values))
    start = asyncio.create_task(service.start())
    try:
        await asyncio.to_thread(begun.wait, DEADLINE_S)
        reader, writer = await asyncio.open_unix_connection(f"{tmp_path}/s.append")
        writer.write(GREETING)
        reason = b"log-storage is opening its logs: DescribeLogs tells how far it is"
        assert await reader.read() == frame(REFUSED, reason)
        writer.close()
        may_go_on.set()
        await start
        call = AppendCall(f"unix:{tmp_path}/s")
        assert (await probed(call, 1)).incarnation == service.incarnation
        call.cancel()
    finally:
        may_go_on.set()
        await asyncio.gather(start, return_exceptions=True)
        await service.stop()


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        frame(MESSAGE, b""),
        frame(REFUSED, b"no"),
        frame(HELLO, b""),
        GREETING + GREETING,
        GREETING + frame(MESSAGE, b"\xff\xff\xff"),
        GREETING + (1 << 31).to_bytes(4, "little") + bytes([MESSAGE]),
    ],
)
async def test_who_says_what_nobody_understands_is_left_alone_and_harms_nobody(
    storage: Storage, said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    sound = call_to(storage)
    await probed(sound, 1)
    reader, writer = await asyncio.open_unix_connection(f"{storage.service.addresses[0].removeprefix('unix:')}.append")
    writer.write(said)
    with contextlib.suppress(ConnectionResetError):
        await asyncio.wait_for(reader.read(), DEADLINE_S)
    writer.close()
    assert len([record for record in caplog.records if CLOSED in record.message]) == 1
    assert (await probed(sound, 2)).correlation_id == 2
    assert connections(storage) == 1
    sound.cancel()


async def test_who_says_nothing_is_not_waited_for_for_ever(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(append_socket, "HELLO_TIMEOUT_S", 0.05)
    reader, writer = await asyncio.open_unix_connection(f"{storage.service.addresses[0].removeprefix('unix:')}.append")
    assert await asyncio.wait_for(reader.read(), DEADLINE_S) == b""
    writer.close()
    assert "no HELLO" in caplog.text


async def test_a_client_of_another_version_is_told_this_one_and_no_more(storage: Storage) -> None:
    reader, writer = await asyncio.open_unix_connection(f"{storage.service.addresses[0].removeprefix('unix:')}.append")
    writer.write(frame(HELLO, b"\x09of the future"))
    assert await reader.read() == frame(HELLO, b"\x01" + storage.service.incarnation.encode())
    writer.close()


class Held:
    """An append socket whose calls read when the test says so."""

    def __init__(self, directory: Path) -> None:
        self.address = f"unix:{directory}/s"
        self.read: list[Any] = []
        self.may_read = asyncio.Event()
        self.ended = ""
        self.tasks = TaskSupervisor()
        self.socket = AppendSocket(self._append, "one", lambda: "", self.tasks, Metrics("test"))

    async def _append(self, call: Any) -> None:
        try:
            await self.may_read.wait()
            while (request := await call.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
                self.read.append(request)
                await call.write(log_storage_pb2.AppendResponse(correlation_id=request.correlation_id))
            self.ended = "EOF"
        except asyncio.CancelledError:
            self.ended = "cancelled"
            raise


@pytest.fixture
async def held(tmp_path: Path) -> AsyncIterator[Held]:
    held = Held(tmp_path)
    await held.socket.start([held.address])
    yield held
    await held.socket.stop()
    await held.tasks.stop()


async def test_a_server_that_has_enough_under_way_stops_reading(held: Held) -> None:
    """The rest waits with the client, as on a gRPC stream whose window is full; and all of it comes, in its order."""
    call = AppendCall(held.address)
    count = 200
    request = appending(LEADER, partition=key(), records=b"r" * (256 << 10))

    async def write() -> None:
        for number in range(count):
            request.correlation_id = number
            await call.write(request)

    writing = asyncio.create_task(write())
    await until(lambda: any(connection._requests for connection in held.socket.connections))
    (connection,) = held.socket.connections
    await until(lambda: not connection._reading)
    await asyncio.sleep(PATIENCE_S)
    assert connection._read_ahead_bytes < append_socket.READ_AHEAD_BYTES + (1 << 20)
    assert not writing.done()
    held.may_read.set()
    assert [(await call.read()).correlation_id for _ in range(count)] == list(range(count))
    await writing
    assert connection._read_ahead_bytes == 0
    assert connection._reading
    call.cancel()


async def test_many_small_requests_stop_it_too(held: Held) -> None:
    call = AppendCall(held.address)
    _, writer = await call.connect()
    count = 10 * append_socket.READ_AHEAD_REQUESTS
    for number in range(count):
        writer.write(frame(MESSAGE, log_storage_pb2.AppendRequest(correlation_id=number).SerializeToString()))
    (connection,) = held.socket.connections
    await until(lambda: not connection._reading)
    held.may_read.set()
    call._unanswered = count
    assert [(await call.read()).correlation_id for _ in range(count)] == list(range(count))
    call.cancel()


async def test_a_peer_that_takes_no_answers_is_not_answered_without_a_limit(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    held.may_read.set()
    call = AppendCall(held.address)
    reader, writer = await call.connect()
    reader._transport.pause_reading()  # type: ignore[attr-defined]
    payload = frame(MESSAGE, log_storage_pb2.AppendRequest(correlation_id=1).SerializeToString())
    (connection,) = held.socket.connections
    for _ in range(1_000):
        for _ in range(200):
            writer.write(payload)
        await asyncio.sleep(0)
        if connection._drained is not None and not connection._reading:
            break
    else:
        pytest.fail("it goes on answering")
    answered = len(held.read)
    await asyncio.sleep(PATIENCE_S)
    assert len(held.read) == answered
    writer.transport.abort()
    await until(lambda: held.ended == "cancelled")


async def test_a_call_ends_with_its_connection(held: Held) -> None:
    call = AppendCall(held.address)
    await call.connect()
    held.may_read.set()
    await until(lambda: held.socket.connections)
    call.cancel()
    await until(lambda: held.ended == "cancelled")
    assert not held.socket.connections


async def test_a_stop_answers_what_was_read_and_takes_no_more(held: Held) -> None:
    call = AppendCall(held.address)
    for number in range(5):
        await call.write(log_storage_pb2.AppendRequest(correlation_id=number))
    (connection,) = held.socket.connections
    await until(lambda: len(connection._requests) == 5)
    stopping = asyncio.create_task(held.socket.stop())
    await asyncio.sleep(0)
    held.may_read.set()
    assert [(await call.read()).correlation_id for _ in range(5)] == list(range(5))
    await stopping
    assert held.ended == "EOF"
    with pytest.raises(asyncio.IncompleteReadError):
        await call.read()
    with pytest.raises(FileNotFoundError):  # its file is gone, for a start under another user
        await AppendCall(held.address).connect()


async def test_a_stop_does_not_wait_for_ever(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_socket, "STOP_GRACE_S", 0.05)
    call = AppendCall(held.address)
    await call.connect()
    await asyncio.wait_for(held.socket.stop(), DEADLINE_S)
    await until(lambda: held.ended == "cancelled")


async def test_a_mistake_of_ours_ends_that_stream_alone_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def append(call: Any) -> None:
        if (await call.read()).correlation_id == 1:
            raise KeyError("a mistake of ours")
        await asyncio.Event().wait()

    tasks, address = TaskSupervisor(), f"unix:{tmp_path}/s"
    server = AppendSocket(append, "one", lambda: "", tasks, Metrics("test"))
    await server.start([address])
    sound, spoilt = AppendCall(address), AppendCall(address)
    await sound.connect()
    await spoilt.write(log_storage_pb2.AppendRequest(correlation_id=1))
    with pytest.raises(asyncio.IncompleteReadError):
        await spoilt.read()
    assert "a mistake of ours" in caplog.text
    assert len(server.connections) == 1
    sound.cancel()
    await tasks.stop()
    await server.stop()


async def test_appends_of_a_client_that_was_killed_leave_a_sound_log(storage: Storage) -> None:
    """Some of them land, some do not: what counts is that the next fence says which (RULES 3.4)."""
    await storage.create(key())
    await storage.fence(LEADER, 1, [key()])
    call = call_to(storage)
    for number in range(50):
        fields = {"leader_epoch": 1, "expected_offset": number, "records": batch()}
        await call.write(appending(LEADER, number, partition=key(), **fields))
    assert (await call.read()).results[0].base_offset == 0
    _, writer = await call.connect()
    writer.transport.abort()
    await until(lambda: connections(storage) == 0)
    (fenced,) = await storage.fence(LEADER, 2, [key()])
    end = fenced.log.log_end_offset
    assert 1 <= end <= 50
    (again,) = await storage.fence(LEADER, 3, [key()])
    assert again.log.log_end_offset == end
