"""What stands around a shard of groups: its log, its members' streams, the topics that it hears of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from leading_broker import EPOCH, Leader

from highwater.errors import ErrorCode
from highwater.groups.records import Record
from highwater.groups.requests import Refusal, SessionAnswer
from highwater.log_storage_client.values import Append, AppendAnswer
from highwater.metadata.schema.models import PartitionState
from highwater.model.log_state import LogState
from highwater.model.partition import PartitionKey
from highwater.records import CorruptBatchError
from highwater.replica_manager.groups.member_streams import MemberStream, MemberStreams
from highwater.replica_manager.groups.record_batches import decode, encode
from highwater.replica_manager.groups.shard_log import BATCH_BYTES, FOLLOWED_LOOK_S, IN_FLIGHT, ShardLog, ShardLogError
from highwater.replica_manager.groups.topic_feed import TopicFeed
from highwater.replica_manager.partition.actions import FetchSession, FollowerFetch
from highwater.replica_manager.replicas.metadata_cache import CachedPartition, CachedTopic, Endpoint, MetadataCache

HEARD_WITHIN_MS = 8_000
ASSIGNED = frozenset({PartitionKey(b"t" * 16, 0)})


def record(number: int, size: int = 1) -> Record:
    return Record(b"k%d" % number, b"v" * size, 1_000 + number)


# Batches


def test_records_come_back_as_they_were() -> None:
    records = [record(1), Record(b"gone", None, 5), record(2)]
    ((header, rows),) = decode(encode(records))
    assert [(row.key, row.value, row.timestamp) for row in rows] == [
        (each.key, each.value, each.timestamp_ms) for each in records
    ]
    assert header.record_count == 3
    broken = bytearray(encode(records))
    broken[-1] ^= 1
    with pytest.raises(CorruptBatchError):
        list(decode(bytes(broken)))


# The log


class Log:
    """Broker 1 alone leads partition 0; appends are answered when the test says so."""

    def __init__(self) -> None:
        self.leader = Leader(1)
        self.leader.replica_manager.purgatory.produces.limit = 1_000
        self.sent: list[tuple[Append, Callable[[AppendAnswer | None], None]]] = []
        hosted = self.hosted = self.leader.hosted(0)
        assert hosted.pipeline is not None
        hosted.pipeline._send = lambda append, answered: self.sent.append((append, answered))
        self.end = 0
        self.failures: list[ErrorCode] = []
        self.told: list[Any] = []
        manager = self.leader.replica_manager
        self.log = ShardLog(manager, hosted, hosted.pipeline, self.failures.append, HEARD_WITHIN_MS)

    async def loaded(self) -> ShardLog:
        self.read = [rows async for rows in self.log.read()]
        return self.log

    async def certain(self) -> ShardLog:
        """Whose first batch, of one record, stands where it should."""
        await self.loaded()
        self.log.write([record(0)])
        await asyncio.sleep(0)
        self.answer()
        return self.log

    def wait_for(self, number: int) -> None:
        self.log.when_committed(number, lambda error: self.told.append((number, error)))

    def answer(self, error: ErrorCode = ErrorCode.NONE) -> None:
        append, answered = self.sent.pop(0)
        base = self.end
        if error is ErrorCode.NONE and append.expected_offset == base:
            self.end += sum(len(rows) for _, rows in decode(bytes(append.records)))
        elif error is ErrorCode.NONE:
            error = ErrorCode.OFFSET_MISMATCH
        written = (base, self.end - 1) if error is ErrorCode.NONE else (-1, -1)
        answered(AppendAnswer(error, "", *written, False, -1, LogState(self.end, 0, 0, EPOCH), "ls"))


async def test_what_comes_in_one_turn_is_one_batch_and_is_told_when_it_is_committed() -> None:
    broker = Log()
    log = await broker.loaded()
    broker.wait_for(0)
    assert broker.told == [(0, ErrorCode.NONE)]
    log.write([record(1), record(2)])
    broker.wait_for(2)
    log.write([record(3)])
    broker.wait_for(3)
    broker.wait_for(1)
    await asyncio.sleep(0)
    (sent,) = broker.sent
    assert len(next(decode(bytes(sent[0].records)))[1]) == 3
    assert len(broker.told) == 1
    broker.answer()
    assert broker.told[1:] == [(1, ErrorCode.NONE), (2, ErrorCode.NONE), (3, ErrorCode.NONE)]
    assert not broker.failures


async def test_batches_are_in_flight_together_once_the_first_stands_where_it_should() -> None:
    broker = Log()
    log = await broker.loaded()
    for number in range(2 * IN_FLIGHT):
        log.write([record(number)])
        await asyncio.sleep(0)
    assert len(broker.sent) == 1
    broker.answer()
    await asyncio.sleep(0)
    assert len(broker.sent) == 1  # what had gathered, as one
    broker.answer()
    for number in range(2 * IN_FLIGHT):
        log.write([record(number)])
        await asyncio.sleep(0)
    assert len(broker.sent) == IN_FLIGHT


async def test_each_batch_of_a_large_outcome_has_a_turn_of_the_event_loop() -> None:
    broker = Log()
    log = await broker.certain()
    log.write([record(number, BATCH_BYTES // 2) for number in range(1, 4)])
    for sent in range(4):
        assert len(broker.sent) == min(sent, 3)
        await asyncio.sleep(0)
    while broker.sent:
        broker.answer()
    broker.wait_for(4)
    assert broker.told == [(4, ErrorCode.NONE)]


async def test_a_batch_that_fails_fails_all_behind_it() -> None:
    broker = Log()
    log = await broker.certain()
    for number in (1, 2):
        log.write([record(number)])
        broker.wait_for(number + 1)
        await asyncio.sleep(0)
    broker.answer(ErrorCode.STORAGE_FULL)
    assert broker.failures == [ErrorCode.STORAGE_FULL]
    assert broker.told == [(2, ErrorCode.STORAGE_FULL), (3, ErrorCode.STORAGE_FULL)]
    broker.answer()
    assert (broker.end, broker.sent) == (1, [])  # the second one was not written, nor sent again
    log.write([record(3)])
    broker.wait_for(4)
    await asyncio.sleep(0)
    assert not broker.sent
    assert broker.told[-1] == (4, ErrorCode.STORAGE_FULL)


async def test_records_that_it_has_not_read_end_it() -> None:
    broker = Log()
    log = await broker.loaded()
    broker.end = 3  # an append of a broken stream has landed meanwhile
    log.write([record(0)])
    broker.wait_for(1)
    await asyncio.sleep(0)
    broker.answer()
    assert broker.failures == [ErrorCode.OFFSET_MISMATCH]
    assert broker.told == [(1, ErrorCode.OFFSET_MISMATCH)]


async def test_the_end_of_a_leadership_ends_it() -> None:
    broker = Log()
    log = await broker.loaded()
    log.write([record(0)])
    broker.wait_for(1)
    await asyncio.sleep(0)
    broker.leader.replica_manager.registration_lost()
    assert broker.told == [(1, ErrorCode.NOT_LEADER_OR_FOLLOWER)]
    assert not log.takes_records


async def test_who_cannot_confirm_the_lease_hears_nobody() -> None:
    """RULES 11.12: signs of life write nothing, so nothing else shows that another coordinator may be there by now."""
    broker = Log()
    log = await broker.loaded()
    assert log.takes_records
    broker.leader.replica_manager.lease_confirmed = lambda: False
    assert not log.may_lead
    assert not log.takes_records


async def test_who_is_not_followed_any_more_hears_nobody() -> None:
    """RULES 11.12: a leadership is moved from a broker whose lease goes on, too, and it may not hear of it. Who leads
    next follows it no more."""
    broker = Log()
    manager, now_ms = broker.leader.replica_manager, 1_000
    manager.now_ms = lambda: now_ms
    broker.leader.lead(0, EPOCH + 1, (1, 2))
    leadership, pipeline = broker.hosted.partition.leadership, broker.hosted.pipeline
    assert leadership is not None
    assert pipeline is not None
    log = ShardLog(manager, broker.hosted, pipeline, broker.failures.append, HEARD_WITHIN_MS)

    def fetch() -> None:
        leadership.fetched(FollowerFetch(FetchSession(2, 102, 0, 1), EPOCH + 1, 0, 0, EPOCH + 1, 0), now_ms)

    assert [rows async for rows in log.read()] == []
    assert not log.may_lead  # all is committed, and yet another may have been elected before this one heard of it
    committed = asyncio.ensure_future(log.committed())
    await asyncio.sleep(3 * FOLLOWED_LOOK_S)
    assert not committed.done()
    fetch()
    assert await committed is ErrorCode.NONE
    assert log.may_lead
    now_ms += HEARD_WITHIN_MS
    assert log.takes_records
    now_ms += 1
    assert not log.may_lead
    assert not log.takes_records
    fetch()
    assert log.may_lead


async def test_the_log_is_read_to_its_end() -> None:
    broker = Log()
    first = await broker.loaded()
    first.write([record(0), record(1)])
    await asyncio.sleep(0)
    written = bytes(broker.sent[0][0].records)
    broker.answer()
    broker.leader.storage.records = written
    await broker.loaded()
    assert [[row.key for row in rows] for rows in broker.read] == [[b"k0", b"k1"]]
    broker.leader.storage.records = b""
    with pytest.raises(ShardLogError, match="nothing is to be read at offset 0"):
        await broker.loaded()


# Streams


def taken(stream: MemberStream) -> list[SessionAnswer]:
    answer = stream.take()
    return [] if answer is None else [answer]


def test_only_the_latest_is_told() -> None:
    stream = MemberStream(lambda: None)
    stream.tell(SessionAnswer(3, ASSIGNED, 7))
    stream.tell(SessionAnswer(4, frozenset(), 8))
    stream.tell(SessionAnswer(5))  # the assignment has not changed since
    assert taken(stream) == [SessionAnswer(5, frozenset(), 8)]
    assert taken(stream) == []
    stream.tell(SessionAnswer(error=Refusal(ErrorCode.FENCED_MEMBER_EPOCH, "out")))
    stream.tell(SessionAnswer(9))
    assert [each.member_epoch for each in taken(stream)] == [0]
    assert stream.ended


def test_the_newest_stream_of_a_member_is_its_stream() -> None:
    streams = MemberStreams()
    older, newer = MemberStream(lambda: None), MemberStream(lambda: None)
    streams.opened("g", "m", older)
    streams.opened("g", "m", older)
    assert taken(older) == []
    streams.opened("g", "m", newer)
    (answer,) = taken(older)
    assert answer.error is not None
    assert answer.error.code is ErrorCode.FETCH_SESSION_STALE
    older.closed()
    assert streams.get("g", "m") is newer
    newer.closed()
    assert len(streams) == 0


# Topics


def topic(name: str, number: int, partitions: int = 1, leader: int = 1) -> CachedTopic:
    state = PartitionState(leader, 1, 101, (1,))
    return CachedTopic(
        name, bytes([number]) * 16, {}, {each: CachedPartition(state, leader, (1, 2)) for each in range(partitions)}
    )


def test_topics_are_told_when_they_are_others() -> None:
    metadata = MetadataCache()
    feed = TopicFeed(metadata)
    metadata.update([topic("a", 1)], full=False)
    assert feed.take() == set()  # what is not known yet may be there
    assert not feed.complete.is_set()
    metadata.update([topic("a", 1), topic("b", 2)], full=True)
    assert feed.take() == {"a", "b"}
    assert feed.complete.is_set()
    metadata.update([topic("a", 1, leader=2)], full=False)
    assert feed.take() == set()
    metadata.update([topic("a", 1, partitions=3)], full=False)
    assert feed.take() == {"a"}
    metadata.update([topic("b", 3)], full=False)  # deleted, and made again
    assert feed.take() == {"b"}
    metadata.update([], full=False, deleted=[bytes([1]) * 16])
    assert feed.take() == {"a"}
    assert feed.image.named("a") is None


def test_a_rack_that_becomes_known_is_another_topic() -> None:
    metadata = MetadataCache()
    feed = TopicFeed(metadata)
    metadata.update([topic("a", 1)], full=True)
    feed.take()
    metadata.set_brokers([Endpoint(1, 101, "h:1", "east"), Endpoint(2, 102, "h:2", "")])
    assert feed.take() == {"a"}
    found = feed.image.named("a")
    assert found is not None
    assert found.racks == (frozenset({"east"}),)
    metadata.set_brokers([])  # away, where it was
    assert feed.take() == set()
