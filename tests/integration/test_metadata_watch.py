"""Watches over killed etcds, cut connections and compaction; compare-and-swap while etcd is killed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from etcd_members import ThreeEtcds, settle
from etcd_proxy import EtcdProxy, until

from highwater.metadata.local import LocalEtcd
from highwater.metadata.schema.cluster_view import BrokerChange, ClusterChanges, ClusterSnapshot
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import BrokerRegistration, LiveBroker
from highwater.metadata.state.cluster_watch import watch_brokers, watch_cluster
from highwater.metadata.store.etcd_errors import Compacted, OutcomeUnknown, StoreClosed, Unavailable
from highwater.metadata.store.store import Store
from highwater.metadata.store.transactions import Delete, Event, Put, modified_at


def registration(broker_id: int, incarnation: str = "a") -> BrokerRegistration:
    return BrokerRegistration(broker_id, f"h:{broker_id}", incarnation, "s")


@contextlib.asynccontextmanager
async def collected(store: Store, prefix: str, start_revision: int) -> AsyncIterator[list[Event]]:
    """The events of a watch, as they come."""
    events: list[Event] = []

    async def collect() -> None:
        async with contextlib.aclosing(store.watch_prefix(prefix, start_revision)) as batches:
            async for batch in batches:
                events.extend(batch.events)

    task = asyncio.create_task(collect())
    try:
        yield events
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_watch_misses_and_repeats_nothing_while_etcd_is_killed_and_restarted(own_etcd: LocalEtcd) -> None:
    async with Store([own_etcd.address]) as store, collected(store, "/w/", 1) as events:
        revisions = [await store.put(f"/w/{n}", b"") for n in range(5)]
        await until(lambda: len(events) == 5)
        for _ in range(2):
            await settle(store)
            own_etcd.kill()
            own_etcd.spawn()
            await store.get("/w/0")  # the connection stands again: no put is of unknown outcome
            revisions += [await store.put(f"/w/{n}", b"") for n in range(5)]
        await until(lambda: len(events) >= len(revisions))
        assert [event.revision for event in events] == revisions


async def test_a_watch_misses_and_repeats_nothing_over_cut_connections(
    etcd: LocalEtcd, store: Store, keys: Keys
) -> None:
    start = await store.put(keys.broker(0), b"")
    async with (
        EtcdProxy(etcd.address) as proxy,
        Store([proxy.address]) as proxied,
        collected(proxied, keys.broker_ids, start + 1) as events,
    ):
        revisions = []
        for number in range(1, 6):
            revisions.append(await store.put(keys.broker(number), b""))
            await until(lambda: len(events) == len(revisions))
            await proxy.cut()
            revisions.append((await store.txn((), (Delete(keys.broker(number)),))).revision)
            proxy.restore()
        await until(lambda: len(events) >= len(revisions))
        assert [event.revision for event in events] == revisions
        assert [event.entry is None for event in events] == [False, True] * 5


async def test_a_watch_that_catches_up_on_megabytes_gets_whole_revisions(store: Store, keys: Keys) -> None:
    """etcd cuts such an answer into fragments, inside a revision too."""
    value = b"x" * 400_000
    start = await store.put(keys.broker(0), value)
    revisions = [start]
    for _ in range(4):
        result = await store.txn((), [Put(keys.broker(number), value) for number in range(3)])
        revisions += [result.revision] * 3
    seen: list[int] = []
    ends: list[int] = []
    async with contextlib.aclosing(store.watch_prefix(keys.broker_ids, start)) as batches:
        while len(seen) < len(revisions):
            batch = await anext(batches)
            seen += [event.revision for event in batch.events]
            ends.append(len(seen))
    assert seen == revisions
    assert all(end % 3 == 1 for end in ends)


async def test_a_closed_store_ends_its_watches_and_calls(etcd: LocalEtcd, keys: Keys) -> None:
    store = Store([etcd.address])
    start = await store.put(keys.broker(1), b"")
    watching = asyncio.ensure_future(anext(store.watch(keys.broker(1), start + 1)))
    listed = watch_brokers(store, Keys("empty"))
    assert await anext(listed) == {}
    following = asyncio.ensure_future(anext(listed))
    await asyncio.wait((watching, following), timeout=0.1)
    await store.close()
    for waiting in (watching, following):
        with pytest.raises(StoreClosed):
            await waiting
    with pytest.raises(StoreClosed):
        await store.get(keys.broker(1))


async def test_compare_and_swap_counts_right_while_etcd_ends(tmp_path: Path) -> None:
    """Writers that settle each unknown outcome by a re-read (RULES 2.4) lose no step and make none twice."""
    unknown_outcomes = 0
    wrote = set[str]()
    enough = asyncio.Event()

    async def write(name: str) -> int:
        nonlocal unknown_outcomes
        step = 0
        unsettled = False  # a write of unknown outcome may yet be done, until another has taken its place
        while not enough.is_set():
            try:
                entry = await store.get(name)
                value, revision = (0, 0) if entry is None else (int(entry.value), entry.mod_revision)
                assert value in (step, step + 1), "a step was lost, or done twice"
                step = value  # step + 1 where the one of unknown outcome had been done
                result = await store.txn((modified_at(name, revision),), (Put(name, b"%d" % (step + 1)),))
                assert result.succeeded or unsettled
                if result.succeeded:
                    step += 1
                    unsettled = False
                    wrote.add(name)
            except OutcomeUnknown:
                unknown_outcomes += 1
                unsettled = True
            except Unavailable:
                await asyncio.sleep(0.02)
        return step

    with ThreeEtcds(tmp_path) as etcd:
        async with Store(etcd.addresses, timeout_s=8.0) as store:
            writers = [asyncio.create_task(write(f"/count/{n}")) for n in range(4)]
            ends = 0
            while ends < 2 or not unknown_outcomes or len(wrote) < len(writers):
                await asyncio.sleep(0.05)
                etcd.terminate()
                ends += 1
                etcd.spawn()
                await until(lambda: etcd.healthy, 20.0)
            enough.set()
            steps = await asyncio.gather(*writers)
            values = [int(entry.value) for entry in (await store.get_prefix("/count/")).entries]
            assert all(value in (step, step + 1) for value, step in zip(values, steps, strict=True))


async def test_a_cluster_watch_begins_with_everything_and_goes_on_with_changes(store: Store, keys: Keys) -> None:
    first = await store.put(keys.broker(1), registration(1).to_json())
    async with asyncio.timeout(8), contextlib.aclosing(watch_cluster(store, keys)) as updates:
        snapshot = await anext(updates)
        assert isinstance(snapshot, ClusterSnapshot)
        assert snapshot.brokers == {1: LiveBroker(registration(1), first)}
        await store.put(keys.producer_ids, b"{}")  # nothing of the view
        second = await store.put(keys.broker(2), registration(2).to_json())
        changes = await anext(updates)
        assert changes == ClusterChanges(second, (BrokerChange(2, LiveBroker(registration(2), second), second),))


async def test_after_compaction_the_watch_tells_and_the_cluster_watch_lists_again(own_etcd: LocalEtcd) -> None:
    keys = Keys("test")
    async with (
        Store([own_etcd.address]) as store,
        EtcdProxy(own_etcd.address) as proxy,
        Store([proxy.address]) as proxied,
        asyncio.timeout(10),
        contextlib.aclosing(watch_cluster(proxied, keys)) as updates,
        contextlib.aclosing(watch_brokers(proxied, keys)) as brokers,
    ):
        first = await store.put(keys.broker(1), registration(1).to_json())
        assert isinstance(await anext(updates), ClusterSnapshot)
        assert (await anext(brokers))[1].broker_epoch == first
        changed, seen = asyncio.ensure_future(anext(updates)), asyncio.ensure_future(anext(brokers))
        raw = asyncio.ensure_future(anext(proxied.watch_prefix(keys.broker_ids, first + 1)))
        await asyncio.wait((changed, seen, raw), timeout=0.2)
        await proxy.cut()
        # A restart that nobody saw: the same id under another create revision (RULES 1.5).
        await store.txn((), (Delete(keys.broker(1)),))
        second = await store.put(keys.broker(1), registration(1, "b").to_json())
        await store.compact(second)
        proxy.restore()
        snapshot = await changed
        assert isinstance(snapshot, ClusterSnapshot)
        assert snapshot.brokers == {1: LiveBroker(registration(1, "b"), second)}
        assert (await seen)[1].broker_epoch == second
        with pytest.raises(Compacted):
            await raw


async def test_live_brokers_are_told_after_every_change(store: Store, keys: Keys) -> None:
    async with asyncio.timeout(8), contextlib.aclosing(watch_brokers(store, keys)) as updates:
        assert await anext(updates) == {}
        epoch = await store.put(keys.broker(7), registration(7).to_json())
        assert await anext(updates) == {7: LiveBroker(registration(7), epoch)}
        updated = BrokerRegistration(7, "h:7", "a", "s", shutting_down=True)
        await store.put(keys.broker(7), updated.to_json())
        assert await anext(updates) == {7: LiveBroker(updated, epoch)}
        await store.txn((), (Delete(keys.broker(7)),))
        assert await anext(updates) == {}


async def test_a_watch_that_is_left_ends_its_stream(store: Store, keys: Keys) -> None:
    start = await store.put(keys.broker(1), b"")
    async with contextlib.aclosing(store.watch(keys.broker(1), start)) as batches:
        async for batch in batches:
            assert batch.revision == start
            break
    assert await store.get(keys.broker(1)) is not None
