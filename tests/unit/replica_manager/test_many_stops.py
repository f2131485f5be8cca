"""Thousands of replicas that are stopped, and logs that are deleted, leave others their turn."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from counted_turns import counted_turns
from leading_broker import Leader, key

from highwater.errors import ErrorCode
from highwater.log_storage_client.values import StorageError
from highwater.metadata.state.topics import TopicsRead
from highwater.model.partition import PartitionKey
from highwater.replica_manager.membership import purge
from highwater.replica_manager.membership.purge import CONCURRENT_DELETIONS, Purge
from highwater.replica_manager.requests.control import Control
from highwater.replica_manager.requests.instructions import InstructionOutcome, Outcomes, Sender, StopInstruction
from highwater.replica_manager.server.control_servicer import ReplicaControlServicer
from highwater.rpc.partition_keys import to_key
from highwater.rpc.process import loop_turn
from highwater.v1 import common_pb2, replica_control_pb2

COUNT = 100
EPOCH = 101


@pytest.fixture(autouse=True)
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_turn, "TURN_S", 0.0)


class Broker:
    """Broker 1, which hosts `COUNT` partitions."""

    def __init__(self) -> None:
        self.replica_manager = Leader(COUNT).replica_manager
        self.replica_manager.broker_epoch = EPOCH
        unasked: Any = SimpleNamespace(await_registration=self._registered)
        self.remained = 0
        self.control = Control(self.replica_manager, unasked, unasked, remained=self._remained)
        self.control.controller_epoch = 1

    async def _registered(self, broker_epoch: int) -> None:
        pass

    def _remained(self) -> None:
        self.remained += 1

    async def stopped(self, *, delete_logs: bool = False) -> Outcomes:
        stops = [StopInstruction(key(number), -1, delete_logs) for number in range(COUNT)]
        return await self.control.stop_replica(Sender(0, 1, EPOCH), stops)


async def test_replicas_are_stopped_in_several_turns() -> None:
    broker = Broker()
    with counted_turns() as turns:
        outcomes = await broker.stopped()
    assert [each.key for each in outcomes.partitions] == [key(number) for number in range(COUNT)]
    assert not broker.replica_manager.hosted
    assert turns.count >= 1.8 * COUNT


async def test_what_is_left_is_not_stopped_once_a_newer_controller_has_spoken() -> None:
    """RULES 1.2; what it hears of then is all that it instructs anew."""
    broker = Broker()
    stopping = asyncio.create_task(broker.stopped())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    newer = await broker.control.stop_replica(Sender(1, 2, EPOCH), [])  # waits for its turn
    assert newer.error is ErrorCode.NONE
    assert (await stopping).error is ErrorCode.STALE_CONTROLLER_EPOCH
    assert 0 < len(broker.replica_manager.hosted) < COUNT


@pytest.mark.parametrize("delete_logs", [True, False])
@pytest.mark.parametrize("gone", ["overtaken", "cancelled"])
async def test_logs_that_were_to_be_deleted_are_looked_for_where_their_sender_is_gone(
    gone: str, delete_logs: bool
) -> None:
    """RULES 9.2: their replicas are stopped, and the next controller may not know their topic any more."""
    broker = Broker()
    stopping = asyncio.create_task(broker.stopped(delete_logs=delete_logs))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    if gone == "overtaken":
        await broker.control.stop_replica(Sender(1, 2, EPOCH), [])
    else:
        stopping.cancel()
    await asyncio.wait((stopping,))
    assert 0 < len(broker.replica_manager.hosted) < COUNT
    assert broker.remained == int(delete_logs)


class Obeyed:
    """Has an outcome for each part of a request."""

    async def stop_replica(self, sender: Sender, stops: Sequence[StopInstruction]) -> Outcomes:
        return Outcomes(ErrorCode.NONE, partitions=[InstructionOutcome(each.key, ErrorCode.NONE) for each in stops])

    async def leader_and_isr(self, sender: Sender, instructions: Sequence[Any], endpoints: Sequence[Any]) -> Outcomes:
        assert len(endpoints) == COUNT
        return Outcomes(
            ErrorCode.NONE, partitions=[InstructionOutcome(each.key, ErrorCode.NONE) for each in instructions]
        )


async def test_instructions_and_their_outcomes_are_converted_in_several_turns() -> None:
    servicer = ReplicaControlServicer(Leader(0).replica_manager, Obeyed(), None)  # type: ignore[arg-type]
    context: Any = None
    keys = [to_key(key(number)) for number in range(COUNT)]
    stops = [replica_control_pb2.StopPartition(partition=each, leader_epoch=-1) for each in keys]
    with counted_turns() as turns:
        stopped = await servicer.StopReplica(replica_control_pb2.StopReplicaRequest(partitions=stops), context)
    assert [each.partition for each in stopped.results] == keys
    assert turns.count >= 1.8 * COUNT
    parts = [replica_control_pb2.PartitionInstruction(topic="t", partition=each) for each in keys]
    brokers = [common_pb2.BrokerEndpoint(broker_id=number, broker_epoch=1) for number in range(COUNT)]
    request = replica_control_pb2.LeaderAndIsrRequest(partitions=parts, live_brokers=brokers)
    with counted_turns() as turns:
        instructed = await servicer.LeaderAndIsr(request, context)
    assert [each.partition for each in instructed.results] == keys
    assert turns.count >= 2.8 * COUNT


class LogStorage:
    """Deletes every log, and keeps how many tasks there were by then."""

    def __init__(self) -> None:
        self.most_tasks = 0
        self.deleted: list[PartitionKey] = []

    async def delete_log(self, deleted: PartitionKey, leader_epoch: int) -> StorageError:
        self.most_tasks = max(self.most_tasks, len(asyncio.all_tasks()))
        await asyncio.sleep(0)
        self.deleted.append(deleted)
        return StorageError(ErrorCode.STALE_FENCE if deleted.partition == 7 else ErrorCode.NONE)


async def test_deletions_are_no_task_each(monkeypatch: pytest.MonkeyPatch) -> None:
    async def read_topics(*_: Any) -> TopicsRead:
        return TopicsRead("c", {}, frozenset(), 1)

    monkeypatch.setattr(purge, "read_topics", read_topics)
    storage, nothing, evicted = LogStorage(), Any, list[PartitionKey]()

    def evict(stopped: PartitionKey, _: int) -> bool:
        evicted.append(stopped)
        return True

    deleting = Purge(1, storage, nothing, nothing, cluster_id=lambda: "c", evict=evict)  # type: ignore[arg-type]
    wanted = [key(number) for number in range(10 * CONCURRENT_DELETIONS)]
    before = len(asyncio.all_tasks())
    with counted_turns() as turns:
        outcomes = await deleting.delete(wanted)
    assert sorted(storage.deleted) == sorted(evicted) == wanted
    assert {each: error.code for each, error in outcomes.items() if error.code is not ErrorCode.NONE} == {
        key(7): ErrorCode.STALE_FENCE
    }
    assert outcomes.keys() == set(wanted)
    assert storage.most_tasks - before <= CONCURRENT_DELETIONS + 1
    assert turns.count >= 1.8 * len(wanted)  # as they are judged, and as they are counted
