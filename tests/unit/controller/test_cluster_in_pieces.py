"""What concerns thousands of partitions at once does not hold the controller's event loop, and what happens between two
pieces of it is not lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace

import pytest

from highwater.controller.state_machines import pieces
from highwater.controller.state_machines.actions import Action, SendLeaderAndIsr, WriteState
from highwater.controller.state_machines.cluster import Cluster
from highwater.controller.state_machines.election import ElectionPolicy
from highwater.controller.term.active_controller import ActiveController
from highwater.metadata.schema.cluster_view import BrokerChange, ClusterSnapshot, decode_snapshot
from highwater.metadata.schema.controller_term import ControllerTerm
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import (
    BrokerRegistration,
    ControllerRegistration,
    LiveBroker,
    PartitionState,
    TopicAssignment,
    VersionedState,
    VersionedTopic,
)
from highwater.metadata.state import cluster_watch
from highwater.metadata.state.unreadable_entries import UnreadableEntries
from highwater.metadata.store.transactions import Entry, Event, Listing, WatchBatch
from highwater.model.partition import PartitionKey

KEYS = Keys("c")
TOPIC_ID = b"t" * 16
BROKERS = (1, 2, 3)
PARTITIONS = 4 * pieces.AT_ONCE


def epoch(broker_id: int) -> int:
    """The broker epoch that all are registered under."""
    return 10 + broker_id


def registration(broker_id: int) -> BrokerRegistration:
    return BrokerRegistration(broker_id, f"b{broker_id}:1", "x", "y")


def state(number: int) -> PartitionState:
    leader = BROKERS[number % 3]
    return PartitionState(leader, 0, epoch(leader), BROKERS, controller_epoch=1)


def entries(partitions: int) -> Iterable[Entry]:
    """A topic whose partitions all three brokers host, each leading a third."""
    yield Entry(KEYS.controller, ControllerRegistration(0, "h:1", 1, "c").to_json(), 5, 5)
    for broker_id in BROKERS:
        yield Entry(KEYS.broker(broker_id), registration(broker_id).to_json(), epoch(broker_id), epoch(broker_id))
    replicas = tuple((BROKERS * 2)[number % 3 : number % 3 + 3] for number in range(partitions))
    yield Entry(KEYS.topic("t"), TopicAssignment("t", TOPIC_ID, replicas).to_json(), 20, 20)
    for number in range(partitions):
        yield Entry(KEYS.state("t", number), state(number).to_json(), 30, 30)


def snapshot(partitions: int) -> ClusterSnapshot:
    return decode_snapshot(KEYS, Listing(tuple(entries(partitions)), 40))


class Turns:
    """Counts those of the event loop, and what happens in each."""

    def __init__(self) -> None:
        self.happened: Counter[int] = Counter()
        self.now = 0

    async def count(self, so_far: Callable[[], int] = lambda: 0) -> None:
        """`so_far`: looked at in each turn."""
        before = so_far()
        while True:
            self.now += 1
            await asyncio.sleep(0)
            self.happened[self.now] += so_far() - before
            before = so_far()


@pytest.fixture
def turns() -> Turns:
    return Turns()


class Etcd:
    """A listing, and what changes after it."""

    def __init__(self, listing: Iterable[Entry], *batches: WatchBatch) -> None:
        self._listing = Listing(tuple(listing), 40)
        self._batches = batches
        self.done = asyncio.Event()

    async def get_prefix(self, prefix: str) -> Listing:
        return self._listing

    async def watch_prefix(self, prefix: str, revision: int) -> AsyncIterator[WatchBatch]:
        for batch in self._batches:
            yield batch
        self.done.set()
        await asyncio.get_running_loop().create_future()


class Reader(UnreadableEntries):
    """Notes each entry that is read."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def read(self, key: str) -> None:
        self.count += 1


async def followed(turns: Turns, etcd: Etcd, reader: Reader, so_far: Callable[[Cluster], int]) -> Cluster:
    """A controller that has followed etcd so far."""
    controller = ActiveController(
        etcd,  # type: ignore[arg-type]
        KEYS,
        ControllerTerm(0, 1, 5),
        ElectionPolicy(),
        address="h:1",
        clock_ms=lambda: 0,
        rebalancing=None,
        unreadable=reader,
    )
    counting = asyncio.create_task(turns.count(lambda: so_far(controller.cluster)))
    following = asyncio.create_task(controller._follow_etcd())
    async with asyncio.timeout(20):
        await etcd.done.wait()
    for task in (counting, following):
        task.cancel()
    await asyncio.gather(counting, following, return_exceptions=True)
    assert controller.loaded
    return controller.cluster


async def test_a_listing_is_read_in_several_turns(turns: Turns) -> None:
    reader = Reader()
    await followed(turns, Etcd(entries(PARTITIONS)), reader, lambda _: reader.count)
    assert reader.count > PARTITIONS
    assert max(turns.happened.values()) <= cluster_watch.AT_ONCE


async def test_a_listing_is_taken_in_several_turns(turns: Turns) -> None:
    taken = await followed(turns, Etcd(entries(PARTITIONS)), Reader(), _with_states)
    assert _with_states(taken) == PARTITIONS
    assert max(turns.happened.values()) <= pieces.AT_ONCE


async def test_many_changes_are_read_and_taken_in_several_turns(turns: Turns) -> None:
    reader = Reader()
    before = [entry for entry in entries(PARTITIONS) if not entry.key.startswith(KEYS.state("t", 0)[:-1])]
    states = [entry for entry in entries(PARTITIONS) if entry not in before]
    batch = WatchBatch(tuple(Event(entry.key, entry, 41) for entry in states), 41)
    taken = await followed(turns, Etcd(before, batch), reader, lambda cluster: reader.count + _with_states(cluster))
    assert _with_states(taken) == PARTITIONS
    assert max(turns.happened.values()) <= max(pieces.AT_ONCE, cluster_watch.AT_ONCE)


async def test_a_broker_that_goes_is_replaced_in_several_turns(turns: Turns) -> None:
    batch = WatchBatch((Event(KEYS.broker(1), None, 41),), 41)
    gone = await followed(turns, Etcd(entries(PARTITIONS), batch), Reader(), _with_writes)
    assert _with_writes(gone) == PARTITIONS // 3
    assert max(turns.happened.values()) <= pieces.AT_ONCE / 3


def _with_states(cluster: Cluster) -> int:
    return sum(partition.versioned is not None for partition in cluster.topics.partitions())


def _with_writes(cluster: Cluster) -> int:
    return sum(partition.pending is not None for partition in cluster.topics.partitions())


# What happens between two pieces


def in_pieces() -> Cluster:
    return Cluster(0, 1, ElectionPolicy(), at_once=2)


def loaded(partitions: int) -> Cluster:
    cluster = in_pieces()
    cluster.load(snapshot(partitions), 0)
    return cluster


def test_nothing_is_decided_of_what_is_half_listed() -> None:
    """Its states are there and its brokers are not: by them every leader is dead."""
    cluster = in_pieces()
    loading = cluster.loading(snapshot(6), 0)
    next(loading)
    assert _with_states(cluster) == 2
    assert cluster.defaults_changed(ElectionPolicy(2)) == []
    assert writes(pieces.whole(loading)) == []
    assert _with_states(cluster) == 6


def test_no_broker_may_leave_by_what_is_half_listed() -> None:
    """RULES 7.8: a state that was before its mark may not have been taken yet."""
    cluster, marked = loaded(6), snapshot(6)
    leaving = replace(registration(1), shutting_down=True)
    marked.brokers[1] = LiveBroker(leaving, epoch(1), 50)
    cluster.broker_seen(marked.brokers[1])
    assert cluster.has_heard_of_leaving(1, epoch(1))
    loading = cluster.loading(marked, 0)
    next(loading)
    assert not cluster.has_heard_of_leaving(1, epoch(1))
    pieces.whole(loading)
    assert cluster.has_heard_of_leaving(1, epoch(1))


def test_no_leadership_goes_back_by_what_is_half_listed() -> None:
    """The listed state is newer than the registrations that are known: broker 1 would be elected under one that is
    over."""
    cluster, listing = loaded(6), snapshot(6)
    listing.brokers[1] = LiveBroker(registration(1), 50, 50)
    listing.states["t", 0] = VersionedState(PartitionState(2, 1, epoch(2), BROKERS, controller_epoch=1), 45)
    loading = cluster.loading(listing, 0)
    next(loading)
    assert cluster.topics.partitions()[0].leader == 2
    assert not cluster.listed
    assert cluster.rebalance(0) == []
    pieces.whole(loading)
    assert cluster.listed
    assert [write.state.leader_broker_epoch for write in writes(cluster.rebalance(0))] == [50]


def test_nobody_is_let_go_by_what_is_half_listed() -> None:
    """What is listed says that broker 2, which had asked, leads again."""
    cluster, leaving = loaded(3), replace(registration(2), shutting_down=True)
    written(cluster, cluster.broker_seen(LiveBroker(leaving, epoch(2), 41)))
    written(cluster, cluster.shut_down(2, epoch(2)))
    assert not cluster.held(2)
    listing = snapshot(3)
    listing.brokers[2] = LiveBroker(leaving, epoch(2), 41)
    listing.states["t", 0] = VersionedState(PartitionState(2, 9, epoch(2), (2,), controller_epoch=1), 60)
    loading = cluster.loading(listing, 0)
    next(loading)
    assert cluster.topics.partitions()[0].leader == 2
    assert not cluster.release(2, epoch(2))
    pieces.whole(loading)
    assert cluster.held_as_leader(2) == 1
    assert not cluster.release(2, epoch(2))


def test_a_topic_that_is_marked_gets_no_states_by_what_is_half_listed() -> None:
    """Its marker is listed behind it."""
    cluster, listing = in_pieces(), snapshot(2)
    other = TopicAssignment("u", b"u" * 16, ((1, 2, 3),))
    listing.topics["u"] = VersionedTopic(other, 20, 20)
    listing.deletions.update({"t": TOPIC_ID, "u": other.topic_id})
    loading = cluster.loading(listing, 0)
    while cluster.topics.named("t") is None or not cluster.topics.deleting:
        next(loading)
    assert cluster.defaults_changed(ElectionPolicy(2)) == []
    assert writes(pieces.whole(loading)) == []


def test_a_write_that_ends_meanwhile_is_told_to_who_registers() -> None:
    cluster = loaded(6)
    led = writes(cluster.broker_gone(1, 40))
    assert {write.key.partition for write in led} == {0, 3}
    change = BrokerChange(1, LiveBroker(registration(1), 50, 50), 50)
    assert change.broker is not None
    seeing = cluster.seeing_broker(change.broker)
    next(seeing)
    cluster.written(led, 51)  # what comes of it for the new registration has nobody to go to yet
    told = [action for action in pieces.whole(seeing) if isinstance(action, SendLeaderAndIsr)]
    assert [(action.broker_id, action.broker_epoch) for action in told] == [(1, 50)]
    assert set(told[0].keys) == {PartitionKey(TOPIC_ID, number) for number in range(6)}


def test_who_leaves_while_another_is_lost_is_let_go_by_no_partition_that_was_not_looked_at() -> None:
    """Broker 2 asks while the loss of 3 is half decided: it is still held by all that it leads."""
    cluster = loaded(12)
    losing = cluster.losing_broker(3, 40)
    next(losing)
    leaving = LiveBroker(replace(registration(2), shutting_down=True), epoch(2), 41)
    cluster.shut_down(2, leaving.broker_epoch)
    assert cluster.held_as_leader(2) == 4
    assert not cluster.release(2, epoch(2))
    pieces.whole(losing)
    assert cluster.held_as_leader(2) == 4


def writes(actions: Iterable[Action]) -> list[WriteState]:
    return [action for action in actions if isinstance(action, WriteState)]


def written(cluster: Cluster, actions: Iterable[Action]) -> None:
    """Has done what was decided, and what follows from it."""
    while done := writes(actions):
        actions = cluster.written(done, 1 + max(write.compare_revision for write in done))
