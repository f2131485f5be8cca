"""Of many calls whose answers have come, a loop hears in few turns."""

from __future__ import annotations

import asyncio
import collections
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest

from highwater.rpc.connections.channel import open_channel
from highwater.rpc.connections.wake_ups import with_wake_ups_taken

CALLS = 1_000
ECHO = "/test.Echo/Echo"
SLOW_ECHO = "/test.Echo/Slow"


class Echo(grpc.GenericRpcHandler):
    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        slow = handler_call_details.method == SLOW_ECHO
        return grpc.unary_unary_rpc_method_handler(answered_late if slow else answered)


answers: list[bytes] = []


def answered(request: bytes, context: grpc.ServicerContext) -> bytes:
    answers.append(request)
    return request


def answered_late(request: bytes, context: grpc.ServicerContext) -> bytes:
    time.sleep(float(request))
    return request


@pytest.fixture
def server() -> Iterator[str]:
    """In threads of its own: it answers whatever the loop does."""
    with futures.ThreadPoolExecutor(4) as threads:
        made = grpc.server(threads, handlers=(Echo(),))
        port = made.add_insecure_port("127.0.0.1:0")
        made.start()
        yield f"127.0.0.1:{port}"
        made.stop(None).wait()


@pytest.fixture
def wires() -> Iterator[tuple[socket.socket, socket.socket]]:
    """That which a loop reads, and that which gRPC's thread writes to."""
    read, write = socket.socketpair()
    read.setblocking(False)
    with read, write:
        yield read, write


def channel_to(address: str) -> grpc.aio.Channel:
    return with_wake_ups_taken(lambda: open_channel(address))


async def turns_of_calls(address: str) -> int:
    """The loop's turns until it has heard of the answers to `CALLS` calls, which came while it did something else."""
    channel = channel_to(address)
    call = channel.unary_unary(ECHO)
    await call(b"connected")
    answers.clear()
    calls = [asyncio.ensure_future(call(b"%d" % number)) for number in range(CALLS)]
    await asyncio.sleep(0.05)  # they are sent
    end_s = time.monotonic() + 20
    while len(answers) < CALLS and time.monotonic() < end_s:
        time.sleep(0.01)  # noqa: ASYNC251  (what the loop does meanwhile)
    time.sleep(0.5)  # noqa: ASYNC251  (the last is on its way)
    turns = 0
    while not all(each.done() for each in calls):
        await asyncio.sleep(0)
        time.sleep(0.001)  # noqa: ASYNC251  (gRPC's thread has its turn)
        turns += 1
    assert [await each for each in calls] == [b"%d" % number for number in range(CALLS)]
    await channel.close()
    return turns


async def test_a_loop_hears_in_few_turns_of_the_answers_to_many_calls(server: str) -> None:
    """It was one answer a turn, from some 280 on."""
    assert await turns_of_calls(server) < CALLS / 5


async def test_a_loop_of_another_thread_may_have_taken_what_this_one_was_woken_for(
    wires: tuple[socket.socket, socket.socket],
) -> None:
    read, write = wires
    loop = asyncio.get_running_loop()
    problems: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda loop, problem: problems.append(problem))
    woken = asyncio.Event()

    def take_one() -> None:
        woken.set()
        read.recv(4096)  # the other
        read.recv(1)

    with_wake_ups_taken(lambda: loop.add_reader(read, take_one))
    write.send(b"111")
    await woken.wait()
    await asyncio.sleep(0)
    loop.remove_reader(read)
    assert not problems


@pytest.mark.parametrize(("waiting", "taken"), [(1, 1), (2, 1), (127, 1), (200, 2)])
async def test_all_bytes_that_wait_are_taken(
    wires: tuple[socket.socket, socket.socket], waiting: int, taken: int
) -> None:
    read, write = wires
    loop = asyncio.get_running_loop()
    times = 0

    def take_one() -> None:
        nonlocal times
        read.recv(1)
        times += 1
        if times == 1 and waiting > 127:
            write.send(b"1" * 3)  # of the thread, which found room

    with_wake_ups_taken(lambda: loop.add_reader(read, take_one))
    write.send(b"1" * waiting)
    while not times:  # noqa: ASYNC110  (once)
        await asyncio.sleep(0)
    assert times == taken
    with pytest.raises(BlockingIOError):
        read.recv(1)
    loop.remove_reader(read)


def test_of_loops_in_several_threads_one_hears_of_whatever_happens(
    wires: tuple[socket.socket, socket.socket],
) -> None:
    """Each had taken the byte that was left for the other to begin with: once in some hundred times nobody heard."""
    read, write = wires
    queue: collections.deque[int] = collections.deque()
    stopped = threading.Event()

    def take_one() -> None:
        read.recv(1)
        while queue:
            queue.popleft()

    async def hear() -> None:
        loop = asyncio.get_running_loop()
        with_wake_ups_taken(lambda: loop.add_reader(read, take_one))
        while not stopped.is_set():  # noqa: ASYNC110  (of another thread)
            await asyncio.sleep(0.02)
        loop.remove_reader(read)

    loops = [threading.Thread(target=asyncio.run, args=(hear(),)) for _ in range(2)]
    for each in loops:
        each.start()
    try:
        end_s = time.monotonic() + 1.5
        while time.monotonic() < end_s:
            for number in range(3):
                queue.append(number)
                write.send(b"1")
            unheard_s = time.monotonic() + 10
            while queue:
                time.sleep(0)
                assert time.monotonic() < unheard_s
    finally:
        stopped.set()
        for each in loops:
            each.join()


async def test_events_behind_one_that_raises_are_heard_of(
    wires: tuple[socket.socket, socket.socket],
) -> None:
    read, write = wires
    loop = asyncio.get_running_loop()
    problems: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda loop, problem: problems.append(problem))
    queue = collections.deque([RuntimeError("Event loop is closed"), RuntimeError("Event loop is closed"), None])

    def take_one() -> None:
        read.recv(1)
        while queue:
            if (problem := queue.popleft()) is not None:
                raise problem

    with_wake_ups_taken(lambda: loop.add_reader(read, take_one))
    write.send(b"111")
    for _ in range(5):
        await asyncio.sleep(0)
    assert not queue
    assert [str(each["exception"]) for each in problems] == ["Event loop is closed"] * 2
    with pytest.raises(BlockingIOError):
        read.recv(1)  # as from any socket again
    loop.remove_reader(read)


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_events_behind_an_interrupt_are_heard_of(
    wires: tuple[socket.socket, socket.socket], interrupt: type[BaseException]
) -> None:
    """The program may go on with the loop, to close its client; and other threads' loops go on in any case."""
    read, write = wires
    loop = asyncio.new_event_loop()
    queue = collections.deque([interrupt(), None])

    def take_one() -> None:
        read.recv(1)
        while queue:
            if (problem := queue.popleft()) is not None:
                raise problem

    async def add() -> None:
        with_wake_ups_taken(lambda: loop.add_reader(read, take_one))

    loop.run_until_complete(add())
    write.send(b"11")
    with pytest.raises(interrupt):
        loop.run_until_complete(asyncio.sleep(0.1))
    assert not queue
    with pytest.raises(BlockingIOError):
        read.recv(1)
    loop.remove_reader(read)
    loop.close()


async def test_an_answer_behind_those_to_a_loop_that_was_closed_is_heard_of(server: str) -> None:
    """gRPC raises at an event of such a loop, and left the next without a byte: this loop did not hear of its own until
    something else happened."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, problem: None)
    channel = channel_to(server)
    call = channel.unary_unary(SLOW_ECHO)
    await call(b"0")
    kept: list[object] = []

    async def leave_calls() -> None:
        others = channel_to(server)
        left = others.unary_unary(SLOW_ECHO)
        await left(b"0")
        kept.extend([others, *(left(b"0.3") for _ in range(3))])
        await asyncio.sleep(0.1)

    def closed_loop() -> None:
        closed = asyncio.new_event_loop()
        closed.run_until_complete(leave_calls())
        closed.close()
        kept.append(closed)

    await asyncio.to_thread(closed_loop)
    own = call(b"0.4")
    own.add_done_callback(lambda call: None)
    await asyncio.sleep(0.05)
    time.sleep(0.6)  # noqa: ASYNC251  (all have been answered)
    async with asyncio.timeout(5):
        assert await own == b"0.4"
    await channel.close()
    kept.clear()


async def test_the_loop_is_as_it_was_afterwards() -> None:
    loop = asyncio.get_running_loop()
    before = loop.add_reader

    def failing() -> None:
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        with_wake_ups_taken(failing)
    assert loop.add_reader == before
    assert "add_reader" not in vars(loop)


def test_without_a_running_loop_nothing_is_changed() -> None:
    made: Callable[[], int] = lambda: 7  # noqa: E731
    assert with_wake_ups_taken(made) == 7
