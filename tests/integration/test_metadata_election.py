"""Controller elections through a real etcd: RULES 1.2 and 2.2."""

from __future__ import annotations

import asyncio
import time

import pytest
from etcd_proxy import EtcdProxy, until

from highwater.metadata.leases.controller_election import ControllerElection, read_controller, read_controller_epoch
from highwater.metadata.local import LocalEtcd
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import ControllerRegistration, PartitionState
from highwater.metadata.state.partition_states import Outcome, StateWrite, read_states, write_states
from highwater.metadata.store.etcd_errors import ControllerDeposed
from highwater.metadata.store.store import Store
from highwater.metadata.store.transactions import Delete

STATE = PartitionState(1, 0, 5, (1,))


def candidate(store: Store, keys: Keys, controller_id: int, session_timeout_ms: int = 1_000) -> ControllerElection:
    return ControllerElection(
        store,
        keys,
        controller_id=controller_id,
        address=f"c:{controller_id}",
        incarnation=f"start {controller_id}",
        session_timeout_ms=session_timeout_ms,
    )


async def test_one_of_several_is_elected_and_the_others_know_it(store: Store, keys: Keys) -> None:
    assert await read_controller(store, keys) is None
    assert await read_controller_epoch(store, keys) == 0
    candidates = [candidate(store, keys, number) for number in range(3)]
    campaigns = [asyncio.create_task(each.campaign()) for each in candidates]
    done, waiting = await asyncio.wait(campaigns, return_when=asyncio.FIRST_COMPLETED)
    (won,) = done
    term = won.result()
    acting = ControllerRegistration(term.controller_id, f"c:{term.controller_id}", 1, f"start {term.controller_id}")
    await until(lambda: all(each.acting == acting for each in candidates))
    assert len(waiting) == 2
    assert (term.controller_epoch, await read_controller_epoch(store, keys)) == (1, 1)
    assert await read_controller(store, keys) == acting
    for each in waiting:
        each.cancel()
    await candidates[term.controller_id].resign()


async def test_after_a_resignation_the_next_one_acts_under_the_next_epoch(store: Store, keys: Keys) -> None:
    first, second = candidate(store, keys, 1, 30_000), candidate(store, keys, 2)
    old = await first.campaign()
    campaign = asyncio.create_task(second.campaign())
    await until(lambda: second.acting)
    await first.resign()
    new = await asyncio.wait_for(campaign, 8)  # far sooner than the lease ends
    assert (old.controller_epoch, new.controller_epoch) == (1, 2)
    assert new.create_revision > old.create_revision
    await second.resign()


async def test_a_controller_that_is_busy_keeps_its_term(store: Store, keys: Keys) -> None:
    """RULES 8.2: its lease is renewed beside the event loop, which may be held for longer than the lease lives."""
    busy = candidate(store, keys, 1, 4_000)
    await busy.campaign()
    losing = asyncio.create_task(busy.lost())
    await asyncio.sleep(0.5)
    time.sleep(4.3)  # noqa: ASYNC251 - it holds the event loop
    await asyncio.sleep(0.5)
    assert not losing.done()
    await busy.resign()
    await losing


async def test_a_controller_that_is_stuck_loses_its_term(store: Store, keys: Keys) -> None:
    """RULES 8.2: not for long is its lease renewed beside the event loop. What it decides then, it cannot write."""
    stuck, second = candidate(store, keys, 1), candidate(store, keys, 2)
    old = await stuck.campaign()
    losing = asyncio.create_task(stuck.lost())
    await asyncio.sleep(0.2)
    time.sleep(3.5)  # noqa: ASYNC251 - it holds the event loop
    await asyncio.wait_for(losing, 8)
    new = await asyncio.wait_for(second.campaign(), 8)
    assert new.controller_epoch == old.controller_epoch + 1
    with pytest.raises(ControllerDeposed):
        await write_states(store, keys, old, [StateWrite("t", 0, STATE, 0)], timeout_s=8)
    await second.resign()


async def test_a_controller_that_is_cut_off_is_followed_and_can_write_nothing(
    etcd: LocalEtcd, store: Store, keys: Keys
) -> None:
    async with EtcdProxy(etcd.address) as proxy, Store([proxy.address], timeout_s=0.5) as proxied:
        cut_off, second = candidate(proxied, keys, 1), candidate(store, keys, 2)
        old = await cut_off.campaign()
        campaign = asyncio.create_task(second.campaign())
        await proxy.cut()
        new = await asyncio.wait_for(campaign, 8)
        assert new.controller_epoch == old.controller_epoch + 1
        proxy.restore()
        with pytest.raises(ControllerDeposed):
            await write_states(proxied, keys, old, [StateWrite("t", 0, STATE, 0)], timeout_s=8)
        await asyncio.wait_for(cut_off.lost(), 8)
        (written,) = await write_states(store, keys, new, [StateWrite("t", 0, STATE, 0)])
        assert written.outcome is Outcome.WRITTEN
        assert list((await read_states(store, keys, [("t", 0)]))[0]) == [("t", 0)]
        again = asyncio.create_task(cut_off.campaign())
        await second.resign()
        assert (await asyncio.wait_for(again, 8)).controller_epoch == 3
        await cut_off.resign()


async def test_a_controller_whose_key_is_deleted_learns_it(store: Store, keys: Keys) -> None:
    election = candidate(store, keys, 1)
    await election.campaign()
    await store.txn((), (Delete(keys.controller),))
    await asyncio.wait_for(election.lost(), 5)
    assert election.acting is None
    assert (await election.campaign()).controller_epoch == 2
    await election.resign()


async def test_an_election_of_unknown_outcome_counts_once(etcd: LocalEtcd, store: Store, keys: Keys) -> None:
    async with EtcdProxy(etcd.address) as proxy, Store([proxy.address], timeout_s=0.3) as proxied:
        election = candidate(proxied, keys, 1)
        campaign = asyncio.create_task(election.campaign())
        for _ in range(3):
            async with proxy.swallowing_answers():
                await asyncio.sleep(0.1)
            await asyncio.sleep(0.02)
        term = await campaign
        entry = await store.get(keys.controller)
        assert entry is not None
        assert entry.create_revision == term.create_revision
        assert await read_controller_epoch(store, keys) == term.controller_epoch
        await election.resign()
