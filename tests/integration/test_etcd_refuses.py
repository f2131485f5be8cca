"""An etcd that answers and refuses (its alarm NOSPACE): everything that goes on for good asks until that is over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest
from aetcd import rpc
from etcd_proxy import until
from grpc_health.v1 import health_pb2, health_pb2_grpc

from highwater.controller.service import ControllerService
from highwater.controller.settings import ControllerSettings
from highwater.metadata.leases.controller_election import ControllerElection
from highwater.metadata.leases.leased_key import LeasedKey
from highwater.metadata.leases.registration import BrokerRegistrar
from highwater.metadata.local import LocalEtcd
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import NO_LEADER, BrokerRegistration, PartitionState, TopicAssignment
from highwater.metadata.store.etcd_errors import Refused
from highwater.metadata.store.store import Store

NOSPACE = 1


@asynccontextmanager
async def no_space(etcd: LocalEtcd) -> AsyncIterator[Callable[[], asyncio.Future[None]]]:
    """The quota alarm stands until what is given is awaited, or until the end."""
    async with grpc.aio.insecure_channel(etcd.address) as channel:
        maintenance = rpc.MaintenanceStub(channel)
        member = (await maintenance.Status(rpc.StatusRequest())).header.member_id

        async def alarm(action: int) -> None:
            await maintenance.Alarm(rpc.AlarmRequest(action=action, memberID=member, alarm=NOSPACE))

        await alarm(rpc.AlarmRequest.ACTIVATE)
        try:
            yield lambda: asyncio.ensure_future(alarm(rpc.AlarmRequest.DEACTIVATE))
        finally:
            await alarm(rpc.AlarmRequest.DEACTIVATE)


def registration() -> BrokerRegistration:
    return BrokerRegistration(1, "127.0.0.1:1", "start 1", "log-storage 1")


def controller_settings(etcd: LocalEtcd, keys: Keys) -> ControllerSettings:
    return ControllerSettings(
        etcd=(etcd.address,),
        cluster=keys.cluster,
        listen=("127.0.0.1:0",),
        advertised_listener="127.0.0.1:0",
        metrics_listen="",
        controller_id=1,
        controller_session_timeout_ms=1_000,
    )


def candidate(store: Store, keys: Keys) -> ControllerElection:
    return ControllerElection(
        store, keys, controller_id=1, address="127.0.0.1:1", incarnation="start 1", session_timeout_ms=1_000
    )


async def test_a_candidate_stands_again_when_etcd_has_space(etcd: LocalEtcd, store: Store, keys: Keys) -> None:
    election = candidate(store, keys)
    async with no_space(etcd) as lift:
        with pytest.raises(Refused):
            await store.put("/highwater/test/refused", b"")
        campaign = asyncio.create_task(election.campaign())
        await until(lambda: not election.stands or campaign.done())
        assert not campaign.done(), "the campaign has ended: nobody stands for election any more"
        await lift()
        term = await asyncio.wait_for(campaign, 10)
    assert term.controller_id == 1
    assert election.stands
    await election.resign()


async def test_a_controller_that_cannot_stand_for_election_does_not_say_that_it_serves(
    etcd: LocalEtcd, keys: Keys
) -> None:
    service = ControllerService(controller_settings(etcd, keys))
    async with no_space(etcd) as lift:
        await service.start()
        try:
            async with grpc.aio.insecure_channel(service.address) as channel:
                stub = health_pb2_grpc.HealthStub(channel)

                async def becomes(status: int) -> None:
                    async with asyncio.timeout(10):
                        async for answer in stub.Watch(health_pb2.HealthCheckRequest()):
                            if answer.status == status:
                                return

                await becomes(health_pb2.HealthCheckResponse.NOT_SERVING)
                await lift()
                await becomes(health_pb2.HealthCheckResponse.SERVING)
                await until(lambda: service.active_controller is not None and service.active_controller.loaded)
        finally:
            await service.stop()


async def test_a_controller_that_acts_goes_on_when_etcd_has_space(
    etcd: LocalEtcd, store: Store, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    """It used to end its term at the first write that was refused, and nobody could be elected after it."""

    async def probe() -> None: ...

    async def leader() -> int | None:
        entry = await store.get(keys.state("orders", 0))
        return None if entry is None else PartitionState.from_json(entry.value).leader

    async def led_by(broker_id: int) -> None:
        async with asyncio.timeout(10):
            while await leader() != broker_id:  # noqa: ASYNC110 - etcd is another process
                await asyncio.sleep(0.05)

    service = ControllerService(controller_settings(etcd, keys))
    registrar = BrokerRegistrar(store, keys, session_timeout_ms=3_000, probe=probe, on_lost=lambda: None)
    await registrar.register(registration())
    await store.put(keys.topic("orders"), TopicAssignment("orders", b"0123456789abcdef", ((1,),)).to_json())
    await service.start()
    try:
        await led_by(1)
        active_controller = service.active_controller
        async with no_space(etcd) as lift:
            await registrar.deregister()
            await until(lambda: "etcd did not do some writes" in caplog.text)
            await lift()
            await led_by(NO_LEADER)
        assert service.active_controller is active_controller
    finally:
        await service.stop()


async def test_a_broker_registers_when_etcd_has_space(etcd: LocalEtcd, store: Store, keys: Keys) -> None:
    async def probe() -> None: ...

    registrar = BrokerRegistrar(store, keys, session_timeout_ms=3_000, probe=probe, on_lost=lambda: None)
    async with no_space(etcd) as lift:
        registering = asyncio.create_task(registrar.register(registration()))
        refused = asyncio.create_task(store.put("/highwater/test/refused", b""))
        await asyncio.wait((refused,))
        assert isinstance(refused.exception(), Refused)
        assert not registering.done(), registering
        await lift()
        await asyncio.wait_for(registering, 10)
    assert registrar.broker_epoch is not None
    await registrar.deregister()


async def test_an_unexpected_error_loses_the_registration(
    store: Store, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that cannot say whether it is registered stops leading and registers anew."""

    async def hold(self: LeasedKey) -> None:
        raise ValueError("made up")

    async def probe() -> None: ...

    monkeypatch.setattr(LeasedKey, "hold", hold)
    lost: list[bool] = []
    registrar = BrokerRegistrar(store, keys, session_timeout_ms=3_000, probe=probe, on_lost=lambda: lost.append(True))
    await registrar.register(registration())
    await until(lambda: lost)
    assert registrar.broker_epoch is None
    await registrar.deregister()
