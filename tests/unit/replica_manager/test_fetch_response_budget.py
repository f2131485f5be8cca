"""What fetches may hold and how they read: a budget over all of them, log-storage asked side by side, and once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from leading_broker import BATCH, EPOCH, Leader, key
from test_consumer_session import Stream, settled, with_data

from highwater.replica_manager.requests.fetch import FetchParams
from highwater.replica_manager.responses.fetch_parts import FetchedPart, FetchPart, FetchRole
from highwater.replica_manager.responses.response_room import Turn
from highwater.replica_manager.server.fetch_stream import FetchStream
from highwater.replica_manager.storage import shared_reads
from highwater.rpc.listeners import Listener
from highwater.v1 import broker_pb2, common_pb2

SIZE = len(BATCH)
RESPONSES = 400  # a quarter of it is the replicas'
DEADLINE_S = 10.0


def broker(partitions: int = 3, **more: int) -> Leader:
    options = {"message_max_bytes": SIZE, "responses_max_bytes": RESPONSES, "max_consumers": 10_000} | more
    return Leader(partitions, **options)


def fetch(
    leader: Leader,
    partitions: int = 1,
    *,
    role: FetchRole = FetchRole.CONSUMER,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    caller: str = "",
) -> FetchParams:
    parts = [FetchPart(key(number), EPOCH, 0, SIZE) for number in range(partitions)]
    params = FetchParams(role, parts, max_wait_ms, min_bytes, leader.max_bytes, True)
    params.room = leader.handler.room(role, caller=caller)
    return params


def sizes(parts: list[FetchedPart]) -> list[int]:
    return [sum(map(len, part.pieces)) for part in parts]


async def held(leader: Leader, fetches: int) -> list[FetchParams]:
    """Answers that nobody takes."""
    made = [fetch(leader) for _ in range(fetches)]
    for params in made:
        assert sizes(await leader.handler.answer(params)) == [SIZE]
    return made


async def test_a_fetch_waits_its_time_for_room_and_is_answered_without_data() -> None:
    leader = broker()
    leader.grow(0, 4)
    await held(leader, 3)
    assert leader.handler.budget.consumers.held_bytes == 3 * SIZE
    reads = len(leader.storage.reads)
    started = asyncio.get_running_loop().time()
    assert sizes(await leader.handler.answer(fetch(leader, max_wait_ms=100))) == [0]
    assert asyncio.get_running_loop().time() - started >= 0.09
    assert len(leader.storage.reads) == reads  # nothing was read that could not be given
    assert sizes(await leader.handler.answer(fetch(leader))) == [0]


async def test_what_is_given_back_is_had_by_those_that_wait_in_their_order() -> None:
    leader = broker()
    leader.grow(0, 4)
    holding = await held(leader, 3)
    order = list[int]()

    async def answered(number: int) -> None:
        params = fetch(leader, max_wait_ms=20_000)
        params.wait.end()  # a newer request of the stream has come: it waits on, or it would never come to its turn
        assert sizes(await leader.handler.answer(params)) == [SIZE]
        order.append(number)
        params.room.release()

    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
        for number in range(5):
            group.create_task(answered(number))
        await settled()
        assert order == []
        holding[0].room.release()
    assert order == [0, 1, 2, 3, 4]
    assert leader.handler.budget.consumers.held_bytes == 2 * SIZE


async def test_one_whose_requests_wait_shortly_is_not_for_ever_behind_others() -> None:
    leader = broker()
    leader.grow(0, 4)
    holding = await held(leader, 3)
    turn, order = Turn(), list[str]()

    async def answered(name: str, turn: Turn, *, max_wait_ms: int) -> None:
        params = fetch(leader, max_wait_ms=max_wait_ms)
        params.room = leader.handler.room(FetchRole.CONSUMER, turn)
        if sizes(await leader.handler.answer(params)) == [SIZE]:
            order.append(name)
            params.room.release()

    await answered("short", turn, max_wait_ms=5)
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
        group.create_task(answered("long", Turn(), max_wait_ms=20_000))
        await settled()
        group.create_task(answered("short", turn, max_wait_ms=10_000))
        await settled()
        holding[0].room.release()
    assert order == ["short", "long"]


async def test_one_that_hangs_up_while_it_waits_for_room_leaves_nothing_behind() -> None:
    leader = broker()
    leader.grow(0, 4)
    await held(leader, 3)
    params = fetch(leader, max_wait_ms=20_000)
    waiting = asyncio.create_task(leader.handler.answer(params))
    await settled()
    assert len(leader.handler.budget.consumers) == 1
    waiting.cancel()
    await asyncio.wait((waiting,))
    assert len(leader.handler.budget.consumers) == 0


async def test_slow_consumers_of_one_caller_leave_others_room() -> None:
    leader = broker(responses_max_bytes=12 * SIZE)  # nine for consumers
    leader.grow(0, 4)
    holding = []
    for _ in range(20):
        params = fetch(leader, caller="User:slow")
        if sizes(await leader.handler.answer(params)) == [SIZE]:
            holding.append(params)
    assert len(holding) == 6  # of three quarters of the consumers' share as many as come whole
    waiting = [
        asyncio.create_task(leader.handler.answer(fetch(leader, caller="User:slow", max_wait_ms=20_000)))
        for _ in range(5)
    ]
    await settled()
    for _ in range(2):
        assert sizes(await leader.handler.answer(fetch(leader, caller="User:other"))) == [SIZE]
    assert not any(task.done() for task in waiting)
    for params in holding[:5]:
        params.room.release()
    async with asyncio.timeout(DEADLINE_S):
        assert [sizes(await task) for task in waiting] == [[SIZE]] * 5


async def test_a_fetch_that_waits_for_data_holds_no_room() -> None:
    leader = broker()
    leader.grow(0, 4)
    params = fetch(leader, max_wait_ms=20_000, min_bytes=10 * SIZE)
    waiting = asyncio.create_task(leader.handler.answer(params))
    await settled()
    assert not waiting.done()
    assert leader.handler.budget.consumers.held_bytes == 0
    params.wait.end()
    assert sizes(await waiting) == [SIZE]
    assert leader.handler.budget.consumers.held_bytes == SIZE


@pytest.fixture
async def session() -> AsyncIterator[Callable[[Leader], Stream]]:
    streams = list[Stream]()

    def opened(leader: Leader) -> Stream:
        streams.append(Stream(leader))
        return streams[-1]

    yield opened
    for each in streams:
        await each.close()


async def test_a_response_is_held_until_it_is_written_or_the_stream_is_over(
    session: Callable[[Leader], Stream],
) -> None:
    leader = broker()
    leader.grow(0, 4)
    stream = session(leader)
    assert with_data(await stream.answers({0: 0})) == [0]
    consumers = leader.handler.budget.consumers
    assert consumers.held_bytes == SIZE
    await stream.waits({0: 4})  # the stream goes on: gRPC has taken it
    assert consumers.held_bytes == 0
    other = session(leader)
    assert with_data(await other.answers({0: 0})) == [0]
    other.stream.close()  # as gRPC may drop the generator
    assert consumers.held_bytes == 0


async def test_a_session_waits_for_room_and_loses_nothing(session: Callable[[Leader], Stream]) -> None:
    leader = broker()
    leader.grow(0, 4)
    holding = await held(leader, 3)
    stream = session(leader)
    first = await stream.answers({0: 0})  # a session's first request is answered at once
    assert (with_data(first), first.more) == ([], True)
    second = await stream.answers({}, max_wait_ms=50)
    assert (with_data(second), second.more) == ([], True)
    waiting = await stream.waits({})
    holding[0].room.release()
    third = await waiting
    assert (with_data(third), third.more) == ([0], False)


async def test_replicas_are_answered_while_consumers_hold_everything() -> None:
    leader = broker(12)
    for number in range(12):
        leader.lead(number, EPOCH + 1, (1, 2))
        leader.grow(number, 4, EPOCH + 1)
    leader.grow(0, 4)
    leader.handler.budget.consumers.take(1).settle(RESPONSES)  # type: ignore[union-attr]
    for fetcher in range(12):  # more than have room in their share
        stream = FetchStream(leader.replica_manager, leader.handler, Listener("INTERNAL", "INTERNAL"))
        request = broker_pb2.FetchRequest(
            replica=broker_pb2.ReplicaRole(broker_id=2, broker_epoch=102, fetcher_id=fetcher),
            max_wait_ms=10_000,
            min_bytes=1,
            partitions=[
                broker_pb2.FetchPartition(
                    partition=common_pb2.PartitionKey(topic_id=bytes(16), partition=fetcher),
                    leader_epoch=EPOCH + 1,
                    last_epoch=-1,
                )
            ],
        )

        async def requests(request: broker_pb2.FetchRequest = request) -> AsyncIterator[broker_pb2.FetchRequest]:
            yield request
            await asyncio.Event().wait()

        reading = asyncio.create_task(stream.read(requests()))
        response = await asyncio.wait_for(anext(stream.responses()), DEADLINE_S)  # and it is never written
        assert with_data(broker_pb2.FetchResponse.FromString(response)) == [fetcher]
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def test_log_storage_is_asked_for_several_partitions_side_by_side(session: Callable[[Leader], Stream]) -> None:
    leader = broker(20, max_bytes=100_000, responses_max_bytes=1 << 20)
    for number in range(20):
        leader.grow(number, 4)
    assert sizes(await leader.handler.answer(fetch(leader, 20))) == [SIZE] * 20
    assert leader.storage.reads == list(range(20))
    assert leader.storage.most_at_once == 8
    leader.storage.most_at_once = 0
    response = await session(leader).answers(dict.fromkeys(range(20), 0))
    assert with_data(response) == list(range(20))
    assert leader.storage.most_at_once == 8


@pytest.mark.parametrize("responses_max_bytes", [1 << 20, 40 * SIZE])  # the second is not enough for all at once
async def test_a_record_that_wakes_many_consumers_is_read_once(responses_max_bytes: int) -> None:
    leader = broker(responses_max_bytes=responses_max_bytes)

    async def answered() -> list[FetchedPart]:
        params = fetch(leader, max_wait_ms=20_000)
        parts = await leader.handler.answer(params)
        params.room.release()
        return parts

    waiting = [asyncio.create_task(answered()) for _ in range(1_000)]
    await settled()
    leader.grow(0, 4)
    async with asyncio.timeout(DEADLINE_S):
        answers = await asyncio.gather(*waiting)
    assert {sizes(parts)[0] for parts in answers} == {SIZE}
    assert len({id(parts[0].pieces[0]) for parts in answers}) == 1
    assert leader.storage.reads == [0]


async def test_a_read_is_not_shared_with_another_leadership() -> None:
    leader = broker()
    leader.grow(0, 4)
    before = asyncio.create_task(leader.handler.answer(fetch(leader)))
    await asyncio.sleep(0)
    leader.lead(0, EPOCH + 1)
    leader.grow(0, 4, EPOCH + 1)
    params = fetch(leader)
    params.parts = [params.parts[0]._replace(leader_epoch=EPOCH + 1)]
    (after,) = await leader.handler.answer(params)
    assert after.pieces
    assert not (await before)[0].pieces
    assert leader.storage.reads == [0, 0]


async def test_a_fetch_that_found_too_little_reads_again_only_when_something_has_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_reads, "KEPT_BYTES", 0)
    leader = broker()
    leader.grow(0, 4)
    params = fetch(leader, max_wait_ms=20_000, min_bytes=10 * SIZE)
    waiting = asyncio.create_task(leader.handler.answer(params))
    await settled()
    assert leader.storage.reads == [0]
    params.wait.end()
    await waiting
    assert leader.storage.reads == [0, 0]
