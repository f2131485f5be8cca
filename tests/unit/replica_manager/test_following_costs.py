"""A change of one partition costs the same, from the replica-manager's decision to the fetcher's, however many
partitions are followed (RULES 4.12)."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FrameType, SimpleNamespace
from typing import Any

from highwater.fetcher.fetcher_manager import FetcherManager
from highwater.fetcher.follower.actions import Action
from highwater.fetcher.follower.follower import Follower
from highwater.fetcher.follower.following import FetcherId, LeaderEndpoint
from highwater.fetcher.wire import from_following
from highwater.model.partition import PartitionKey
from highwater.replica_manager.partition.actions import Follow, PartitionSettings, StopFollowing
from highwater.replica_manager.replicas.metadata_cache import Endpoint
from highwater.replica_manager.replicas.purgatory import Purgatory
from highwater.replica_manager.replicas.replica_manager import ReplicaManager
from highwater.replica_manager.server.control_servicer import ReplicaControlServicer
from highwater.v1 import replica_control_pb2

LEADERS = 4


@dataclass
class Cost:
    message_bytes: int = 0
    instructions: int = 0


@contextmanager
def counted(cost: Cost) -> Iterator[None]:
    """Counts the instructions of Python that are carried out meanwhile; a loop over partitions takes several for
    each."""

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        frame.f_trace_opcodes = True
        cost.instructions += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


class QuietFetcher:
    """Has partitions, and no connection."""

    def __init__(self, identity: FetcherId, leader: LeaderEndpoint) -> None:
        self.leader = leader
        self.partitions: dict[PartitionKey, Follower] = {}

    def open_session(self, broker_epoch: int) -> None: ...

    def add(self, follower: Follower) -> None:
        self.partitions[follower.key] = follower

    def changed(self, follower: Follower) -> None: ...

    def remove(self, key: PartitionKey) -> None:
        del self.partitions[key]

    def perform(self, steps: Sequence[tuple[Follower, Action]]) -> None: ...

    async def stop(self) -> None: ...


class Broker:
    """A replica-manager and its fetcher, with the stream between them in memory."""

    def __init__(self, partitions: int) -> None:
        nothing: Any = SimpleNamespace(committed=None, send=None, submit=lambda *_: None)
        self.replica_manager = ReplicaManager(
            9,
            PartitionSettings(),
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
            now_ms=lambda: 0,
        )
        self.replica_manager._publish_soon = lambda: None  # type: ignore[method-assign]
        self.replica_manager.metadata.set_brokers(Endpoint(each, 100 + each, f"b{each}:1", "") for each in range(4))
        self.replica_manager.registered(7)
        self.fetchers = FetcherManager(QuietFetcher, 1, 1_000, lambda: 0)
        for number in range(partitions):
            self.follow(number, 5)
        servicer = ReplicaControlServicer(self.replica_manager, nothing, nothing)
        self._messages: AsyncIterator[replica_control_pb2.Following] = servicer.WatchFollowing(
            replica_control_pb2.WatchFollowingRequest(takes_changes=True), nothing
        )

    def follow(self, number: int, leader_epoch: int) -> None:
        key = PartitionKey(bytes(16), number)
        hosted = self.replica_manager.hosted.get(key) or self.replica_manager.host(key, "orders", {})
        self.replica_manager.perform(hosted, [Follow((number + leader_epoch) % LEADERS, leader_epoch, -1)])

    def stop(self, number: int) -> None:
        hosted = self.replica_manager.hosted[PartitionKey(bytes(16), number)]
        self.replica_manager.perform(hosted, [StopFollowing()])

    async def tell(self) -> int:
        """Returns the bytes of the message."""
        self.replica_manager.publish_following()
        sent = (await anext(self._messages)).SerializeToString()
        await self.fetchers.apply(from_following(replica_control_pb2.Following.FromString(sent)))
        return len(sent)


async def costs_of_changes(partitions: int) -> list[Cost]:
    broker = Broker(partitions)
    assert await broker.tell() > 20 * partitions  # which names them all
    assert len(broker.fetchers.followers) == partitions
    changes: list[Callable[[], None]] = [
        partial(broker.follow, 100, 6),  # another leader
        partial(broker.stop, 100),
        partial(broker.follow, 100, 7),
    ]
    costs = []
    for change in changes:
        cost = Cost()
        with counted(cost):
            change()
            cost.message_bytes = await broker.tell()
        costs.append(cost)
    assert broker.fetchers.followers[PartitionKey(bytes(16), 100)].followed is not None
    assert len(broker.fetchers.followers) == partitions
    return costs


async def test_a_change_costs_what_has_changed() -> None:
    few, many = await costs_of_changes(1_000), await costs_of_changes(3_000)
    assert [cost.message_bytes for cost in many] == [cost.message_bytes for cost in few]
    assert max(cost.message_bytes for cost in many) <= 100
    for among_few, among_many in zip(few, many, strict=True):
        assert 100 < among_many.instructions < 1.1 * among_few.instructions
        assert among_many.instructions < 3_000  # a look at each would take more
