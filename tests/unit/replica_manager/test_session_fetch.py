"""An incremental session: answers tell what has changed, and look at nothing else (RULES 4.10)."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from counted_turns import with_turns

from highwater.errors import ErrorCode
from highwater.log_storage_client.values import AppendAnswer
from highwater.metadata.schema.models import PartitionState, VersionedState
from highwater.model.fence_role import Role
from highwater.model.log_state import LogState
from highwater.model.partition import PartitionKey
from highwater.replica_manager.partition import actions as act
from highwater.replica_manager.partition.actions import (
    FenceAnswer,
    Instruction,
    LiveBrokers,
    PartitionSettings,
)
from highwater.replica_manager.replicas.hosted_partition import HostedPartition
from highwater.replica_manager.replicas.metrics import ReplicaManagerMetrics
from highwater.replica_manager.replicas.purgatory import Purgatory
from highwater.replica_manager.replicas.replica_manager import ReplicaManager
from highwater.replica_manager.requests import session_fetch
from highwater.replica_manager.requests.fetch import FetchHandler, FetchParams
from highwater.replica_manager.requests.session_fetch import SessionAnswer, SessionFetch
from highwater.replica_manager.requests.session_roles import Place, ReplicaRole
from highwater.replica_manager.responses.fetch_parts import NO_PIECES, FetchedPart, FetchPart, FetchRole
from highwater.replica_manager.responses.response_reads import PartRead
from highwater.telemetry.metrics import Metrics

EPOCH = 5
BATCH = b"x" * 100
LONG_MS = 10_000


def key(number: int) -> PartitionKey:
    return PartitionKey(bytes(16), number)


class Leader:
    """Broker 1 with some partitions, and one session of broker 2's fetcher."""

    def __init__(self, partitions: int = 3, *, leading: bool = True) -> None:
        self.now_ms = 0
        self.max_bytes = 1_000
        self.reading = asyncio.Event()
        self.isr_writes: list[act.WriteIsr] = []
        nothing: Any = SimpleNamespace(committed=None, send=None, submit=lambda *_: None, write=self._write_isr)
        self.replica_manager = ReplicaManager(
            1,
            PartitionSettings(min_insync_replicas=1),
            nothing,
            nothing,
            nothing,
            nothing,
            incarnation="rm",
            tail_cache_bytes=0,
            purgatory=Purgatory(max_produces=1, max_fetches=1),
            message_max_bytes=1 << 20,
            lease_confirmed=lambda: True,
            register_anew=lambda: None,
            report_offline_logs=lambda: None,
            now_ms=lambda: self.now_ms,
        )
        self.replica_manager._publish_soon = lambda: None  # type: ignore[method-assign]
        for number in range(partitions):
            self.replica_manager.host(key(number), "t", {})
            if leading:
                self.lead(number)
        handler = FetchHandler(self.replica_manager, ReplicaManagerMetrics(Metrics("test")), max_bytes=1_000)
        session = self.replica_manager.sessions.open(2, 102, 0)
        role = ReplicaRole(self.replica_manager, session, handler.note_place)
        self.fetch = SessionFetch(self.replica_manager, role, self._read, max_bytes=1_000)

    def _write_isr(self, key: PartitionKey, topic: str, action: act.WriteIsr, settled: object) -> None:
        self.isr_writes.append(action)

    def take_settings(self, **settings: int) -> None:
        self.replica_manager.settings_changed(
            PartitionSettings(min_insync_replicas=1, **settings),
            message_max_bytes=1 << 20,
            cleanup_policy="delete",
            tail_cache_bytes=0,
        )

    def hosted(self, number: int) -> HostedPartition:
        return self.replica_manager.hosted[key(number)]

    def lead(self, number: int, epoch: int = EPOCH) -> None:
        hosted = self.hosted(number)
        hosted.partition.brokers_changed(LiveBrokers({1: 101, 2: 102}), 0)
        state = VersionedState(PartitionState(1, epoch, 101, (1, 2)), 10 + epoch)
        hosted.partition.instruct(Instruction(state, (1, 2)), 0)
        answer = FenceAnswer(Role.LEADER, epoch, incarnation="ls")
        self.replica_manager.perform(hosted, hosted.partition.fenced(answer, self.now_ms))

    def grow(self, number: int, end: int) -> None:
        log = LogState(end, EPOCH, 0, 0)
        answer = AppendAnswer(ErrorCode.NONE, "", -1, -1, False, -1, log, "ls")
        self.hosted(number).log_ended(EPOCH, answer)

    async def _read(self, reads: Sequence[PartRead]) -> list[tuple[FetchedPart, int]]:
        self.reading.set()
        await asyncio.sleep(0)
        for read in reads:
            read.admitted.pieces = (BATCH,)
        return [(read.admitted, len(BATCH)) for read in reads]

    def asks(self, places: dict[int, int], forgotten: Iterable[int] = (), epoch: int = EPOCH) -> FetchParams:
        """A request that names these partitions at these offsets."""
        parts = [
            FetchPart(key(number), epoch, offset, 0, offset, epoch if offset else -1, 0)
            for number, offset in places.items()
        ]
        params = FetchParams(FetchRole.REPLICA, parts, LONG_MS, 1, self.max_bytes, True)
        self.fetch.take(params, map(key, forgotten))
        return params

    async def answers(self, params: FetchParams) -> SessionAnswer:
        return await asyncio.wait_for(self.fetch.answer(params), 10)

    async def opened(self, places: dict[int, int] | None = None) -> None:
        """The first request is answered."""
        await self.answers(self.asks({0: 0, 1: 0, 2: 0} if places is None else places))

    async def waits(self, params: FetchParams) -> asyncio.Task[SessionAnswer]:
        task = asyncio.create_task(self.answers(params))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not task.done()
        return task


@pytest.fixture
def leader() -> Leader:
    return Leader()


def numbers(answer: SessionAnswer) -> list[int]:
    return [part.key.partition for part in answer.results]


def raise_log_start(leader: Leader, to: int) -> None:
    hosted = leader.hosted(0)
    leader.replica_manager.perform(hosted, hosted.partition.log_start_seen(EPOCH, "ls", to))


def errors(answer: SessionAnswer) -> dict[int, ErrorCode]:
    return {part.key.partition: part.error for part in answer.results}


async def test_the_first_request_is_answered_at_once_with_all_marks(leader: Leader) -> None:
    answer = await leader.answers(leader.asks({0: 0, 1: 0, 2: 0}))
    assert numbers(answer) == [0, 1, 2]
    assert all(part.high_watermark == part.log_start_offset == 0 for part in answer.results)


async def test_a_request_that_names_nothing_waits_for_what_was_named_before(leader: Leader) -> None:
    await leader.opened()
    waiting = await leader.waits(leader.asks({}))
    leader.grow(1, 4)
    answer = await waiting
    assert numbers(answer) == [1]
    assert answer.results[0].pieces == (BATCH,)
    assert answer.results[0].log_end_offset == 4


async def test_no_request_is_held_for_so_long_that_its_replica_seems_silent(leader: Leader) -> None:
    """Whatever `replica.fetch.wait.max.ms` is: who leads a partition of `__consumer_offsets` serves no group while a
    replica in sync seems to follow no more (RULES 11.12), and with nothing to read each seemed so again and again."""
    leader.take_settings(replica_lag_time_max_ms=180)
    held_ms = leader.replica_manager.settings.longest_hold_ms
    await leader.opened()
    waiting = await leader.waits(leader.asks({}))
    leader.now_ms += held_ms
    leadership = leader.hosted(0).partition.leadership
    assert leadership is not None
    assert not leadership.is_followed(leader.now_ms, held_ms - 1)
    await asyncio.wait_for(waiting, 1)
    leader.asks({})  # the next one
    assert leadership.is_followed(leader.now_ms, held_ms - 1)


async def test_nor_is_one_that_names_all_partitions(leader: Leader) -> None:
    """That of a fetcher that knows no incremental sessions."""
    leader.take_settings(replica_lag_time_max_ms=180)
    handler = FetchHandler(leader.replica_manager, ReplicaManagerMetrics(Metrics("test")), max_bytes=1_000)
    params = FetchParams(FetchRole.REPLICA, [FetchPart(key(0), EPOCH, 0, 0, 0, -1, 0)], LONG_MS, 1, 1_000, True)
    params.session = leader.replica_manager.sessions.open(2, 102, 0)
    handler.note_follower(params)
    (found,) = await asyncio.wait_for(handler.answer(params), 1)
    assert (found.error, found.pieces) == (ErrorCode.NONE, NO_PIECES)


@pytest.mark.parametrize("lag_ms", [160, 400, 900, 10_000])
async def test_a_replica_with_nothing_to_read_stays_in_the_isr_whatever_the_lag_may_be(
    leader: Leader, lag_ms: int
) -> None:
    """Its requests come as seldom as the leader answers them."""
    leader.take_settings(replica_lag_time_max_ms=lag_ms)
    held_ms = leader.replica_manager.settings.longest_hold_ms
    assert held_ms <= 1_000
    await leader.opened()
    for _ in range(3):
        leader.asks({})
        for _ in range(held_ms // 10):
            leader.now_ms += 10
            leader.replica_manager.tick()
    assert leader.isr_writes == []


async def test_what_grew_while_no_request_waited_is_answered_at_once(leader: Leader) -> None:
    await leader.opened()
    leader.grow(2, 4)
    assert numbers(await leader.answers(leader.asks({}))) == [2]


async def test_an_answer_leaves_nothing_behind_of_what_it_has_read(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Megabytes, of thousands of sessions: a cycle would hold them until the collector comes, and it comes rarely."""
    looks: list[weakref.ref[object]] = []
    look = leader.fetch._look

    async def watched(params: FetchParams) -> Any:
        found = await look(params)
        looks.append(weakref.ref(found))
        return found

    monkeypatch.setattr(leader.fetch, "_look", watched)
    await leader.opened()
    leader.grow(1, 4)
    gc.disable()
    try:
        assert numbers(await leader.answers(leader.asks({}))) == [1]
        assert [found() for found in looks] == [None, None]
    finally:
        gc.enable()


async def test_a_place_that_returned_data_says_nothing_until_the_next_is_named(leader: Leader) -> None:
    await leader.opened()
    leader.grow(1, 4)
    await leader.answers(leader.asks({}))
    waiting = await leader.waits(leader.asks({}))
    leader.grow(1, 8)
    await asyncio.sleep(0)
    assert not waiting.done()
    following = leader.asks({1: 4})
    waiting_params = leader.fetch._answering
    assert waiting_params is not None
    waiting_params.wait.end()  # as the stream does when a request comes
    assert numbers(await waiting) == []
    assert numbers(await leader.answers(following)) == [1]


async def test_a_high_watermark_ends_no_wait_and_is_told_with_the_next_answer(leader: Leader) -> None:
    await leader.opened()
    leader.grow(0, 4)
    await leader.answers(leader.asks({}))
    waiting = await leader.waits(leader.asks({0: 4}))  # which commits it
    leader.grow(1, 4)
    answer = await waiting
    assert {part.key.partition: part.high_watermark for part in answer.results} == {0: 4, 1: 0}


async def test_a_raised_log_start_is_told_at_once(leader: Leader) -> None:
    await leader.opened()
    leader.grow(0, 4)
    await leader.answers(leader.asks({}))
    waiting = await leader.waits(leader.asks({0: 4}))
    hosted = leader.hosted(0)
    leader.replica_manager.perform(hosted, hosted.partition.log_start_seen(EPOCH, "ls", 2))
    answer = await waiting
    assert [(part.key.partition, part.log_start_offset) for part in answer.results] == [(0, 2)]


async def test_a_log_start_raised_while_no_request_waits_is_told_with_the_next_at_once(leader: Leader) -> None:
    leader.grow(0, 4)
    await leader.opened({0: 4, 1: 0})
    hosted = leader.hosted(0)
    raised = hosted.partition.log_start_seen(EPOCH, "ls", 2)
    leader.replica_manager.perform(hosted, raised)
    answer = await leader.answers(leader.asks({}))
    assert [(part.key, part.log_start_offset) for part in answer.results] == [(key(0), 2)]
    await leader.waits(leader.asks({}))


async def test_a_log_start_raised_behind_an_answer_with_data_is_told_once_its_place_is_named(leader: Leader) -> None:
    await leader.opened()
    leader.grow(0, 4)
    assert numbers(await leader.answers(leader.asks({}))) == [0]
    raise_log_start(leader, 2)
    before, named = leader.asks({}), leader.asks({0: 4})
    before.wait.end()  # as the stream does when a request comes
    assert not (await leader.answers(before)).results
    answer = await leader.answers(named)
    assert [(part.key, part.log_start_offset) for part in answer.results] == [(key(0), 2)]
    await leader.waits(leader.asks({}))


async def test_a_log_start_raised_while_an_earlier_request_is_answered_is_told_with_the_next_at_once(
    leader: Leader,
) -> None:
    leader.grow(0, 4)
    await leader.opened({0: 2, 1: 0})
    earlier, later = leader.asks({}), leader.asks({0: 4})
    raise_log_start(leader, 2)
    assert not (await leader.answers(earlier)).results
    answer = await leader.answers(later)
    assert [(part.key, part.log_start_offset) for part in answer.results] == [(key(0), 2)]
    await leader.waits(leader.asks({}))


async def test_marks_of_answered_places_take_no_room_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor are answers without anything made of those that there is no room for."""
    monkeypatch.setattr(session_fetch, "TOLD_AT_ONCE", 2)
    leader = Leader(partitions=6)
    await leader.opened(dict.fromkeys(range(6), 0))
    for _ in range(2):  # the marks
        await leader.answers(leader.asks({}))
    for number in range(5):
        leader.grow(number, 4)
    for _ in range(3):
        assert (await leader.answers(leader.asks({}))).results
    for number in range(5):
        leader.fetch.high_watermark_advanced(key(number), 4)
    raise_log_start(leader, 2)
    ended = leader.asks({})
    ended.wait.end()
    assert not (await leader.answers(ended)).results
    (await leader.waits(leader.asks({}))).cancel()


async def test_an_answer_looks_at_no_log_start_that_waits_for_its_place_to_be_named(leader: Leader) -> None:
    await leader.opened()
    for number in range(3):
        leader.grow(number, 4)
    await leader.answers(leader.asks({}))
    raise_log_start(leader, 2)

    class Raised(dict[PartitionKey, None]):
        def __iter__(self) -> Iterator[PartitionKey]:
            raise AssertionError("thousands may wait")

    leader.fetch._raised = Raised(leader.fetch._raised)
    waiting = leader.asks({})
    waiting.wait.end()
    await leader.answers(waiting)
    answer = await leader.answers(leader.asks({0: 4}))
    assert [part.log_start_offset for part in answer.results] == [2]


async def test_a_partition_that_is_led_no_more_is_told_once(leader: Leader) -> None:
    await leader.opened()
    waiting = await leader.waits(leader.asks({}))
    hosted = leader.hosted(1)
    leader.replica_manager.perform(hosted, hosted.partition.resign())
    assert errors(await waiting) == {1: ErrorCode.NOT_LEADER_OR_FOLLOWER}
    waiting = await leader.waits(leader.asks({}))
    waiting.cancel()


async def test_a_partition_that_was_stopped_and_is_led_again_under_the_same_epoch_has_no_places(leader: Leader) -> None:
    """The new leadership has heard nothing of the follower: it must be named."""
    await leader.opened()
    leader.replica_manager.evict(key(1))
    leader.replica_manager.host(key(1), "t", {})
    leader.lead(1)
    assert errors(await leader.answers(leader.asks({}))) == {1: ErrorCode.NOT_LEADER_OR_FOLLOWER}
    assert errors(await leader.answers(leader.asks({1: 9}))) == {1: ErrorCode.OFFSET_OUT_OF_RANGE}


async def test_a_place_under_an_epoch_that_is_not_known_yet_waits_for_it(leader: Leader) -> None:
    leader = Leader(leading=False)
    leader.lead(0)
    await leader.opened({0: 0})
    waiting = await leader.waits(leader.asks({1: 0}))
    leader.lead(1)
    assert errors(await waiting) == {1: ErrorCode.NONE}
    leader.grow(1, 4)
    assert numbers(await leader.answers(leader.asks({}))) == [1]


async def test_a_place_that_came_too_early_is_answered_with_the_others(leader: Leader) -> None:
    leader = Leader(leading=False)
    leader.lead(0)
    await leader.opened({0: 0})
    waiting = await leader.waits(leader.asks({1: 0}))
    leader.grow(0, 4)
    assert errors(await waiting) == {0: ErrorCode.NONE, 1: ErrorCode.UNKNOWN_LEADER_EPOCH}


async def test_thousands_that_came_too_early_are_told_in_several_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_fetch, "TOLD_AT_ONCE", 2)
    leader = Leader(partitions=5, leading=False)
    told = [numbers(await leader.answers(leader.asks(dict.fromkeys(range(5), 0))))]
    leader.lead(4)
    told.append(numbers(await leader.answers(leader.asks({}))))
    assert told == [[0, 1], [2, 3, 4]]
    await leader.waits(leader.asks({}))


async def test_an_answer_says_nothing_of_what_a_later_request_names(leader: Leader) -> None:
    await leader.opened({0: 0, 1: 0})
    leader.grow(0, 4)
    first = leader.asks({})
    second = leader.asks({0: 2, 2: 0})
    leader.grow(2, 4)
    first.wait.end()
    assert numbers(await leader.answers(first)) == []
    assert numbers(await leader.answers(second)) == [0, 2]


async def test_a_place_named_anew_while_it_is_read_is_the_next_answers(leader: Leader) -> None:
    await leader.opened()
    leader.grow(0, 4)
    task = asyncio.create_task(leader.answers(leader.asks({})))
    await leader.reading.wait()
    second = leader.asks({0: 3})
    assert leader.fetch._answering is not None
    leader.fetch._answering.wait.end()
    assert numbers(await task) == []
    assert numbers(await leader.answers(second)) == [0]


async def test_what_there_was_no_room_for_comes_first_in_the_next_answer(leader: Leader) -> None:
    leader.max_bytes = len(BATCH)
    await leader.opened()
    for number in (2, 0, 1):
        leader.grow(number, 4)
    served = []
    named: dict[int, int] = {}
    for _ in range(6):
        answer = await leader.answers(leader.asks(named))
        assert answer.more
        (number,) = (part.key.partition for part in answer.results if part.pieces)
        served.append(number)
        named = {number: 1}  # more is there of each
    assert served == [2, 0, 1, 2, 0, 1]


@pytest.mark.parametrize("left_bytes", [0, len(BATCH) // 2])
async def test_an_answer_looks_at_no_more_of_those_that_lag_than_it_has_room_for(left_bytes: int) -> None:
    leader = Leader(partitions=100)
    leader.max_bytes = 2 * len(BATCH) + left_bytes
    await leader.opened(dict.fromkeys(range(100), 0))
    for number in range(100):
        leader.grow(number, 4)
    looks: list[int] = []
    role = leader.fetch._role
    admitted = role.admitted

    def counted(place: Place) -> FetchedPart:
        looks.append(place.part.key.partition)
        return admitted(place)

    role.admitted = counted  # type: ignore[method-assign]
    served = []
    for _ in range(20):
        answer = await leader.answers(leader.asks({}))
        assert answer.more
        served += numbers(answer)
    assert served == list(range(40))
    assert len(looks) <= 20 * 4


async def test_an_error_and_a_divergence_do_not_wait_for_room(leader: Leader) -> None:
    leader.max_bytes = len(BATCH)
    await leader.opened()
    for number in range(3):
        leader.grow(number, 4)
    leader.replica_manager.evict(key(2))
    answer = await leader.answers(leader.asks({1: 1}, epoch=EPOCH - 1))
    assert errors(answer) == {0: ErrorCode.NONE, 1: ErrorCode.FENCED_LEADER_EPOCH, 2: ErrorCode.NOT_LEADER_OR_FOLLOWER}
    assert not answer.more


async def test_others_have_their_turn_while_an_answer_looks_at_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_fetch, "LOOKED_AT_ONCE", 1)
    leader = Leader(partitions=100)
    leader.max_bytes = len(BATCH)
    await leader.opened(dict.fromkeys(range(100), 0))
    for number in range(100):
        leader.grow(number, 4)
        leader.fetch.changed(key(number))
    answer, turns = await with_turns(leader.answers(leader.asks({})))
    assert numbers(answer) == [0]
    assert answer.more
    assert turns > 90


async def test_errors_that_one_answer_had_no_room_for_do_not_wait_for_what_lags(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_fetch, "TOLD_AT_ONCE", 10)
    leader = Leader(partitions=100)
    leader.max_bytes = len(BATCH)
    await leader.opened(dict.fromkeys(range(100), 0))
    for number in range(100):
        leader.grow(number, 4)
        leader.fetch.changed(key(number))
        if number % 2:
            leader.replica_manager.evict(key(number))
    told: list[tuple[int, ErrorCode]] = []
    for _ in range(6):
        told += errors(await leader.answers(leader.asks({}))).items()
    assert {number for number, error in told if error is not ErrorCode.NONE} == set(range(1, 100, 2))


async def test_marks_of_a_place_that_there_is_no_room_for_are_told(leader: Leader) -> None:
    leader.max_bytes = len(BATCH)
    for number in range(3):
        leader.grow(number, 4)
    answer = await leader.answers(leader.asks({0: 0, 1: 0, 2: 0}))
    assert {part.key.partition: bool(part.pieces) for part in answer.results} == {0: True, 1: False, 2: False}


async def test_one_that_is_led_no_more_and_again_is_read_once(leader: Leader) -> None:
    await leader.opened()
    leader.grow(0, 4)
    leader.fetch.changed(key(0))  # in both queues
    answer = await leader.answers(leader.asks({}))
    assert numbers(answer) == [0]
    assert not answer.more


async def test_a_forgotten_place_is_not_answered(leader: Leader) -> None:
    await leader.opened()
    waiting = await leader.waits(leader.asks({}, forgotten=[1]))
    leader.grow(1, 4)
    leader.grow(2, 4)
    assert numbers(await waiting) == [2]


async def test_a_session_that_ends_leaves_nothing_behind(leader: Leader) -> None:
    await leader.opened()
    leader.fetch.close()
    sessions = leader.replica_manager.purgatory.sessions
    assert not sessions._by_key
    assert sessions.waiting == 0


async def test_marks_without_room_in_an_answer_are_in_the_next_which_does_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_fetch, "TOLD_AT_ONCE", 2)
    leader = Leader(partitions=5)
    told = numbers(await leader.answers(leader.asks(dict.fromkeys(range(5), 0))))
    for _ in range(2):
        told += numbers(await leader.answers(leader.asks({})))
    assert told == [0, 1, 2, 3, 4]
    await leader.waits(leader.asks({}))


async def test_data_without_room_in_an_answer_is_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_fetch, "TOLD_AT_ONCE", 2)
    leader = Leader(partitions=5)
    leader.max_bytes = 1_000
    await leader.opened(dict.fromkeys(range(5), 0))
    for _ in range(2):
        await leader.answers(leader.asks({}))
    for number in range(5):
        leader.grow(number, 1)
    answers = [await leader.answers(leader.asks({})) for _ in range(3)]
    found = [[part.key.partition for part in answer.results if part.pieces] for answer in answers]
    assert found == [[0, 1], [2, 3], [4]]
    assert [answer.more for answer in answers] == [True, True, False]


def test_a_request_is_taken_in_steps(leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_fetch, "TAKEN_AT_ONCE", 2)
    params = leader.asks({0: 0, 1: 0, 2: 0})
    assert len(list(leader.fetch.taking(params, ()))) == 1
    assert len(list(leader.fetch.taking(params, map(key, (0, 1, 2))))) == 2


async def test_a_log_start_raised_over_an_answered_place_ends_no_wait(leader: Leader) -> None:
    """A follower whose log-storage is busy goes on asking without naming the place: there is nothing to tell it."""
    await leader.opened()
    leader.grow(0, 4)
    assert numbers(await leader.answers(leader.asks({}))) == [0]
    waiting = await leader.waits(leader.asks({}))
    raise_log_start(leader, 2)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()
