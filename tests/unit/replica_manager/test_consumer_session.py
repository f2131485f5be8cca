"""A consumer's incremental session: bounded by the high watermark, and told of what it can act on (RULES 4.13)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import pytest
from leading_broker import BATCH, EPOCH, Leader, key

from highwater.errors import ErrorCode
from highwater.metadata.schema.models import PartitionState, VersionedState
from highwater.records import Codec, Record, encode_lists, encode_rows
from highwater.replica_manager.requests import session_fetch
from highwater.replica_manager.server.fetch_stream import FetchStream
from highwater.rpc.listeners import Listener
from highwater.v1 import broker_pb2, common_pb2

COLUMNS = [broker_pb2.PAYLOAD_ROWS, broker_pb2.PAYLOAD_COLUMNS]


class Stream:
    """The consumer's end of a FetchStream."""

    def __init__(self, leader: Leader, listener: str = "CLIENT") -> None:
        self.leader = leader
        self.stream = FetchStream(leader.replica_manager, leader.handler, Listener(listener, listener))
        self._requests: asyncio.Queue[broker_pb2.FetchRequest] = asyncio.Queue()
        self._reading = asyncio.create_task(self.stream.read(self._sent()))
        self._responses = self.stream.responses()

    async def _sent(self) -> AsyncIterator[broker_pb2.FetchRequest]:
        while True:
            yield await self._requests.get()

    def asks(
        self,
        places: dict[int, int],
        forgotten: Iterable[int] = (),
        *,
        epoch: int = EPOCH,
        incremental: bool = True,
        accepts: Iterable[Any] = tuple(COLUMNS),
        max_wait_ms: int = 10_000,
        min_bytes: int = 1,
    ) -> None:
        self._requests.put_nowait(
            broker_pb2.FetchRequest(
                consumer=broker_pb2.ConsumerRole(),
                max_wait_ms=max_wait_ms,
                min_bytes=min_bytes,
                max_bytes=self.leader.max_bytes,
                incremental=incremental,
                accepts=accepts,
                partitions=[
                    broker_pb2.FetchPartition(
                        partition=common_pb2.PartitionKey(topic_id=bytes(16), partition=number),
                        leader_epoch=epoch,
                        fetch_offset=offset,
                    )
                    for number, offset in places.items()
                ],
                forgotten=[common_pb2.PartitionKey(topic_id=bytes(16), partition=number) for number in forgotten],
            )
        )

    async def answer(self) -> broker_pb2.FetchResponse:
        return broker_pb2.FetchResponse.FromString(await asyncio.wait_for(anext(self._responses), 10))

    async def answers(self, places: dict[int, int], forgotten: Iterable[int] = (), **more: Any) -> Any:
        self.asks(places, forgotten, **more)
        return await self.answer()

    async def waits(self, places: dict[int, int], forgotten: Iterable[int] = (), **more: Any) -> asyncio.Task[Any]:
        self.asks(places, forgotten, **more)
        task = asyncio.create_task(self.answer())
        await settled()
        assert not task.done()
        return task

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        self.stream.close()


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
async def leader() -> Leader:
    return Leader()


@pytest.fixture
async def open_stream() -> AsyncIterator[Callable[[Leader], Stream]]:
    streams: list[Stream] = []

    def open_one(leader: Leader, listener: str = "CLIENT") -> Stream:
        streams.append(Stream(leader, listener))
        return streams[-1]

    yield open_one
    for stream in streams:
        await stream.close()


@pytest.fixture
async def stream(leader: Leader, open_stream: Callable[[Leader], Stream]) -> Stream:
    """A session whose first request is answered."""
    opened = open_stream(leader)
    response = await opened.answers({0: 0, 1: 0, 2: 0})
    assert response.incremental
    assert numbers(response) == [0, 1, 2]
    return opened


def numbers(response: broker_pb2.FetchResponse) -> list[int]:
    return [result.partition.partition for result in response.results]


def with_data(response: broker_pb2.FetchResponse) -> list[int]:
    return [result.partition.partition for result in response.results if result.records]


def errors(response: broker_pb2.FetchResponse) -> dict[int, ErrorCode]:
    return {result.partition.partition: ErrorCode(result.error.code) for result in response.results}


async def test_a_request_that_names_nothing_waits_for_what_was_named_before(leader: Leader, stream: Stream) -> None:
    waiting = await stream.waits({})
    leader.grow(1, 4)
    response = await waiting
    assert numbers(response) == with_data(response) == [1]
    assert response.results[0].high_watermark == 4
    assert response.results[0].log_end_offset == -1  # not for consumers
    assert leader.storage.reads == [1]


async def test_nothing_is_read_before_it_is_committed(leader: Leader, stream: Stream) -> None:
    leader.lead(0, EPOCH + 1, (1, 2))
    assert errors(await stream.answers({})) == {0: ErrorCode.FENCED_LEADER_EPOCH}
    waiting = await stream.waits({0: 0}, epoch=EPOCH + 1)
    leader.grow(0, 4, EPOCH + 1)
    await settled()
    assert not waiting.done()
    hosted = leader.hosted(0)
    assert (hosted.partition.high_watermark, hosted.partition.log_end_offset) == (0, 4)
    leader.lead(0, EPOCH + 1)  # broker 2 is out of the ISR
    state = VersionedState(PartitionState(1, EPOCH + 1, 101, (1,)), 100)
    leader.replica_manager.perform(hosted, hosted.partition.state_seen(state, 0))
    assert with_data(await waiting) == [0]


async def test_an_offset_between_high_watermark_and_log_end_waits_until_it_is_passed(leader: Leader) -> None:
    stream = Stream(leader)
    leader.grow(0, 4)
    await stream.answers({0: 4})
    waiting = await stream.waits({})
    leader.replica_manager.perform(leader.hosted(0), ())
    leader.hosted(0).high_watermark_advanced(4)  # which is told again
    await settled()
    assert not waiting.done()
    leader.grow(0, 5)
    assert with_data(await waiting) == [0]
    await stream.close()


async def test_a_place_that_returned_data_says_nothing_until_the_next_is_named(leader: Leader, stream: Stream) -> None:
    leader.grow(1, 4)
    await stream.answers({})
    waiting = await stream.waits({})
    leader.grow(1, 8)
    await settled()
    assert not waiting.done()
    stream.asks({1: 4})
    assert numbers(await waiting) == []
    assert with_data(await stream.answer()) == [1]


async def test_a_forgotten_partition_is_not_answered(leader: Leader, stream: Stream) -> None:
    waiting = await stream.waits({}, forgotten=[1])
    leader.grow(1, 4)
    leader.grow(2, 4)
    assert numbers(await waiting) == [2]
    assert with_data(await stream.answers({1: 0})) == [1]


async def test_min_bytes_are_waited_for_over_all_partitions(leader: Leader, stream: Stream) -> None:
    waiting = await stream.waits({}, min_bytes=150)
    leader.grow(0, 4)
    await settled()
    assert not waiting.done()
    leader.grow(2, 4)
    assert with_data(await waiting) == [0, 2]


@pytest.mark.parametrize(
    ("epoch", "error"), [(EPOCH - 1, ErrorCode.FENCED_LEADER_EPOCH), (EPOCH + 1, ErrorCode.UNKNOWN_LEADER_EPOCH)]
)
async def test_another_leader_epoch_is_refused_at_once(stream: Stream, epoch: int, error: ErrorCode) -> None:
    """A follower that comes too early is waited for; a consumer asks elsewhere, or again."""
    assert errors(await stream.answers({1: 0}, epoch=epoch)) == {1: error}
    waiting = await stream.waits({})  # and is forgotten
    waiting.cancel()


async def test_an_epoch_that_is_not_known_reads_on_under_the_next(leader: Leader) -> None:
    stream = Stream(leader)
    await stream.answers({0: 0}, epoch=-1)
    waiting = await stream.waits({})
    leader.lead(0, EPOCH + 1)
    await settled()
    assert not waiting.done()
    leader.grow(0, 4, EPOCH + 1)
    assert with_data(await waiting) == [0]
    await stream.close()


async def test_what_is_not_led_here_any_more_is_told_once(leader: Leader, stream: Stream) -> None:
    waiting = await stream.waits({})
    hosted = leader.hosted(1)
    leader.replica_manager.perform(hosted, hosted.partition.resign())
    assert errors(await waiting) == {1: ErrorCode.NOT_LEADER_OR_FOLLOWER}
    (await stream.waits({})).cancel()


async def test_a_deleted_partition_and_one_that_never_was_are_told_so(leader: Leader, stream: Stream) -> None:
    waiting = await stream.waits({})
    leader.replica_manager.evict(key(1))
    assert errors(await waiting) == {1: ErrorCode.UNKNOWN_TOPIC_ID}
    assert errors(await stream.answers({7: 0})) == {7: ErrorCode.UNKNOWN_TOPIC_ID}
    assert set(leader.replica_manager.purgatory.sessions._by_key) == {key(0), key(2)}


async def test_a_partition_that_is_hosted_again_is_read_on(leader: Leader, stream: Stream) -> None:
    waiting = await stream.waits({})
    leader.replica_manager.evict(key(1))
    leader.replica_manager.host(key(1), "t", {})
    leader.lead(1)
    await settled()
    assert not waiting.done()
    leader.grow(1, 4)
    assert with_data(await waiting) == [1]


async def test_an_offset_outside_the_log_is_refused_and_so_is_one_that_falls_out_of_it(leader: Leader) -> None:
    stream = Stream(leader)
    leader.grow(0, 4)
    leader.grow(1, 4)
    assert errors(await stream.answers({0: 9, 1: 4})) == {0: ErrorCode.OFFSET_OUT_OF_RANGE, 1: ErrorCode.NONE}
    leader.max_bytes = 1
    assert with_data(await stream.answers({1: 4, 2: 0}, max_wait_ms=0)) == []
    leader.grow(2, 4)
    leader.grow(1, 8)
    # The first whole batch leaves no room for partition 1, which then loses its offset.
    response = await stream.answers({})
    assert with_data(response) == [2]
    assert response.more
    hosted = leader.hosted(1)
    leader.replica_manager.perform(hosted, hosted.partition.log_start_seen(EPOCH, "ls", 6))
    assert errors(await stream.answers({})) == {1: ErrorCode.OFFSET_OUT_OF_RANGE}
    await stream.close()


async def test_a_log_start_that_passes_a_waiting_place_ends_the_wait(leader: Leader, stream: Stream) -> None:
    waiting = await stream.waits({}, min_bytes=150)
    leader.grow(0, 4)
    await settled()
    assert not waiting.done()
    hosted = leader.hosted(0)
    leader.replica_manager.perform(hosted, hosted.partition.log_start_seen(EPOCH, "ls", 2))
    assert errors(await waiting) == {0: ErrorCode.OFFSET_OUT_OF_RANGE}


async def test_a_partition_with_endless_data_starves_no_other(leader: Leader, stream: Stream) -> None:
    leader.max_bytes = 0  # the broker's, which has room for ten
    for number in range(3):
        leader.grow(number, 100)
    assert with_data(await stream.answers({})) == [0, 1, 2]
    leader.max_bytes = len(BATCH)
    served: list[int] = []
    named = {0: 1, 1: 1, 2: 1}
    for offset in range(2, 8):
        response = await stream.answers(named)
        (number,) = with_data(response)
        served.append(number)
        named = {number: offset}
    assert served == [0, 1, 2, 0, 1, 2]


async def test_a_reader_of_rows_gets_those_before_the_columns(leader: Leader) -> None:
    stream = Stream(leader)
    rows = encode_rows([Record(0, 0, None, b"v")], codec=Codec.NONE)
    columns = encode_lists([0], [None], [b"v"], codec=Codec.NONE)
    leader.storage.records = rows + columns
    leader.grow(0, 4)
    response = await stream.answers({0: 0}, accepts=[broker_pb2.PAYLOAD_ROWS])
    assert [result.records for result in response.results] == [rows]
    leader.storage.records = columns
    response = await stream.answers({0: 1}, accepts=[broker_pb2.PAYLOAD_ROWS])
    assert errors(response) == {0: ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT}
    await stream.close()


async def test_marks_are_told_with_the_next_answer_and_once(leader: Leader) -> None:
    stream = Stream(leader)
    leader.grow(0, 4)
    assert numbers(await stream.answers({0: 4, 1: 0})) == [0, 1]
    hosted = leader.hosted(0)
    leader.replica_manager.perform(hosted, hosted.partition.log_start_seen(EPOCH, "ls", 2))
    leader.grow(1, 4)
    response = await stream.answers({})
    assert with_data(response) == [1]
    assert [(result.partition.partition, result.log_start_offset) for result in response.results] == [(1, 0), (0, 2)]
    assert numbers(await stream.answers({}, max_wait_ms=0)) == []
    await stream.close()


async def test_a_stream_that_does_not_ask_for_it_gets_every_request_for_the_whole(leader: Leader) -> None:
    stream = Stream(leader)
    leader.grow(0, 4)
    for _ in range(2):
        response = await stream.answers({0: 0, 1: 0}, incremental=False)
        assert not response.incremental
        assert with_data(response) == [0]
    waiting = await stream.waits({1: 0}, incremental=False)
    leader.grow(0, 8)
    await settled()
    assert not waiting.done()  # it was not asked for
    assert len(leader.replica_manager.purgatory.consumers) == 1
    leader.grow(1, 4)
    assert with_data(await waiting) == [1]
    await stream.close()


async def test_a_stream_is_one_session(leader: Leader, open_stream: Callable[..., Stream]) -> None:
    stream = open_stream(leader)
    await stream.answers({0: 0})
    refused = await stream.answers({0: 0}, incremental=False)
    assert refused.error.code == ErrorCode.INVALID_REQUEST
    other = open_stream(leader, "INTERNAL")
    await other.answers({0: 0})
    other._requests.put_nowait(
        broker_pb2.FetchRequest(replica=broker_pb2.ReplicaRole(broker_id=2, broker_epoch=102), incremental=True)
    )
    assert (await other.answer()).error.code == ErrorCode.INVALID_REQUEST
    debugging = open_stream(leader, "INTERNAL")
    await debugging.answers({0: 0})
    debugging._requests.put_nowait(broker_pb2.FetchRequest(debug=broker_pb2.DebugRole(), incremental=True))
    assert (await debugging.answer()).error.code == ErrorCode.INVALID_REQUEST
    third = open_stream(leader, "INTERNAL")
    third._requests.put_nowait(
        broker_pb2.FetchRequest(replica=broker_pb2.ReplicaRole(broker_id=2, broker_epoch=102), incremental=True)
    )
    assert (await third.answer()).incremental
    assert (await third.answers({0: 0})).error.code == ErrorCode.INVALID_REQUEST


async def test_beyond_so_many_sessions_streams_are_answered_as_a_whole(open_stream: Callable[..., Stream]) -> None:
    leader = Leader(max_consumers=2)
    streams = [open_stream(leader) for _ in range(3)]
    opened = [(await stream.answers({0: 0}, max_wait_ms=0)).incremental for stream in streams]
    assert opened == [True, True, False]
    leader.grow(0, 4)
    assert with_data(await streams[2].answers({0: 0})) == [0]
    await streams[0].close()
    assert (await open_stream(leader).answers({0: 0})).incremental


async def test_a_stream_that_ends_leaves_nothing_behind(leader: Leader) -> None:
    stream = Stream(leader)
    await stream.answers({0: 0, 1: 0})
    waiting = await stream.waits({})
    await stream.close()
    await asyncio.gather(waiting, return_exceptions=True)
    sessions = leader.replica_manager.purgatory.sessions
    assert not sessions._by_key
    assert (sessions.waiting, sessions._consumers) == (0, 0)


async def test_what_was_refused_and_forgotten_is_not_kept(
    leader: Leader, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_fetch, "TOLD_AT_ONCE", 10)
    session = stream.stream._incremental
    assert session is not None
    named: Iterable[int] = ()
    for request in range(1, 20):
        forgotten, named = named, range(100 * request, 100 * request + 15)  # of no topic that is there
        await stream.answers(dict.fromkeys(named, 0), forgotten)
    assert len(session._moved) + len(session._urgent) <= 2 * 15
