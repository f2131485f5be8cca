"""Registrations with real leases: RULES 1.4, 8.1, 8.2."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest
from etcd_members import settle
from etcd_proxy import EtcdProxy, until

from highwater.metadata.leases.controller_election import ControllerElection
from highwater.metadata.leases.leased_key import LeasedKey, boottime_ms
from highwater.metadata.leases.registration import BrokerRegistrar, DuplicateBrokerIdError
from highwater.metadata.local import LocalEtcd
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import BrokerRegistration, LiveBroker
from highwater.metadata.state.brokers import expel_broker, read_brokers
from highwater.metadata.store.etcd_errors import ControllerDeposed
from highwater.metadata.store.store import Store
from highwater.metadata.store.transactions import Delete

pytestmark = pytest.mark.alone

SESSION_MS = 1_000
FIRST_START = BrokerRegistration(1, "h:1", "first start", "storage a")
SECOND_START = BrokerRegistration(1, "h:1", "second start", "storage b")


async def answers() -> None:
    pass


@contextlib.asynccontextmanager
async def registrar(
    store: Store,
    keys: Keys,
    lost: list[str],
    probe: Callable[[], Awaitable[None]] = answers,
    session_timeout_ms: int = SESSION_MS,
) -> AsyncIterator[BrokerRegistrar]:
    made = BrokerRegistrar(
        store, keys, session_timeout_ms=session_timeout_ms, probe=probe, on_lost=lambda: lost.append("lost")
    )
    try:
        yield made
    finally:
        await made.close()


async def test_a_registration_that_is_held_no_longer_is_lost_whatever_ended_it(
    store: Store, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cancelled_by_itself(held: LeasedKey) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(LeasedKey, "hold", cancelled_by_itself)
    lost: list[str] = []
    async with registrar(store, keys, lost) as broker:
        await broker.register(FIRST_START)
        await until(lambda: lost)
        assert broker.broker_epoch is None


async def test_a_registration_outlives_its_ttl_by_being_renewed(store: Store, keys: Keys) -> None:
    lost: list[str] = []
    async with registrar(store, keys, lost) as broker:
        assert (broker.broker_epoch, broker.confirmed_until_ms) == (None, 0)
        before_ms = boottime_ms()
        epoch = await broker.register(FIRST_START)
        first_ms = broker.confirmed_until_ms
        assert before_ms + SESSION_MS <= first_ms <= boottime_ms() + SESSION_MS
        await until(lambda: boottime_ms() > first_ms + SESSION_MS)
        assert broker.confirmed_until_ms > boottime_ms()
        assert broker.broker_epoch == epoch
        assert await read_brokers(store, keys) == {1: LiveBroker(FIRST_START, epoch)}
        assert not lost


async def test_a_restart_over_an_old_key_is_a_new_broker_epoch(store: Store, keys: Keys) -> None:
    lost: list[str] = []
    async with registrar(store, keys, lost) as killed:
        old = await killed.register(FIRST_START)
    async with registrar(store, keys, lost) as broker:
        new = await broker.register(SECOND_START)
        assert new > old
        assert await read_brokers(store, keys) == {1: LiveBroker(SECOND_START, new)}
    assert not lost


async def test_a_new_incarnation_of_log_storage_registers_anew(store: Store, keys: Keys) -> None:
    lost: list[str] = []
    async with registrar(store, keys, lost) as broker:
        old = await broker.register(FIRST_START)
        storage_restarted = replace(FIRST_START, log_storage_incarnation="storage b")
        new = await broker.register(storage_restarted)
        assert new > old
        assert broker.broker_epoch == new
        assert await read_brokers(store, keys) == {1: LiveBroker(storage_restarted, new)}
        await asyncio.sleep(0.1)
        assert not lost


async def test_the_older_of_two_processes_with_one_broker_id_yields(store: Store, keys: Keys) -> None:
    lost: list[str] = []
    async with registrar(store, keys, lost) as older, registrar(store, keys, []) as newer:
        await older.register(FIRST_START)
        epoch = await newer.register(SECOND_START)
        await until(lambda: lost)
        assert older.broker_epoch is None
        with pytest.raises(DuplicateBrokerIdError, match="a broker.id of its own"):
            await older.register(FIRST_START)
        assert await read_brokers(store, keys) == {1: LiveBroker(SECOND_START, epoch)}


async def test_a_deleted_key_is_noticed_although_the_lease_lives(store: Store, keys: Keys) -> None:
    lost: list[str] = []
    async with registrar(store, keys, lost) as broker:
        old = await broker.register(FIRST_START)
        await store.txn((), (Delete(keys.broker(1)),))
        await until(lambda: lost)
        assert (broker.broker_epoch, broker.registration, broker.confirmed_until_ms) == (None, None, 0)
        assert not await broker.update(FIRST_START)
        assert await broker.register(FIRST_START) > old
        assert lost == ["lost"]


async def fails() -> None:
    raise ConnectionError("log-storage is gone")


async def hangs() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("probe", [fails, hangs])
async def test_without_an_answer_of_log_storage_the_lease_runs_out(
    store: Store, keys: Keys, probe: Callable[[], Awaitable[None]]
) -> None:
    lost: list[str] = []
    async with registrar(store, keys, lost, probe) as broker:
        await broker.register(FIRST_START)
        confirmed_ms = broker.confirmed_until_ms
        await until(lambda: lost)
        assert boottime_ms() >= confirmed_ms
        assert await read_brokers(store, keys) == {}


LONGER_MS = 4_000


def busy(milliseconds: float) -> None:
    """Holds the event loop, as work in it does."""
    end = time.monotonic() + milliseconds / 1000
    while time.monotonic() < end:
        pass


async def test_a_busy_event_loop_loses_no_registration(store: Store, keys: Keys) -> None:
    """RULES 8.2: it may be held for longer than the lease lives."""
    lost: list[str] = []
    async with registrar(store, keys, lost, session_timeout_ms=LONGER_MS) as broker:
        epoch = await broker.register(FIRST_START)
        confirmed_ms = broker.confirmed_until_ms
        await until(lambda: broker.confirmed_until_ms > confirmed_ms)
        busy(1.08 * LONGER_MS)
        assert boottime_ms() < broker.confirmed_until_ms
        assert await read_brokers(store, keys) == {1: LiveBroker(FIRST_START, epoch)}
        assert not lost


async def test_an_event_loop_that_is_stuck_loses_the_registration(store: Store, keys: Keys) -> None:
    """RULES 8.2: so does a broker without its data path. By the first look it knows that nothing is confirmed."""
    lost: list[str] = []
    async with registrar(store, keys, lost) as broker:
        await broker.register(FIRST_START)
        busy(3.5 * SESSION_MS)
        assert boottime_ms() >= broker.confirmed_until_ms
        await until(lambda: lost)
        assert await read_brokers(store, keys) == {}


async def test_a_registration_that_is_let_go_at_once_is_renewed_no_more(store: Store, keys: Keys) -> None:
    """Before its first look at the key."""
    others = set(threading.enumerate())
    async with registrar(store, keys, []) as broker:
        await broker.register(FIRST_START)
        (thread,) = (each for each in set(threading.enumerate()) - others if each.name.startswith("lease-"))
        await broker.close()
        await until(lambda: not thread.is_alive())
        async with asyncio.timeout(8):
            while await read_brokers(store, keys):  # noqa: ASYNC110 - etcd ends it
                await asyncio.sleep(0.05)


async def test_an_update_keeps_the_broker_epoch_and_the_lease(store: Store, keys: Keys) -> None:
    lost: list[str] = []
    async with registrar(store, keys, lost) as broker:
        epoch = await broker.register(FIRST_START)
        leaving = replace(FIRST_START, shutting_down=True)
        assert await broker.update(leaving)
        assert broker.registration == leaving
        assert await read_brokers(store, keys) == {1: LiveBroker(leaving, epoch)}
        await broker.deregister()
        assert await read_brokers(store, keys) == {}
        assert broker.broker_epoch is None
        assert not lost


async def test_a_registration_survives_a_killed_etcd(own_etcd: LocalEtcd) -> None:
    keys, lost = Keys("test"), list[str]()
    async with Store([own_etcd.address]) as store, registrar(store, keys, lost) as broker:
        epoch = await broker.register(FIRST_START)
        await settle(store)
        own_etcd.kill()
        own_etcd.spawn()
        confirmed_ms = broker.confirmed_until_ms
        await until(lambda: broker.confirmed_until_ms > confirmed_ms)
        assert (await read_brokers(store, keys))[1].broker_epoch == epoch
        assert not lost


async def test_registering_gets_through_lost_answers_and_broken_connections(
    etcd: LocalEtcd, store: Store, keys: Keys
) -> None:
    """Whichever answer is lost, it ends registered once, under the epoch that it names."""
    async with EtcdProxy(etcd.address) as proxy, Store([proxy.address], timeout_s=0.3) as proxied:
        async with registrar(store, keys, []) as killed:
            await killed.register(FIRST_START)
        async with registrar(proxied, keys, []) as broker:
            registering = asyncio.create_task(broker.register(SECOND_START))
            for _ in range(3):
                async with proxy.swallowing_answers():
                    await asyncio.sleep(0.1)
                await asyncio.sleep(0.02)
            epoch = await registering
            assert await read_brokers(store, keys) == {1: LiveBroker(SECOND_START, epoch)}


async def test_a_controller_expels_exactly_one_broker_epoch(store: Store, keys: Keys) -> None:
    election = ControllerElection(
        store, keys, controller_id=0, address="c:0", incarnation="x", session_timeout_ms=SESSION_MS
    )
    lost: list[str] = []
    async with registrar(store, keys, lost) as broker:
        term = await election.campaign()
        old = await broker.register(FIRST_START)
        assert await expel_broker(store, keys, term, 1, old)
        await until(lambda: lost)
        await broker.register(FIRST_START)
        assert not await expel_broker(store, keys, term, 1, old)
        await election.resign()
        with pytest.raises(ControllerDeposed):
            await expel_broker(store, keys, term, 1, broker.broker_epoch or 0)
        assert broker.broker_epoch is not None
        assert len(await read_brokers(store, keys)) == 1
