"""Offline and damaged logs as the replica-manager learns of them, and what it does before a damaged one is cut (RULES
7.6, 7.7)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from counted_turns import with_turns

from highwater.errors import ErrorCode
from highwater.log_storage_client.values import Description, LogDescription, StorageError, StorageUnavailableError
from highwater.metadata.schema.models import NO_LEADER, PartitionState, VersionedState
from highwater.metadata.store.etcd_errors import Unavailable
from highwater.model.damaged_replicas import fewest_sound
from highwater.model.log_state import LogState
from highwater.model.partition import PartitionKey
from highwater.replica_manager.replicas.damaged_logs import PATIENCE_MS, REPORT_GAP_MS, RETRY_MS, DamagedLogs
from highwater.replica_manager.replicas.hosted_partition import HostedPartition
from highwater.replica_manager.replicas.metadata_cache import CachedPartition, CachedTopic, Endpoint, MetadataCache
from highwater.replica_manager.service import ReplicaManagerService
from highwater.replica_manager.storage.offline_logs import OfflineLogs
from highwater.rpc.process.loop_turn import TURN_S
from highwater.v1 import log_storage_pb2

KEY = PartitionKey(b"t" * 16, 0)
OTHER = PartitionKey(b"t" * 16, 1)
ME = 1


class Storage:
    """log-storage, as far as it is asked here."""

    def __init__(self) -> None:
        self.offline: set[PartitionKey] = set()
        self.damaged: set[PartitionKey] = set()
        self.silent = 0  # so many calls get no answer
        self.answered: Callable[[], None] = lambda: None  # before an answer arrives
        self.dropped: list[tuple[PartitionKey, int]] = []
        self.error = ErrorCode.NONE

    def _answer(self) -> None:
        if self.silent:
            self.silent -= 1
            raise StorageUnavailableError("nobody there")

    async def describe(self) -> Description:
        self._answer()
        logs = tuple(LogDescription(key, "t", LogState(9, 0, 0, 9), key in self.offline) for key in (KEY, OTHER))
        self.answered()
        return Description("one", logs, False, frozenset())

    async def describe_logs(self) -> log_storage_pb2.DescribeLogsResponse:
        self._answer()
        response = log_storage_pb2.DescribeLogsResponse()
        for key in (KEY, OTHER):
            log = response.logs.add()
            log.partition.topic_id, log.partition.partition = key
            if key in self.damaged:
                log.damaged.add(first_offset=3, last_offset=4, problem="CRC-32C")
        self.answered()
        return response

    async def drop_damaged(self, key: PartitionKey, leader_epoch: int) -> StorageError:
        self._answer()
        self.dropped.append((key, leader_epoch))
        return StorageError(self.error)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("highwater.replica_manager.storage.inquiry.RETRY_S", 0.0)


async def settled(logs: OfflineLogs | DamagedLogs) -> None:
    assert logs._inquiry._asking is not None
    await logs._inquiry._asking


# Offline logs


async def test_offline_logs_are_told_once_however_they_are_learned_of() -> None:
    storage, failed = Storage(), list[PartitionKey]()
    logs = OfflineLogs(storage, failed.append)  # type: ignore[arg-type]
    logs.seen([KEY])
    storage.offline, storage.silent = {KEY, OTHER}, 2
    logs.count_changed(2)
    await settled(logs)
    assert failed == [KEY, OTHER]
    assert KEY in logs
    logs.count_changed(0)
    logs.serves(KEY)
    assert KEY not in logs
    logs.restarted()
    assert len(logs) == 0
    logs.seen([OTHER])  # under the new incarnation it is news
    assert failed == [KEY, OTHER, OTHER]
    await logs.stop()


@pytest.mark.parametrize("kind", ["offline", "damaged"])
async def test_an_answer_of_a_log_storage_that_is_gone_says_nothing(kind: str) -> None:
    world = World()
    storage, failed = world.storage, list[PartitionKey]()
    storage.damaged, asked = set(), asyncio.Event()
    logs = OfflineLogs(storage, failed.append) if kind == "offline" else world.logs  # type: ignore[arg-type]

    def restarts() -> None:
        """Once, while its answer is under way."""
        if not asked.is_set():
            asked.set()
            logs.restarted()
            setattr(storage, kind, {OTHER})

    setattr(storage, kind, {KEY})
    storage.answered = restarts
    logs.count_changed(1)
    await settled(logs)
    assert asked.is_set()
    assert failed == ([OTHER] if kind == "offline" else [])
    assert KEY not in (logs if isinstance(logs, OfflineLogs) else logs._due_ms)
    assert len(logs) == 1
    await logs.stop()


# Damaged logs


def state(isr: Sequence[int], elr: Sequence[int] = (), leader: int = 2, epoch: int = 5) -> PartitionState:
    return PartitionState(leader, epoch, 9, tuple(isr), tuple(elr))


class World:
    def __init__(self, isr: Sequence[int] = (1, 2, 3), minimum: int = 2, live: Sequence[int] = (1, 2, 3)) -> None:
        self.now_ms = 1_000_000
        self.broker_epoch: int | None = 7
        self.registrations = self.counted_anew = self.reports = 0
        self.left: list[PartitionKey] = []
        self.fails_to_leave = 0  # the n-th
        self.in_etcd: PartitionState | Exception | None = state((2, 3))
        self.read: Callable[[], None] = lambda: None  # before etcd's answer arrives
        self.storage = Storage()
        self.storage.damaged = {KEY}
        metadata = MetadataCache()
        metadata.set_brokers(Endpoint(broker, 1, f"b{broker}:1", "") for broker in live)
        cached = CachedPartition(state(isr), 10, (1, 2, 3))
        metadata.update([CachedTopic("t", KEY.topic_id, {}, {0: cached})], full=True)
        self.metadata = metadata
        committed = VersionedState(state((1, 2, 3)), 9)  # older than the metadata
        partition = SimpleNamespace(committed=committed, min_insync_replicas=minimum, replicas=(1, 2, 3))
        self.hosted: dict[PartitionKey, Any] = {KEY: SimpleNamespace(key=KEY, partition=partition)}
        self.logs = DamagedLogs(
            ME,
            self.storage,  # type: ignore[arg-type]
            self.hosted,
            metadata,
            leave=self._leave,
            register_anew=self._register_anew,
            read_state=self._read_state,
            broker_epoch=lambda: self.broker_epoch,
            dropped=self._count_anew,
            report=self._report,
            now_ms=lambda: self.now_ms,
        )

    def know(self, newer: PartitionState) -> None:
        """The metadata have a newer state."""
        known = CachedPartition(newer, 10 + newer.leader_epoch, (1, 2, 3))
        self.metadata.update([CachedTopic("t", KEY.topic_id, {}, {0: known})], full=False)

    def hosts(self, partitions: int, leader: int = 2) -> set[PartitionKey]:
        cached = CachedPartition(state((1, 2, 3), leader=leader), 10, (1, 2, 3))
        topic = CachedTopic("t", KEY.topic_id, {}, dict.fromkeys(range(partitions), cached))
        self.metadata.update([topic], full=True)
        keys = {PartitionKey(KEY.topic_id, number) for number in range(partitions)}
        self.hosted.update({key: SimpleNamespace(key=key, partition=self.hosted[KEY].partition) for key in keys})
        return keys

    def _leave(self, hosted: HostedPartition) -> None:
        self.left.append(hosted.key)
        if len(self.left) == self.fails_to_leave:
            raise ArithmeticError

    def _register_anew(self) -> None:
        self.registrations += 1
        self.broker_epoch = None

    def _report(self) -> None:
        self.reports += 1

    def _count_anew(self) -> None:
        self.counted_anew += 1

    async def _read_state(self, topic: str, partition: int) -> PartitionState | None:
        assert (topic, partition) == ("t", 0)
        self.read()
        if isinstance(self.in_etcd, Exception):
            raise self.in_etcd
        return self.in_etcd

    def look(self) -> None:
        for _ in self.logs.look():
            pass

    async def begun(self) -> None:
        """Damage was found, and the replica is on its way out."""
        self.logs.count_changed(1)
        await settled(self.logs)
        self.look()

    async def mend(self, instructed: PartitionState, minimum: int = 2) -> StorageError | None:
        return await self.logs.mend("t", KEY, instructed, fewest_sound(minimum, (1, 2, 3)))


async def test_a_damaged_replica_leaves_registers_anew_and_is_cut_when_it_counts_for_nothing() -> None:
    world = World()
    await world.begun()
    assert (world.left, world.registrations) == ([KEY], 1)
    assert KEY in world.logs
    world.look()
    assert world.registrations == 1
    world.broker_epoch = 8
    assert await world.mend(state((2, 3))) is None
    assert world.storage.dropped == [(KEY, 5)]
    assert world.counted_anew == 1
    assert KEY not in world.logs
    assert len(world.logs) == 0


@pytest.mark.parametrize("instructed", [state((1, 2, 3)), state((2, 3), elr=(1,))], ids=["isr", "elr"])
async def test_not_while_the_instruction_has_it(instructed: PartitionState) -> None:
    world = World()
    await world.begun()
    world.broker_epoch = 8
    refused = await world.mend(instructed)
    assert refused is not None
    assert refused.code is ErrorCode.LOG_STORAGE_ERROR
    assert world.storage.dropped == []


async def test_not_while_etcd_has_it_though_the_instruction_does_not() -> None:
    """The instruction may be older than a joining under the broker epoch before."""
    world = World()
    await world.begun()
    world.broker_epoch = 8
    leaderless = state((), leader=NO_LEADER, epoch=6).with_(lost=(2, 3))  # there is nobody to copy it from any more
    for found in (state((1, 2, 3)), state((2,), elr=(1, 3)), leaderless, None, Unavailable("no etcd")):
        world.in_etcd = found
        assert await world.mend(state((2, 3))) is not None
    assert world.storage.dropped == []


@pytest.mark.parametrize("broker_epoch", [None, 7])
async def test_not_under_the_broker_epoch_that_fetched_it(broker_epoch: int | None) -> None:
    """A fetch of it that is still under way could bring the replica back into the ISR (RULES 2.3)."""
    world = World()
    await world.begun()
    world.broker_epoch = broker_epoch
    assert await world.mend(state((2, 3))) is not None
    assert world.storage.dropped == []


@pytest.mark.parametrize("registered", [False, True])
@pytest.mark.parametrize("when", ["before", "while etcd is asked"])
async def test_nothing_is_cut_once_log_storage_was_started_again(when: str, registered: bool) -> None:
    """Nobody knows of damage then: the replica is taken up, and may be in the ISR before a late answer of etcd."""
    world = World()
    await world.begun()
    world.broker_epoch = 8

    def restarts() -> None:
        world.logs.restarted()
        world.broker_epoch = 9 if registered else None

    if when == "before":
        restarts()
    else:
        world.read = restarts
    assert (await world.mend(state((2, 3))) is None) is (when == "before")
    assert world.storage.dropped == []
    assert KEY not in world.logs


@pytest.mark.parametrize(
    "instructed",
    [
        state((ME,), leader=ME),
        state((1, 2), leader=NO_LEADER),
        state((2,), elr=(1,), leader=NO_LEADER),
        state((), leader=NO_LEADER).with_(lost=(2, 3)),
    ],
    ids=["leads", "isr", "elr", "neither"],
)
async def test_where_nobody_else_may_lead_it_is_taken_up_as_it_is(instructed: PartitionState) -> None:
    """Also where the others have lost their tails: what it has is perhaps all that there is, and an election by log
    looks at it (RULES 7.4)."""
    world = World()
    world.in_etcd = instructed
    await world.begun()
    world.broker_epoch = 8
    assert await world.mend(instructed) is None
    assert world.storage.dropped == []
    assert KEY not in world.logs
    assert len(world.logs) == 1  # and is tried again later


@pytest.mark.parametrize("instructed", [state((1, 2)), state((2,), elr=(1,))], ids=["isr", "elr"])
async def test_where_another_has_left_before_it_is_taken_up_as_it_is(instructed: PartitionState) -> None:
    """The controller does not take it out then, and nothing is committed as long as it stays away (RULES 7.6)."""
    world = World()
    await world.begun()
    world.broker_epoch = 8
    assert await world.mend(instructed) is None
    assert world.storage.dropped == []
    assert KEY not in world.logs
    assert len(world.logs) == 1


async def test_where_the_minimum_has_risen_meanwhile_it_is_taken_up_as_it_is() -> None:
    """The controller goes by what the instruction says; this broker has not taken that while it was answered with the
    error."""
    world = World((1, 2), minimum=1)
    await world.begun()
    world.broker_epoch = 8
    assert await world.mend(state((1, 2)), minimum=1) is not None
    assert await world.mend(state((1, 2)), minimum=2) is None
    assert world.storage.dropped == []
    assert KEY not in world.logs


async def test_those_of_many_steps_leave_with_one_registration() -> None:
    """Each look at thousands of damaged logs in one turn kept the loop from everything else, once a second."""
    world = World()
    many = world.hosts(3)
    world.logs.found(many)
    steps = world.logs.look()
    next(steps)
    assert (len(world.left), world.registrations) == (1, 0)
    world.logs.found(many - {next(key for key in many if key not in world.left)})  # mended before its turn
    assert len(list(steps)) == 2
    assert (len(world.left), world.registrations) == (2, 1)


async def test_a_registration_that_is_new_meanwhile_is_not_made_anew() -> None:
    """Nothing was fetched under it of what had left before: it costs the broker its leaderships for nothing."""
    world = World()
    world.logs.found(world.hosts(2))
    steps = world.logs.look()
    next(steps)
    world.broker_epoch = None
    assert len(list(steps)) == 1
    assert (len(world.left), world.registrations) == (2, 0)  # one is under way
    world.broker_epoch = 8
    world.look()
    assert world.registrations == 0
    assert await world.mend(state((2, 3))) is None
    assert world.storage.dropped == [(KEY, 5)]


async def test_those_that_left_before_a_new_registration_and_after_it_leave_with_another() -> None:
    world = World()
    world.logs.found(world.hosts(2))
    steps = world.logs.look()
    next(steps)
    world.broker_epoch = 8
    assert len(list(steps)) == 1
    assert world.registrations == 1


async def test_where_leaving_fails_the_broker_registers_for_those_that_left_before() -> None:
    """They are stopped, and nobody has them taken up under the broker epoch that they left under."""
    world = World()
    world.logs.found(world.hosts(2))
    world.fails_to_leave = 2
    with pytest.raises(ArithmeticError):
        world.look()
    assert (len(world.left), world.registrations) == (2, 0)
    world.look()
    assert (len(world.left), world.registrations) == (2, 1)


async def test_what_was_instructed_under_the_broker_epoch_that_it_left_under_gives_nothing_up() -> None:
    """Be it under way when the log left, or taken before the broker registers: by what it says this replica leads yet,
    which has resigned. Given up it would stay away until an election, and the broker register again a minute later."""
    world = World()
    world.logs.found(world.hosts(1, leader=ME))
    steps = world.logs.look()
    next(steps)
    for broker_epoch in (7, None):
        world.broker_epoch = broker_epoch
        refused = await world.mend(state((1, 2, 3), leader=ME))
        assert refused is not None
        assert refused.code is ErrorCode.LOG_STORAGE_ERROR
        assert KEY in world.logs
    world.broker_epoch = 8
    assert await world.mend(state((2, 3), epoch=6)) is None
    assert world.storage.dropped == [(KEY, 5)]


async def test_others_have_their_turns_while_logs_leave() -> None:
    """Of 500 that were led the leaving alone took 40 ms."""

    def look() -> Iterator[None]:
        for _ in range(10):
            time.sleep(2 * TURN_S)
            yield

    service: Any = SimpleNamespace(replica_manager=SimpleNamespace(damaged_logs=SimpleNamespace(look=look)))
    _, turns = await with_turns(ReplicaManagerService._mend_logs(service))
    assert turns >= 5


async def test_while_nobody_leads_it_does_not_register_anew() -> None:
    """It would be given up, again and again, and the broker's leaderships move each time."""
    world = World((2, 3))
    world.know(state((2, 3), leader=NO_LEADER, epoch=6))
    await world.begun()
    assert (world.left, world.registrations) == ([], 0)
    world.know(state((2, 3), epoch=7))
    world.look()
    assert (world.left, world.registrations) == ([KEY], 1)


async def test_a_leader_that_the_isr_cannot_spare_tells_the_controller_once() -> None:
    """Which lets another member lead: what this one cannot read no replica that joins could copy (RULES 7.6)."""
    world = World((1, 2))
    await world.begun()
    assert (world.registrations, world.reports) == (0, 0)  # another leads
    world.know(state((1,), leader=ME, epoch=6))
    world.look()
    assert world.reports == 0  # nobody else could
    world.know(state((1, 2), leader=ME, epoch=7))
    world.look()
    world.look()
    assert (world.registrations, world.reports) == (0, 1)
    assert world.logs.is_damaged(KEY)
    assert KEY not in world.logs
    world.logs.restarted()
    assert not world.logs.is_damaged(KEY)
    await world.begun()
    assert world.reports == 1  # what follows is asked for with it, as where a disk is failing and each moment has more
    world.now_ms += REPORT_GAP_MS
    world.look()
    world.now_ms += REPORT_GAP_MS
    world.look()
    assert world.reports == 2


async def test_the_controller_hears_that_a_log_is_damaged_no_more() -> None:
    """It may have heard that it was with any answer since, and would let this replica lead only as the last."""
    world = World((1, 2))
    await world.begun()
    world.logs.found({KEY})
    world.look()
    assert world.reports == 0
    world.logs.found(set())  # the log was cut there as a follower's, or does not begin as early any more
    world.look()
    world.look()
    assert world.reports == 1
    assert not world.logs.is_damaged(KEY)


async def test_a_cut_that_fails_is_tried_with_the_next_instruction() -> None:
    world = World()
    await world.begun()
    world.broker_epoch = 8
    world.storage.error = ErrorCode.STALE_FENCE
    refused = await world.mend(state((2, 3)))
    assert refused is not None
    assert refused.code is ErrorCode.STALE_FENCE
    assert KEY in world.logs
    world.storage.error = ErrorCode.NONE
    assert await world.mend(state((2, 3))) is None


@pytest.mark.parametrize(
    ("isr", "minimum", "live", "spared"),
    [
        ((1, 2, 3), 2, (1, 2, 3), True),
        ((1, 2, 3), 3, (1, 2, 3), True),  # the minimum cannot be kept with all there are
        ((1, 2), 2, (1, 2, 3), False),
        ((1, 2), 1, (1, 2, 3), True),
        ((1, 2), 3, (1, 2, 3), False),
        ((1,), 1, (1, 2, 3), False),
        ((1, 2, 3), 2, (1, 2), False),
        ((1, 2), 1, (1, 3), False),
    ],
)
async def test_it_stays_where_the_isr_cannot_spare_it(
    isr: Sequence[int], minimum: int, live: Sequence[int], spared: bool
) -> None:
    world = World(isr, minimum, live)
    await world.begun()
    assert bool(world.left) is spared
    assert world.registrations == int(spared)


async def test_what_does_not_come_about_is_given_up_and_tried_again_later() -> None:
    world = World()
    await world.begun()
    world.broker_epoch = 8
    world.now_ms += PATIENCE_MS
    world.look()
    assert KEY not in world.logs
    world.now_ms += RETRY_MS - 1
    world.look()
    assert world.registrations == 1
    world.now_ms += 1
    world.look()
    assert world.registrations == 2


async def test_a_log_whose_damage_is_gone_while_it_leaves_does_not_leave_again() -> None:
    """As where it was deleted: another that came for the partition later would have left, and the broker's leaderships
    with it, for damage that it does not have."""
    world = World()
    await world.begun()
    world.broker_epoch = 8
    world.storage.damaged = set()
    world.logs.count_changed(0)
    await settled(world.logs)
    assert KEY in world.logs
    world.now_ms += PATIENCE_MS
    world.look()
    assert KEY not in world.logs
    assert not world.logs.is_damaged(KEY)
    world.now_ms += RETRY_MS
    world.look()
    assert (world.left, world.registrations, world.reports) == ([KEY], 1, 0)


async def test_an_answer_from_before_the_cut_says_nothing() -> None:
    """The log left the ISR again for it, once it was back."""
    world = World()
    await world.begun()
    world.broker_epoch = 8
    answered, arrives, describe_logs = asyncio.Event(), asyncio.Event(), world.storage.describe_logs

    async def describe_late() -> log_storage_pb2.DescribeLogsResponse:
        response = await describe_logs()
        answered.set()
        await arrives.wait()
        return response

    world.storage.describe_logs = describe_late  # type: ignore[method-assign]
    world.logs.count_changed(2)
    await answered.wait()
    assert await world.mend(state((2, 3))) is None
    world.storage.damaged = set()
    arrives.set()
    await settled(world.logs)
    world.look()
    assert len(world.logs) == 0
    assert (world.left, world.registrations) == ([KEY], 1)


async def test_what_is_mended_elsewhere_is_forgotten() -> None:
    world = World((1,), 1)
    world.storage.silent = 1
    await world.begun()
    assert len(world.logs) == 1
    world.storage.damaged = set()
    world.logs.count_changed(0)
    await settled(world.logs)
    assert len(world.logs) == 0
    world.storage.damaged = {KEY, OTHER}  # the other one is not hosted
    world.logs.count_changed(2)
    await settled(world.logs)
    world.logs.restarted()
    assert len(world.logs) == 0
    await asyncio.sleep(0)
    await world.logs.stop()
