"""A log that was fenced, and went offline before the answer was taken, is offline all the same (RULES 7.7), and one
that was found damaged leaves the ISR (RULES 7.6)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from leading_broker import EPOCH, Leader, key

from highwater.errors import ErrorCode
from highwater.log_storage_client.values import CreateAnswer, NewLog, StorageError
from highwater.metadata.schema.models import PartitionState, VersionedState
from highwater.model.fence_role import Role
from highwater.model.partition import PartitionKey
from highwater.replica_manager.partition.actions import Fence, FenceAnswer
from highwater.replica_manager.partition.partition import Phase
from highwater.replica_manager.replicas.damaged_logs import PATIENCE_MS
from highwater.replica_manager.replicas.metadata_cache import Endpoint
from highwater.replica_manager.requests.control import Control
from highwater.replica_manager.requests.instructions import InstructionOutcome, PartitionInstruction, Sender

BROKER_EPOCH = 101


class Fencer:
    """What happens `meanwhile` happens after log-storage has fenced the log, and before its answer is taken."""

    def __init__(self) -> None:
        self.meanwhile: Callable[[], object] = lambda: None
        self.error = ErrorCode.NONE
        self.asked = 0
        self.gathering = nullcontext

    def submit(
        self, each: PartitionKey, fence: Fence, answered: Callable[[PartitionKey, FenceAnswer], None]
    ) -> asyncio.Future[FenceAnswer]:
        self.asked += 1
        refused = self.error is not ErrorCode.NONE
        answer = FenceAnswer(fence.role, fence.leader_epoch, self.error, incarnation="ls", offline=refused)
        future = asyncio.get_running_loop().create_future()

        def take() -> None:
            self.meanwhile()
            answered(each, answer)
            future.set_result(answer)

        asyncio.get_running_loop().call_soon(take)
        return future


class Storage:
    async def create_logs(self, logs: Sequence[NewLog]) -> list[CreateAnswer]:
        return [CreateAnswer(StorageError(ErrorCode.NONE), "ls")] * len(logs)


class Broker:
    def __init__(self) -> None:
        self.fencer = Fencer()
        self.replica_manager = Leader(0, fencer=self.fencer).replica_manager
        self.replica_manager.log_storage_restarted("ls")
        self.replica_manager.broker_epoch = BROKER_EPOCH
        self.replica_manager.storage = Storage()  # type: ignore[assignment]
        unasked: Any = SimpleNamespace(await_registration=self._registered)
        self._control = Control(self.replica_manager, unasked, unasked)
        self._control.controller_epoch = 1

    async def _registered(self, broker_epoch: int) -> None:
        """It is."""

    async def instructed(self, leader: int) -> InstructionOutcome:
        state = VersionedState(PartitionState(leader, EPOCH, BROKER_EPOCH, (1, 2)), 10)
        instruction = PartitionInstruction("t", key(0), state, (1, 2), {})
        outcomes = await self._control.leader_and_isr(Sender(9, 1, BROKER_EPOCH), [instruction], ())
        (outcome,) = outcomes.partitions
        return outcome

    def is_damaged(self) -> None:
        damaged_logs = self.replica_manager.damaged_logs
        damaged_logs.found({key(0)})
        assert len(list(damaged_logs.look())) == 1
        assert key(0) in damaged_logs

    def goes_offline(self) -> None:
        self.fencer.error = ErrorCode.LOG_STORAGE_ERROR
        self.replica_manager.heard_offline(key(0), "ls")


@pytest.mark.parametrize("role", list(Role))
async def test_the_controller_is_told_of_a_log_that_went_offline_after_its_fence(role: Role) -> None:
    """A follower's log would be found so by nobody else: it appends nothing, and their number has not changed since."""
    broker = Broker()
    broker.fencer.meanwhile = broker.goes_offline
    for _ in range(2):  # the instruction is sent again
        outcome = await broker.instructed(1 if role is Role.LEADER else 2)
        assert (outcome.error, outcome.log_offline) == (ErrorCode.LOG_STORAGE_ERROR, True)
        assert key(0) in broker.replica_manager.offline_logs
    assert broker.replica_manager.hosted[key(0)].partition.phase not in (Phase.LEADER, Phase.FOLLOWER)


async def test_a_log_that_was_made_again_is_fenced_again() -> None:
    """What was heard meanwhile was of the log before."""
    broker = Broker()
    broker.fencer.meanwhile = lambda: broker.replica_manager.heard_offline(key(0), "ls")
    assert (await broker.instructed(2)).log_offline
    broker.fencer.meanwhile = lambda: None
    assert (await broker.instructed(2)).error is ErrorCode.NONE
    assert broker.fencer.asked == 2
    assert key(0) not in broker.replica_manager.offline_logs
    assert broker.replica_manager.hosted[key(0)].partition.phase is Phase.FOLLOWER


@pytest.mark.parametrize("role", list(Role))
async def test_a_log_found_damaged_during_its_fence_is_neither_led_nor_followed(role: Role) -> None:
    """It is cut when it counts for nothing: what it copied meanwhile, and acknowledged, would be cut too."""
    broker = Broker()
    replica_manager = broker.replica_manager
    replica_manager.metadata.set_brokers(Endpoint(each, 1, f"b{each}:1", "") for each in (1, 2))
    broker.fencer.meanwhile = broker.is_damaged
    outcome = await broker.instructed(1 if role is Role.LEADER else 2)
    assert (outcome.error, outcome.log_damaged) == (ErrorCode.LOG_STORAGE_ERROR, True)
    assert replica_manager.hosted[key(0)].partition.phase not in (Phase.LEADER, Phase.FOLLOWER)


async def test_a_follower_whose_damage_cannot_be_mended_follows_again() -> None:
    broker = Broker()
    replica_manager = broker.replica_manager
    replica_manager.metadata.set_brokers(Endpoint(each, 1, f"b{each}:1", "") for each in (1, 2))
    broker.fencer.meanwhile = broker.is_damaged
    assert (await broker.instructed(2)).log_damaged
    broker.fencer.meanwhile = lambda: None
    replica_manager.damaged_logs._now_ms = lambda: replica_manager.now_ms() + PATIENCE_MS
    assert len(list(replica_manager.damaged_logs.look())) == 1
    assert (await broker.instructed(2)).error is ErrorCode.NONE
    assert replica_manager.hosted[key(0)].partition.phase is Phase.FOLLOWER
