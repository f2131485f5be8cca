"""What comes of instructions about thousands of partitions at once does not hold the event loop: between two pieces
others have their turn."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from leading_broker import EPOCH, Leader, key

from highwater.errors import ErrorCode
from highwater.log_storage_client.values import CreateAnswer, FencedLog, NewLog, StorageError
from highwater.metadata.schema.models import PartitionState, VersionedState
from highwater.model.fence_role import Role
from highwater.model.log_state import LogState
from highwater.model.partition import PartitionKey
from highwater.replica_manager.partition.actions import Fence, FenceAnswer, LiveBrokers
from highwater.replica_manager.partition.partition import Phase
from highwater.replica_manager.requests import control
from highwater.replica_manager.requests.control import Control
from highwater.replica_manager.requests.instructions import Outcomes, PartitionInstruction, Sender
from highwater.replica_manager.server.control_servicer import ReplicaControlServicer, cached_topics
from highwater.replica_manager.storage import fencer
from highwater.replica_manager.storage.fencer import Fencer
from highwater.rpc.errors import from_proto
from highwater.rpc.partition_keys import to_key
from highwater.rpc.process import loop_turn
from highwater.v1 import replica_control_pb2

BROKER_EPOCH = 101


class Turns:
    """Counts those of the event loop, and what happens in each."""

    def __init__(self) -> None:
        self.now = 0
        self.happened: Counter[int] = Counter()

    def note(self, *_: Any) -> None:
        self.happened[self.now] += 1

    @property
    def most(self) -> int:
        return max(self.happened.values())

    async def count(self) -> None:
        while True:
            self.now += 1
            await asyncio.sleep(0)


@pytest.fixture
async def turns() -> AsyncIterator[Turns]:
    turns = Turns()
    counting = asyncio.create_task(turns.count())
    yield turns
    counting.cancel()


class LogStorage:
    """It makes every log and raises every fence, and keeps how many partitions came in one call."""

    def __init__(self) -> None:
        self.fenced: list[int] = []

    async def fence(self, role: Role, partitions: Sequence[tuple[PartitionKey, int]], **_: Any) -> list[FencedLog]:
        self.fenced.append(len(partitions))
        log = FencedLog(StorageError(ErrorCode.NONE), LogState(0, -1, 0, 0), (), "ls", False)
        return [log] * len(partitions)

    async def create_logs(self, logs: Sequence[NewLog]) -> list[CreateAnswer]:
        return [CreateAnswer(StorageError(ErrorCode.NONE), "ls")] * len(logs)


async def test_answers_of_many_fences_are_taken_in_several_turns(turns: Turns) -> None:
    storage = LogStorage()
    raised = Fencer(storage, "rm")  # type: ignore[arg-type]
    count = 3 * fencer.ANSWERED_AT_ONCE
    futures = [raised.submit(key(number), Fence(Role.LEADER, 3), turns.note) for number in range(count)]
    await asyncio.wait_for(asyncio.gather(*futures), 5)
    assert turns.happened.total() == count
    assert turns.most <= fencer.ANSWERED_AT_ONCE
    assert storage.fenced == [count]


class Broker:
    """Broker 1, which hosts nothing yet."""

    def __init__(self) -> None:
        self.storage = LogStorage()
        leader = Leader(0, fencer=Fencer(self.storage, "rm"))  # type: ignore[arg-type]
        self.replica_manager = leader.replica_manager
        self.replica_manager.storage = self.storage  # type: ignore[assignment]
        self.replica_manager.broker_epoch = BROKER_EPOCH
        self.replica_manager._live = LiveBrokers({1: BROKER_EPOCH})
        unasked: Any = SimpleNamespace(await_registration=self._registered)
        self.control = Control(self.replica_manager, unasked, unasked)
        self.control.controller_epoch = 1

    async def _registered(self, broker_epoch: int) -> None:
        pass

    async def instructed(self, count: int) -> ErrorCode:
        """Is told to lead so many partitions."""
        state = VersionedState(PartitionState(1, EPOCH, BROKER_EPOCH, (1,)), 10)
        instructions = [PartitionInstruction("t", key(number), state, (1,), {}) for number in range(count)]
        outcomes = await self.control.leader_and_isr(Sender(0, 1, BROKER_EPOCH), instructions, ())
        assert [each.key for each in outcomes.partitions] in ([], [each.key for each in instructions])
        return outcomes.error

    def told(self, note: Callable[..., None]) -> None:
        """Has `note` called for each instruction that is taken."""
        host = self.replica_manager.host

        def noted(*arguments: Any) -> Any:
            note()
            return host(*arguments)

        self.replica_manager.host = noted  # type: ignore[method-assign]


async def test_instructions_about_many_partitions_are_taken_in_several_turns_and_fenced_in_one_call(
    turns: Turns,
) -> None:
    broker, count = Broker(), 4 * control.AT_ONCE
    broker.told(turns.note)
    assert await asyncio.wait_for(broker.instructed(count), 5) is ErrorCode.NONE
    assert turns.happened.total() == count
    assert turns.most <= control.AT_ONCE
    assert broker.storage.fenced == [count]
    assert all(hosted.partition.phase is Phase.LEADER for hosted in broker.replica_manager.hosted.values())


async def test_what_is_left_of_an_instruction_is_not_taken_once_the_registration_is_lost() -> None:
    """RULES 1.4; what was taken of it is fenced none the less, or nothing would ever be heard of those fences."""
    broker = Broker()
    broker.told(lambda: asyncio.get_running_loop().call_soon(broker.replica_manager.registration_lost))
    assert await asyncio.wait_for(broker.instructed(4 * control.AT_ONCE), 5) is ErrorCode.STALE_BROKER_EPOCH
    assert len(broker.replica_manager.hosted) == control.AT_ONCE
    await asyncio.sleep(0)
    assert broker.storage.fenced == [control.AT_ONCE]


async def test_a_fence_of_somebody_else_is_not_lost_in_a_gathering() -> None:
    storage, answers = LogStorage(), list[FenceAnswer]()
    raised = Fencer(storage, "rm")  # type: ignore[arg-type]

    def submit(number: int) -> asyncio.Future[FenceAnswer]:
        return raised.submit(key(number), Fence(Role.LEADER, 3), lambda _, answer: answers.append(answer))

    futures = [submit(0)]
    with raised.gathering():
        futures.append(submit(1))
        await asyncio.sleep(0)  # the turn that the first was for has ended
        with raised.gathering():
            futures.append(submit(2))
        futures.append(submit(3))
    await asyncio.wait_for(asyncio.gather(*futures), 5)
    assert storage.fenced == [2, 2]
    assert len(answers) == 4


@pytest.mark.parametrize("partitions", [0, control.AT_ONCE])
async def test_metadata_of_many_partitions_is_taken_in_several_turns(
    turns: Turns, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    monkeypatch.setattr(loop_turn, "TURN_S", 0.0)
    topics = [
        replica_control_pb2.TopicState(
            topic=f"t{number}",
            topic_id=bytes([number]) * 16,
            partitions=[replica_control_pb2.IndexedPartitionState(partition=each) for each in range(partitions)],
        )
        for number in range(10)
    ]
    before = turns.now
    found = await cached_topics(topics)
    assert turns.now - before >= 9 + 10 * partitions
    assert [len(topic.partitions) for topic in found] == [partitions] * 10


# The order in which requests came


class Obeyed:
    """Notes the requests that reach it."""

    def __init__(self) -> None:
        self.order: list[tuple[str, int]] = []

    async def leader_and_isr(self, sender: Sender, instructions: Sequence[Any], endpoints: Sequence[Any]) -> Outcomes:
        self.order.append(("instruct", len(instructions)))
        return Outcomes(ErrorCode.NONE)

    async def stop_replica(self, sender: Sender, stops: Sequence[Any]) -> Outcomes:
        self.order.append(("stop", len(stops)))
        return Outcomes(ErrorCode.NONE)


async def test_a_short_request_does_not_overtake_a_long_one() -> None:
    """A log that was to be deleted would be made again; and the configurations of instructions have no order of their
    own."""
    obeyed, count = Obeyed(), 4 * control.AT_ONCE
    servicer = ReplicaControlServicer(Leader(0).replica_manager, obeyed, None)  # type: ignore[arg-type]
    parts = [replica_control_pb2.PartitionInstruction(topic="t", partition=to_key(key(each))) for each in range(count)]
    stop = replica_control_pb2.StopPartition(partition=to_key(key(0)), leader_epoch=-1, delete_log=True)
    context: Any = None
    await asyncio.gather(
        servicer.LeaderAndIsr(replica_control_pb2.LeaderAndIsrRequest(partitions=parts), context),
        servicer.StopReplica(replica_control_pb2.StopReplicaRequest(partitions=[stop]), context),
        servicer.LeaderAndIsr(replica_control_pb2.LeaderAndIsrRequest(partitions=parts[:1]), context),
    )
    assert obeyed.order == [("instruct", count), ("stop", 1), ("instruct", 1)]


async def test_an_instruction_is_read_in_several_turns(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_turn, "TURN_S", 0.0)
    servicer = ReplicaControlServicer(Leader(0).replica_manager, Obeyed(), None)  # type: ignore[arg-type]
    parts = [replica_control_pb2.PartitionInstruction(topic="t", partition=to_key(key(0)))] * (4 * control.AT_ONCE)
    context: Any = None
    before = turns.now
    await servicer.LeaderAndIsr(replica_control_pb2.LeaderAndIsrRequest(partitions=parts), context)
    assert turns.now - before >= 4 * control.AT_ONCE - 1


async def test_metadata_that_are_overtaken_while_they_are_read_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """RULES 8.10: the earlier ones would bring a topic back that is gone."""
    monkeypatch.setattr(loop_turn, "TURN_S", 0.0)
    broker = Broker()
    servicer = ReplicaControlServicer(broker.replica_manager, broker.control, None)  # type: ignore[arg-type]
    context: Any = None
    partitions = [replica_control_pb2.IndexedPartitionState(partition=each) for each in range(2 * control.AT_ONCE)]
    topic = replica_control_pb2.TopicState(topic="t", topic_id=b"t" * 16, partitions=partitions)
    long = replica_control_pb2.UpdateMetadataRequest(controller_epoch=1, sequence=1, topics=[topic])
    short = replica_control_pb2.UpdateMetadataRequest(controller_epoch=1, sequence=2, deleted_topic_ids=[b"t" * 16])
    earlier, later = await asyncio.gather(
        servicer.UpdateMetadata(long, context), servicer.UpdateMetadata(short, context)
    )
    assert from_proto(later.error) is ErrorCode.NONE
    assert from_proto(earlier.error) is ErrorCode.REQUEST_TIMED_OUT
    assert broker.replica_manager.metadata.topic_count == 0


# Ends in the middle of one


async def test_who_gives_up_an_instruction_leaves_no_fence_behind_and_no_lock() -> None:
    """The controller's call is cancelled; what it had told by then is fenced, and the next one is obeyed."""
    broker, count = Broker(), 4 * control.AT_ONCE
    broker.told(lambda: asyncio.get_running_loop().call_soon(telling.cancel))
    telling = asyncio.create_task(broker.instructed(count))
    with pytest.raises(asyncio.CancelledError):
        await telling
    taken = len(broker.replica_manager.hosted)
    assert 0 < taken < count
    broker.told(lambda: None)
    assert await asyncio.wait_for(broker.instructed(count), 5) is ErrorCode.NONE
    assert broker.storage.fenced == [taken, count - taken]


async def test_a_newer_controller_is_obeyed_in_the_middle_of_an_older_ones_instruction() -> None:
    """RULES 1.2: what is left of that is not taken any more."""
    broker, count = Broker(), 4 * control.AT_ONCE
    newer = Sender(1, 2, BROKER_EPOCH)
    told: list[asyncio.Future[Outcomes]] = []

    def tell() -> None:
        if not told:
            told.append(asyncio.ensure_future(broker.control.leader_and_isr(newer, [], ())))

    broker.told(tell)
    assert await asyncio.wait_for(broker.instructed(count), 5) is ErrorCode.STALE_CONTROLLER_EPOCH
    assert (await asyncio.wait_for(told[0], 5)).error is ErrorCode.NONE
    assert len(broker.replica_manager.hosted) == control.AT_ONCE
