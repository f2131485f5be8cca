"""The room for produce requests: of all, and of one caller."""

from __future__ import annotations

import asyncio

from highwater.replica_manager.requests.produce_room import ProduceRoom


def test_one_caller_takes_a_part_and_others_the_rest() -> None:
    room = ProduceRoom(8, 1_000)
    for _ in range(6):
        assert not room.refusal("a", 1)
        room.take("a", 1)
    assert "6 requests with 6 bytes of a" in room.refusal("a", 1)
    for _ in range(2):
        assert not room.refusal("b", 1)
        room.take("b", 1)
    assert room.refusal("c", 1).startswith("8 requests with 8 bytes are being written here")
    room.give("a", 1)
    assert not room.refusal("a", 1)


def test_bytes_of_one_caller() -> None:
    room = ProduceRoom(100, 1_000)
    room.take("a", 700)
    assert not room.refusal("a", 50)
    assert "700 bytes of a" in room.refusal("a", 51)
    assert not room.refusal("b", 300)


def test_a_lone_request_may_have_any_size() -> None:
    room = ProduceRoom(1, 10)
    assert not room.refusal("a", 1_000)
    room.take("a", 1_000)
    assert room.refusal("a", 1)
    room.give("a", 1_000)
    assert not room.refusal("a", 1_000)


def test_who_holds_nothing_is_forgotten() -> None:
    room = ProduceRoom(100, 1_000)
    for number in range(50):
        room.take(f"caller {number}", 1)
    assert room.callers == 50
    for number in range(50):
        room.give(f"caller {number}", 1)
    assert (room.callers, room.requests, room.size) == (0, 0, 0)


async def test_a_caller_waits_for_its_own_part_and_others_do_not() -> None:
    room = ProduceRoom(4, 1_000)
    for _ in range(3):
        room.take("a", 1)
    waiting = [asyncio.create_task(room.wait("a")) for _ in range(2)]
    await asyncio.wait_for(room.wait("b"), 1)
    assert not any(task.done() for task in waiting)
    room.give("a", 1)
    await asyncio.wait_for(asyncio.gather(*waiting), 1)


async def test_everybody_waits_while_it_is_full() -> None:
    room = ProduceRoom(2, 1_000)
    room.take("a", 1)
    room.take("b", 1)
    waiting = asyncio.create_task(room.wait("c"))
    await asyncio.sleep(0)
    assert not waiting.done()
    room.give("b", 1)
    await asyncio.wait_for(waiting, 1)


async def test_other_bounds_close_and_open_it() -> None:
    room = ProduceRoom(2, 1_000)
    room.take("a", 5)
    room.take("a", 5)
    waiting = asyncio.create_task(room.wait("a"))
    await asyncio.sleep(0)
    room.resize(2, 1_000)
    await asyncio.sleep(0)
    assert not waiting.done()
    room.resize(3, 1_000)  # two are less than three quarters of it, rounded up
    await asyncio.wait_for(waiting, 1)
    room.resize(30, 10)
    assert room.is_full
