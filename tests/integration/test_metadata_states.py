"""Partition states by compare-and-swap, many in a transaction: RULES 2.2 to 2.6."""

from __future__ import annotations

from dataclasses import replace

import pytest
from etcd_proxy import EtcdProxy

from highwater.metadata.local import LocalEtcd
from highwater.metadata.schema.cluster_view import ClusterSnapshot, decode_snapshot
from highwater.metadata.schema.controller_term import ControllerTerm
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import BrokerRegistration, PartitionState, VersionedState
from highwater.metadata.state.isr_notifications import remove_notifications
from highwater.metadata.state.partition_states import (
    IsrChange,
    IsrWriter,
    Outcome,
    StateWrite,
    read_states,
    write_states,
)
from highwater.metadata.store.etcd_errors import ControllerDeposed, Unavailable
from highwater.metadata.store.store import Store
from highwater.metadata.store.transactions import Delete
from highwater.model.partition import PartitionKey

TOPIC_ID = b"\7" * 16
STATE = PartitionState(leader=1, leader_epoch=3, leader_broker_epoch=9, isr=(1, 2, 3))
SHRUNK = replace(STATE, isr=(1, 2))


async def registered(store: Store, keys: Keys, broker_id: int) -> int:
    """Its broker epoch."""
    return await store.put(keys.broker(broker_id), BrokerRegistration(broker_id, "h:1", "a", "b").to_json())


async def created(store: Store, keys: Keys, term: ControllerTerm, partitions: int) -> list[int]:
    """The state revisions of the partitions of topic t."""
    writes = [StateWrite("t", partition, STATE, 0) for partition in range(partitions)]
    results = await write_states(store, keys, term, writes)
    assert {result.outcome for result in results} == {Outcome.WRITTEN}
    return [result.revision for result in results]


def change(partition: int, revision: int, joining: dict[int, int] | None = None) -> IsrChange:
    return IsrChange(PartitionKey(TOPIC_ID, partition), "t", SHRUNK, revision, joining or {})


async def view(store: Store, keys: Keys) -> ClusterSnapshot:
    return decode_snapshot(keys, await store.get_prefix(keys.everything))


async def test_hundreds_of_states_are_written_in_few_transactions(
    store: Store, keys: Keys, term: ControllerTerm
) -> None:
    revisions = await created(store, keys, term, 300)
    assert len(set(revisions)) == 3
    states, revision = await read_states(store, keys, [("t", partition) for partition in range(301)])
    assert states == {("t", n): VersionedState(STATE, each) for n, each in enumerate(revisions)}
    assert revision >= max(revisions)


async def test_only_the_writes_whose_compare_fails_are_refused(store: Store, keys: Keys, term: ControllerTerm) -> None:
    revisions = await created(store, keys, term, 200)
    moved = {7, 119, 120, 199}
    raced = await write_states(store, keys, term, [StateWrite("t", n, SHRUNK, revisions[n]) for n in sorted(moved)])
    elected_anew = replace(STATE, leader_epoch=4)
    writes = [StateWrite("t", n, elected_anew, revisions[n]) for n in range(200)]
    results = await write_states(store, keys, term, writes)
    assert {n for n, result in enumerate(results) if result.outcome is Outcome.REFUSED} == moved
    assert results[7].current == VersionedState(SHRUNK, raced[0].revision)
    states, _ = await read_states(store, keys, [("t", n) for n in range(200)])
    for n, result in enumerate(results):
        if n not in moved:
            assert states["t", n] == VersionedState(elected_anew, result.revision)


async def test_a_state_that_exists_is_not_created_and_one_that_is_gone_not_changed(
    store: Store, keys: Keys, term: ControllerTerm
) -> None:
    (revision,) = await created(store, keys, term, 1)
    exists, gone = await write_states(store, keys, term, [StateWrite("t", 0, SHRUNK, 0), StateWrite("t", 1, SHRUNK, 5)])
    assert (exists.outcome, exists.current) == (Outcome.REFUSED, VersionedState(STATE, revision))
    assert (gone.outcome, gone.current) == (Outcome.REFUSED, None)


async def test_a_deposed_controller_writes_nothing(store: Store, keys: Keys, term: ControllerTerm) -> None:
    await created(store, keys, term, 1)
    await store.txn((), (Delete(keys.controller),))
    with pytest.raises(ControllerDeposed):
        await write_states(store, keys, term, [StateWrite("t", n, SHRUNK, 0) for n in range(1, 300)])
    states, _ = await read_states(store, keys, [("t", n) for n in range(300)])
    assert list(states) == [("t", 0)]


async def test_isr_changes_are_announced_in_the_transaction_that_makes_them(
    store: Store, keys: Keys, term: ControllerTerm
) -> None:
    epoch = await registered(store, keys, 1)
    revisions = await created(store, keys, term, 3)
    results = await IsrWriter(store, keys, 1).write([change(n, revisions[n]) for n in (0, 2)], epoch)
    assert [result.outcome for result in results] == [Outcome.WRITTEN] * 2
    states, _ = await read_states(store, keys, [("t", n) for n in range(3)])
    assert [states["t", n].state for n in range(3)] == [SHRUNK, STATE, SHRUNK]
    (notification,) = (await view(store, keys)).isr_notifications
    assert (notification.broker_id, notification.broker_epoch) == (1, epoch)
    assert notification.partitions == (("t", 0), ("t", 2))
    (entry,) = (await store.get_prefix(keys.isr_changes)).entries
    assert entry.mod_revision == results[0].revision == results[1].revision == states["t", 0].revision
    await remove_notifications(store, keys, term, [notification])
    assert (await view(store, keys)).isr_notifications == ()


async def test_a_joining_broker_must_still_be_registered_as_it_fetched(
    store: Store, keys: Keys, term: ControllerTerm
) -> None:
    """RULES 2.3; the changes beside it go through, and only they are announced."""
    epoch = await registered(store, keys, 1)
    old = await registered(store, keys, 2)
    await store.txn((), (Delete(keys.broker(2)),))
    new = await registered(store, keys, 2)
    revisions = await created(store, keys, term, 3)
    changes = [
        change(0, revisions[0], {2: new}),
        change(1, revisions[1], {2: old}),
        change(2, revisions[2], {3: new}),
    ]
    joined, restarted, absent = await IsrWriter(store, keys, 1).write(changes, epoch)
    assert joined.outcome is Outcome.WRITTEN
    assert (restarted.outcome, restarted.current) == (Outcome.REFUSED, VersionedState(STATE, revisions[1]))
    assert absent.outcome is Outcome.REFUSED
    (notification,) = (await view(store, keys)).isr_notifications
    assert notification.partitions == (("t", 0),)


async def test_a_broker_that_is_not_registered_changes_no_isr(store: Store, keys: Keys, term: ControllerTerm) -> None:
    epoch = await registered(store, keys, 1)
    revisions = await created(store, keys, term, 2)
    await store.txn((), (Delete(keys.broker(1)),))
    results = await IsrWriter(store, keys, 1).write([change(n, revisions[n]) for n in range(2)], epoch)
    assert {result.outcome for result in results} == {Outcome.REFUSED}
    assert (await view(store, keys)).isr_notifications == ()


async def test_many_isr_changes_need_one_notification_a_transaction(
    store: Store, keys: Keys, term: ControllerTerm
) -> None:
    epoch = await registered(store, keys, 1)
    revisions = await created(store, keys, term, 250)
    results = await IsrWriter(store, keys, 1).write([change(n, revisions[n]) for n in range(250)], epoch)
    assert {result.outcome for result in results} == {Outcome.WRITTEN}
    notifications = (await view(store, keys)).isr_notifications
    assert len(notifications) == 3
    assert sorted(each for note in notifications for each in note.partitions) == [("t", n) for n in range(250)]


async def test_a_lost_answer_leaves_isr_changes_unknown_and_an_unreachable_etcd_does_not(
    etcd: LocalEtcd, store: Store, keys: Keys, term: ControllerTerm
) -> None:
    epoch = await registered(store, keys, 1)
    revisions = await created(store, keys, term, 2)
    async with EtcdProxy(etcd.address) as proxy, Store([proxy.address], timeout_s=0.4) as proxied:
        writer = IsrWriter(proxied, keys, 1)
        await proxied.get(keys.broker(1))
        async with proxy.swallowing_answers():
            (unknown,) = await writer.write([change(0, revisions[0])], epoch)
            assert unknown.outcome is Outcome.UNKNOWN
        await proxy.cut()
        with pytest.raises(Unavailable):
            await proxied.get(keys.broker(1))
        (unsent,) = await writer.write([change(1, revisions[1])], epoch)
        assert unsent.outcome is Outcome.UNAVAILABLE
    states, _ = await read_states(store, keys, [("t", 0), ("t", 1)])
    assert states["t", 0].revision > revisions[0]  # RULES 2.4: seen above the compared revision, it is settled
    assert states["t", 1].revision == revisions[1]
