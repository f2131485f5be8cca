"""What a coordinator takes, and how it goes on when its log is full, a decision fails, or the clock is set."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from counted_turns import with_turns
from leading_broker import EPOCH, Leader

from highwater.errors import ErrorCode
from highwater.groups import offsets
from highwater.groups import shard as group_shard
from highwater.groups.config import GroupConfig
from highwater.groups.records import Record
from highwater.groups.requests import (
    CommitOffsets,
    DeleteAnswer,
    DeleteGroup,
    Heartbeat,
    ListGroups,
    OffsetToCommit,
    Outcome,
    Subscription,
)
from highwater.groups.shard import GroupShard
from highwater.groups.topics import Topic, TopicImage
from highwater.log_storage_client.values import Append, AppendAnswer
from highwater.metadata.schema.models import PartitionState
from highwater.model.log_state import LogState
from highwater.model.partition import PartitionKey
from highwater.records import iter_batches, read_header, stamp
from highwater.replica_manager.groups import hosted_shard, pacing, shard_log
from highwater.replica_manager.groups.clock import SET_MS, CoordinatorClock
from highwater.replica_manager.groups.group_coordinator import GroupCoordinator
from highwater.replica_manager.groups.hosted_shard import HostedShard
from highwater.replica_manager.groups.member_streams import MemberStream
from highwater.replica_manager.groups.record_batches import encode
from highwater.replica_manager.replicas.metadata_cache import CachedPartition, CachedTopic
from highwater.replica_manager.server.group_messages import MOST_OWNED, bad_word
from highwater.supervision import TaskSupervisor
from highwater.v1 import group_pb2

JOINS = Heartbeat("g", "m", 0, subscription=Subscription(frozenset({"orders"})), owned=frozenset())


class Broker:
    """It leads the two partitions of its offsets topic, alone; appends are answered when the test says so."""

    def __init__(self) -> None:
        self.leader = Leader(2)
        manager = self.leader.replica_manager
        manager.metadata.update(
            [CachedTopic("orders", b"o" * 16, {}, {0: CachedPartition(PartitionState(1, 1, 101, (1,)), 1, (1,))})],
            full=True,
        )
        self.sent: list[Any] = []
        self.sizes: list[int] = []
        self.ends = [0, 0]
        topic = MagicMock()
        topic.partition_of = lambda group: int(group == "other")
        self.supervisor = TaskSupervisor()
        self.coordinator = GroupCoordinator(manager, topic, GroupConfig(), MagicMock(), self.supervisor)
        for number in (0, 1):
            hosted = self.leader.hosted(number)
            assert hosted.pipeline is not None
            hosted.pipeline._send = lambda append, answered, number=number: self.sent.append((number, append, answered))
            self.coordinator._shards[number] = HostedShard(self.coordinator._context, hosted, hosted.pipeline)

    def shard(self, number: int = 0) -> HostedShard:
        return self.coordinator._shards[number]

    async def tick(self) -> None:
        await self.coordinator._tick()

    async def loaded(self) -> None:
        async with asyncio.timeout(5):
            while any(shard.shard is None for shard in self.coordinator._shards.values()):
                await self.tick()
                await asyncio.sleep(0)

    async def answer(self) -> None:
        """Every append that is sent, and those that follow."""
        await asyncio.sleep(0)
        while self.sent:
            number, append, answered = self.sent.pop(0)
            self.sizes.append(len(append.records))
            base = append.expected_offset
            self.ends[number] = base + append_count(append)
            log = LogState(self.ends[number], 0, 0, EPOCH)
            answered(AppendAnswer(ErrorCode.NONE, "", base, self.ends[number] - 1, False, -1, log, "ls"))
            await asyncio.sleep(0)

    async def member(self) -> MemberStream:
        stream = MemberStream(lambda: None)
        self.shard().heard(JOINS, stream)
        await self.answer()
        answer = stream.take()
        assert answer is not None
        assert answer.error is None
        return stream


async def commit_in(broker: Broker, groups: Sequence[str], partitions: int = 1) -> None:
    """So many offsets in each."""
    state = PartitionState(1, 1, 101, (1,))
    cached = {number: CachedPartition(state, 1, (1,)) for number in range(partitions)}
    orders = CachedTopic("orders", b"o" * 16, {}, cached)
    broker.leader.replica_manager.metadata.update([orders], full=False)
    await broker.tick()
    told: list[Any] = []
    for group in groups:
        committed = tuple(OffsetToCommit("orders", number, 5) for number in range(partitions))
        broker.shard().ask(CommitOffsets(group, "", -1, committed), told.append)
    await broker.answer()
    assert [each.errors for each in told] == [(None,) * partitions] * len(groups)


def append_count(append: Append) -> int:
    return sum(header.record_count for _, header in iter_batches(bytes(append.records)))


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    broker = Broker()
    await broker.loaded()
    yield broker
    for shard in list(broker.coordinator._shards.values()):
        shard.stop()
    await asyncio.sleep(0)


# Time


async def test_a_full_log_ends_no_session(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members that could not be heard while answers waited were removed for silence."""
    stream = await broker.member()
    monkeypatch.setattr(shard_log, "MOST_WAITING", 0)
    broker.shard().heard(Heartbeat("g", "m", 1), stream)
    answer = stream.take()
    assert answer is None or answer.error is None  # a sign of life writes nothing
    other = MemberStream(lambda: None)
    broker.shard().heard(Heartbeat("g", "n", 0, subscription=JOINS.subscription, owned=frozenset()), other)
    refused = other.take()
    assert refused is not None
    assert refused.error is not None
    assert refused.error.code is ErrorCode.OVERLOADED
    shard = broker.shard().shard
    assert shard is not None
    clock, late_s = broker.coordinator._clock, 10 * GroupConfig().session_timeout_ms // 1_000
    monkeypatch.setattr(clock, "_wall_s", lambda: time.time() + late_s)
    monkeypatch.setattr(clock, "_monotonic_ns", lambda: time.monotonic_ns() + late_s * 1_000_000_000)
    await broker.tick()
    assert list(shard.state.groups["g"].members) == ["m"]
    monkeypatch.setattr(shard_log, "MOST_WAITING", 10_000)
    await broker.tick()
    assert list(shard.state.groups["g"].members) == []
    await broker.answer()


async def test_what_fails_in_one_shard_is_not_the_others(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """One exception ended what all shards of the broker do in time, for as long as it came again."""
    first, second = broker.shard(0).shard, broker.shard(1).shard
    assert first is not None
    assert second is not None
    heard = []

    def fails(names: Any, now_ms: int) -> Any:
        raise ZeroDivisionError

    def hears(names: Any, now_ms: int) -> list[Outcome]:
        heard.append(set(names))
        return []

    monkeypatch.setattr(first, "topics_changed", fails, raising=False)
    monkeypatch.setattr(second, "topics_changed", hears, raising=False)
    state = PartitionState(1, 1, 101, (1,))
    broker.leader.replica_manager.metadata.update(
        [CachedTopic("more", b"p" * 16, {}, {0: CachedPartition(state, 1, (1,))})], full=False
    )
    await broker.tick()
    assert heard == [{"more"}]
    assert broker.shard(0).shard is None
    await broker.loaded()
    assert broker.shard(0).shard is not first  # loaded anew


async def test_a_request_that_cannot_be_decided_is_refused(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream ended with a stack trace, and what the decision had half done stayed."""
    stream = await broker.member()
    shard = broker.shard().shard
    assert shard is not None
    monkeypatch.setattr(shard, "handle", lambda *_: 1 // 0, raising=False)
    told: list[Any] = []
    broker.shard().ask(ListGroups(), told.append)
    assert [each.code for each in told] == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert stream.ended
    assert broker.shard().shard is None


async def test_the_clock_of_the_machine_is_followed_when_it_is_set(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator reckoned by the time of its start: after the clock was put right, its commits were old at birth."""
    await broker.member()
    before = broker.shard().shard
    await broker.tick()
    assert broker.shard().shard is before
    clock = broker.coordinator._clock
    now_ms = clock.now_ms()
    monkeypatch.setattr(clock, "_wall_s", lambda: time.time() + 3_600)
    await broker.tick()
    assert clock.now_ms() - now_ms >= 3_600_000
    assert broker.shard().shard is not before


def test_a_clock_that_is_corrected_does_not_jump() -> None:
    wall_s, steady_ns = 1_000.0, 5_000_000_000
    clock = CoordinatorClock(lambda: wall_s, lambda: steady_ns)
    assert clock.now_ms() == 1_000_000
    wall_s, steady_ns = 1_003.0, 6_000_000_000
    assert not clock.was_set()
    assert clock.now_ms() == 1_001_000
    wall_s = 1_001.0 - SET_MS / 1000
    assert clock.was_set()
    assert clock.now_ms() == 1_001_000 - SET_MS
    assert not clock.was_set()


async def test_a_full_log_waits_with_what_a_deleted_topic_leaves(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tombstone for each offset waited in memory: with long ids of groups, gigabytes of them."""
    await commit_in(broker, [f"g{number}" for number in range(20)])
    serving = broker.shard()._serving
    assert serving is not None
    monkeypatch.setattr(shard_log, "MOST_PENDING_BYTES", 200)
    broker.leader.replica_manager.metadata.update([], full=False, deleted=[b"o" * 16])
    for _ in range(25):
        await broker.tick()
        assert serving.log._uncommitted_bytes < 300
        await broker.answer()
    assert not serving.shard.state.groups
    assert serving.shard.state.emitted == 40
    await broker.tick()
    assert serving.shard.state.emitted == 40


async def test_a_full_log_waits_with_what_a_deleted_group_leaves(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets, "REMOVED_AT_ONCE", 1)
    monkeypatch.setattr(hosted_shard, "ROOM_LOOK_S", 0)
    await commit_in(broker, ["g"], partitions=9)
    serving = broker.shard()._serving
    assert serving is not None
    monkeypatch.setattr(shard_log, "MOST_PENDING_BYTES", 100)
    told: list[Any] = []
    broker.shard().ask(DeleteGroup("g"), told.append)
    async with asyncio.timeout(5):
        while not told:
            assert serving.log._uncommitted_bytes < 200
            await asyncio.sleep(0)
            await broker.answer()
    assert told == [DeleteAnswer()]
    assert not serving.shard.state.groups


async def test_a_request_of_many_steps_has_a_turn_for_each(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """To list the 100,000 groups of a shard took a quarter of a second."""
    monkeypatch.setattr(group_shard, "LISTED_AT_ONCE", 2)
    await commit_in(broker, [f"g{number}" for number in reversed(range(9))])
    (listed, missing), turns = await with_turns(broker.coordinator.list_groups(frozenset()))
    assert [each.group for each in listed] == [f"g{number}" for number in range(9)]
    assert missing is None
    assert turns >= 4
    told: list[Any] = []
    broker.shard().ask(ListGroups(), told.append)
    broker.shard().load_anew(ErrorCode.UNKNOWN_SERVER_ERROR)
    await asyncio.sleep(0)
    assert [each.code for each in told] == [ErrorCode.COORDINATOR_NOT_AVAILABLE]


async def test_shards_that_take_a_little_each_do_not_hold_the_loop_together(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each began a pace of its own: fifty that took 9 ms each were half a second, and nobody had a turn in between."""

    def takes_a_little(names: Any, now_ms: int) -> Iterator[Outcome]:
        time.sleep(0.6 * pacing.STEP_S)
        yield Outcome()

    monkeypatch.setattr(pacing, "STEP_S", 0.05)
    for number in (0, 1):
        monkeypatch.setattr(broker.shard(number).shard, "topics_changed", takes_a_little, raising=False)
    state = PartitionState(1, 1, 101, (1,))
    broker.leader.replica_manager.metadata.update(
        [CachedTopic("more", b"p" * 16, {}, {0: CachedPartition(state, 1, (1,))})], full=False
    )
    turns: list[str] = []
    asyncio.get_running_loop().call_soon(turns.append, "another's")
    await broker.tick()
    assert turns


# The log


async def test_produces_keep_no_group_waiting(broker: Broker) -> None:
    """`queued.max.requests` was full of clients' produces: coordinators dropped all their groups for it, and could not
    load them either."""
    hosted = broker.leader.hosted(0)
    broker.leader.lead(0, EPOCH + 1, isr=(1, 2))
    broker.leader.grow(0, 3, EPOCH + 1)
    told: list[ErrorCode] = []
    broker.leader.replica_manager.purgatory.produces.limit = 0
    hosted.await_commit(EPOCH + 1, 3, 1 << 60, told.append)
    assert told == [ErrorCode.OVERLOADED]
    hosted.await_commit(EPOCH + 1, 3, 1 << 60, told.append, bounded=False)
    assert len(told) == 1


async def test_a_batch_is_no_larger_than_the_topic_takes(broker: Broker) -> None:
    """Where `max.message.bytes` of the offsets topic was low, records that came together were one batch too large, and
    their shard was dropped."""
    log = broker.shard()._serving.log  # type: ignore[union-attr]
    hosted = broker.leader.hosted(0)
    hosted.config = replace(hosted.config, max_message_bytes=1_000)
    log.write([Record(b"k%d" % number, b"v" * 400, 1_000) for number in range(10)])
    await broker.answer()
    assert max(broker.sizes) <= 1_000
    assert broker.ends[0] == 10


async def test_a_load_has_no_long_collections_of_garbage_and_what_it_made_goes_by_itself() -> None:
    """Each of the oldest generation walked over all groups that were loaded so far: 0.4 s for 100,000."""
    image = TopicImage([Topic(b"o" * 16, "orders", 1)])
    shard = GroupShard(image)
    offset = OffsetToCommit("orders", 0, 5, topic_id=b"o" * 16)
    records = [
        record
        for number in range(20_000)
        for record in shard.handle(CommitOffsets(f"group-{number}", "", -1, (offset,)), 1_000).records
    ]
    batches = [encode(records[start : start + 500]) for start in range(0, len(records), 500)]
    written = [stamp(read_header(batch), 500 * number, EPOCH) + batch[16:] for number, batch in enumerate(batches)]
    del shard
    broker = Broker()
    broker.leader.grow(0, len(records))

    async def read(key: PartitionKey, offset: int, max_offset: int, max_bytes: int) -> Any:
        none = SimpleNamespace(code=ErrorCode.NONE, message="")
        return SimpleNamespace(error=none, records=b"".join(written[offset // 500 : offset // 500 + 10]))

    broker.leader.storage.read = read  # type: ignore[method-assign]
    gc.collect()
    long_ones = gc.get_stats()[2]["collections"]
    try:
        async with asyncio.timeout(90):
            await broker.loaded()
        gc.disable()  # from here on nothing is freed but by its count
        loaded = broker.shard(0).shard
        assert loaded is not None
        assert len(loaded.state.groups) == 20_000
        assert gc.get_stats()[2]["collections"] - long_ones <= 1
        assert gc.get_freeze_count() > 20_000
        gone = weakref.ref(loaded)
        del loaded
        for hosted in broker.coordinator._shards.values():
            hosted.stop()
        await asyncio.sleep(0)
        assert gone() is None
    finally:
        gc.enable()
        gc.unfreeze()


# Words of members


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        ({"subscription": {"topics": ["t"] * 10_001}}, "a subscription to 10001 topics"),
        ({"owned": {"topics": [{"topic_id": b"t" * 16, "partitions": range(MOST_OWNED + 1)}]}}, "50001 partitions"),
        ({"owned": {"topics": [{"topic_id": b"t" * 16}] * (MOST_OWNED + 1)}}, "50001 partitions"),
        ({"owned": {"topics": [{"topic_id": b"t" * 100_000}]}}, "there is no topic of id"),
        ({"owned": {"topics": [{"topic_id": b"t" * 16, "partitions": [0, -1]}]}}, "there is no partition -1"),
        ({"owned": {"topics": [{"topic_id": b"t" * 16, "partitions": range(MOST_OWNED)}]}}, ""),
        ({}, ""),
    ],
    ids=["topics", "partitions", "empty topics", "topic id", "partition", "the most", "nothing"],
)
def test_a_word_of_a_member_is_looked_at_before_it_is_taken_apart(request_: dict[str, Any], sentence: str) -> None:
    said = bad_word(group_pb2.SessionRequest(**request_))
    assert said.startswith(sentence)
    assert bool(said) == bool(sentence)
    assert len(said) < 500
