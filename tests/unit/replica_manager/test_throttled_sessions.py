"""What a leader holds back for a throttle costs its session nothing while it waits (RULES 4.14)."""

from __future__ import annotations

import asyncio

import pytest
from test_session_fetch import EPOCH, Leader, key

from highwater.errors import ErrorCode
from highwater.log_storage_client.values import AppendAnswer
from highwater.metadata.schema.models import PartitionState, VersionedState
from highwater.model.fence_role import Role
from highwater.model.log_state import LogState
from highwater.quotas.replication_quota import Rates
from highwater.replica_manager.partition.actions import FenceAnswer, Instruction
from highwater.replica_manager.replicas.metrics import ReplicaManagerMetrics
from highwater.replica_manager.requests import session_fetch
from highwater.replica_manager.requests.fetch import FetchHandler, FetchParams
from highwater.replica_manager.responses.fetch_parts import FetchPart, FetchRole
from highwater.telemetry.metrics import Metrics

THROTTLED = {"leader.replication.throttled.replicas": "*"}


class ThrottlingLeader(Leader):
    """Broker 1 leads what broker 2 lacks, is not in the ISR of, and copies at a byte a second: nothing for days."""

    def __init__(self, partitions: int) -> None:
        super().__init__(partitions, leading=False)
        for number in range(partitions):
            self.lead_alone(number)
        self.now_ms = 100_000
        self.rate(1.0)
        self.replica_manager.leader_quota.moved(1 << 20, self.now_ms / 1000)

    def lead_alone(self, number: int) -> None:
        hosted = self.replica_manager.host(key(number), "t", THROTTLED)
        state = VersionedState(PartitionState(1, EPOCH, 101, (1,)), 10)
        hosted.partition.instruct(Instruction(state, (1, 2)), 0)
        answer = FenceAnswer(Role.LEADER, EPOCH, incarnation="ls")
        self.replica_manager.perform(hosted, hosted.partition.fenced(answer, 0))
        self.grows(number, 500)

    def grows(self, number: int, end: int) -> None:
        answer = AppendAnswer(ErrorCode.NONE, "", -1, -1, False, -1, LogState(end, EPOCH, 0, 0), "ls")
        self.hosted(number).log_ended(EPOCH, answer)

    def rate(self, rate: float | None) -> None:
        self.replica_manager.replication_rates_changed(Rates(rate, None))

    def takes(self, max_wait_ms: int = 1_000, named: int = 0) -> FetchParams:
        parts = [FetchPart(key(number), EPOCH, 0, 0, 0, -1, 0) for number in range(named)]
        params = FetchParams(FetchRole.REPLICA, parts, max_wait_ms, 1, self.max_bytes, True)
        self.fetch.take(params, ())
        return params

    async def names_all(self, partitions: int) -> None:
        """Until all marks are told, and nothing is left but to wait."""
        params = self.takes(named=partitions)
        for _ in range(partitions // session_fetch.TOLD_AT_ONCE + 1):
            answer = await self.answers(params)
            assert all(not part.pieces for part in answer.results)
            assert answer.throttle_s > 3_600
            params = self.takes()
        answering = await self.waits(params)
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)


async def test_more_than_one_answer_can_tell_is_held_back_and_no_answer_goes_round_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_fetch, "TOLD_AT_ONCE", 10)
    leader = ThrottlingLeader(35)
    await leader.names_all(35)


async def test_held_back_partitions_are_not_looked_at_for_what_others_do(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = ThrottlingLeader(30)
    await leader.names_all(30)
    looked_at: list[object] = []
    admitted = leader.fetch._role.admitted
    monkeypatch.setattr(leader.fetch._role, "admitted", lambda place: looked_at.append(place) or admitted(place))
    answering = await leader.waits(leader.takes())
    for end in range(501, 551):
        for number in range(30):
            leader.grows(number, end)
        await asyncio.sleep(0)
    assert not answering.done()
    assert not looked_at
    answering.cancel()
    await asyncio.gather(answering, return_exceptions=True)


async def test_a_few_are_looked_at_again_each_half_second_and_all_have_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_fetch, "HELD_AT_ONCE", 4)
    leader = ThrottlingLeader(10)
    await leader.names_all(10)
    looked_at: list[int] = []
    admitted = leader.fetch._role.admitted
    monkeypatch.setattr(
        leader.fetch._role, "admitted", lambda place: looked_at.append(place.part.key.partition) or admitted(place)
    )
    for _ in range(5):
        leader.now_ms += session_fetch.LONGEST_HOLD_MS
        await leader.answers(leader.takes(max_wait_ms=0))
    assert len(looked_at) == 20
    assert set(looked_at) == set(range(10))


async def test_a_rate_that_is_taken_away_lets_go_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_fetch, "HELD_AT_ONCE", 4)
    leader = ThrottlingLeader(10)
    await leader.names_all(10)
    leader.rate(None)
    told: set[int] = set()
    for _ in range(10):
        answer = await leader.answers(leader.takes(max_wait_ms=0))
        told |= {part.key.partition for part in answer.results if part.pieces}
        assert answer.throttle_s == 0
    assert told == set(range(10))


async def test_what_is_held_back_is_told_by_topic_while_there_is_a_throttle() -> None:
    leader = ThrottlingLeader(30)
    await leader.names_all(30)
    assert list(leader.replica_manager.held_back_by_topic()) == [(("t",), 30.0)]
    leader.rate(None)
    assert not list(leader.replica_manager.held_back_by_topic())


async def test_a_session_that_names_all_in_each_request_is_held_back_and_charged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leader = ThrottlingLeader(2)
    handler = FetchHandler(leader.replica_manager, ReplicaManagerMetrics(Metrics("test")), max_bytes=1_000)
    monkeypatch.setattr(handler, "read_places", lambda reads, **_: leader._read(reads))
    session = leader.replica_manager.sessions.open(2, 102, 0)
    quota = leader.replica_manager.leader_quota

    async def has_batches(max_wait_ms: int = 0) -> bool:
        parts = [FetchPart(key(number), EPOCH, 0, 0, 0, -1, 0) for number in range(2)]
        params = FetchParams(FetchRole.REPLICA, parts, max_wait_ms, 1, leader.max_bytes, True, session=session)
        handler.note_follower(params)
        found = await asyncio.wait_for(handler.answer(params), 10)
        assert all(part.error is ErrorCode.NONE and part.log_end_offset == 500 for part in found)
        return any(part.pieces for part in found)

    assert not await has_batches()
    assert not await has_batches(max_wait_ms=20)
    leader.rate(None)
    assert await has_batches()
    leader.rate(1.0)
    assert await has_batches()  # nothing is owed yet
    assert quota.wait_s(leader.now_ms / 1000) > 0
    assert not await has_batches()
    leader.now_ms += 3_600_000
    assert await has_batches()
