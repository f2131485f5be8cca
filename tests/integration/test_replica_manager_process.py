"""The replica-manager as a process of its own: readiness, SIGTERM, what it says where it cannot start."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from time import monotonic

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from replica_manager_cluster import Trio, eventually

from highwater.metadata.leases.controller_election import ControllerElection
from highwater.metadata.local import LocalEtcd
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import BrokerRegistration, LiveBroker
from highwater.metadata.state.brokers import read_brokers
from highwater.metadata.state.cluster_watch import watch_brokers
from highwater.metadata.store.store import Store
from highwater.metadata.store.transactions import Delete
from highwater.rpc.connections.channel import open_channel
from highwater.rpc.server import RpcServer
from highwater.v1 import common_pb2, controller_pb2, controller_pb2_grpc


@pytest.fixture
async def log_storage(tmp_path: Path) -> AsyncIterator[Trio]:
    trio = Trio(0, tmp_path, etcd="", cluster="")
    await trio.start_log_storage()
    yield trio
    await trio.stop()


@asynccontextmanager
async def running(
    etcd: str, cluster: str, directory: Path, **settings: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    values = {
        "broker.id": "0",
        "cluster": cluster,
        "listeners": f"INTERNAL://unix:{directory}/rm",
        "etcd": etcd,
        "log.storage": f"unix:{directory}/ls",
        **{key.replace("_", "."): value for key, value in settings.items()},
    }
    arguments = [part for key, value in values.items() for part in ("--set", f"{key}={value}")]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "highwater.replica_manager",
        *arguments,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


class FakeController(controller_pb2_grpc.ControllerServicer):
    """Says twice that an ISR needs the broker, then that none does; and of readiness what it is made with."""

    def __init__(self, *, told: bool = True, out_of_sync: int = 0) -> None:
        self.asked: list[int] = []
        self.lets_go = True
        self.let_go_s = 0.0
        self.asked_about: list[int] = []
        self.told = told
        self.out_of_sync = out_of_sync

    async def DescribeReadiness(  # type: ignore[override]
        self, request: controller_pb2.DescribeReadinessRequest, context: object
    ) -> controller_pb2.DescribeReadinessResponse:
        self.asked_about.append(request.broker_epoch)
        sample = [common_pb2.TopicPartition(topic="t", partition=each) for each in range(self.out_of_sync)]
        return controller_pb2.DescribeReadinessResponse(told=self.told, out_of_sync=self.out_of_sync, sample=sample)

    async def ControlledShutdown(  # type: ignore[override]
        self, request: controller_pb2.ControlledShutdownRequest, context: object
    ) -> controller_pb2.ControlledShutdownResponse:
        self.asked.append(request.broker_epoch)
        key = common_pb2.PartitionKey(topic_id=b"t" * 16, partition=0)
        if self.lets_go and len(self.asked) >= 3:
            self.let_go_s = monotonic()
            return controller_pb2.ControlledShutdownResponse()
        return controller_pb2.ControlledShutdownResponse(remaining=[key], needed_by=1)


async def health(directory: Path, service: str) -> bool:
    async with open_channel(f"unix:{directory}/rm") as channel:
        response = await health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service=service), wait_for_ready=True, timeout=10
        )
    return bool(response.status == health_pb2.HealthCheckResponse.SERVING)


@asynccontextmanager
async def another_broker(store: Store, keys: Keys) -> AsyncIterator[None]:
    """Registered, so that somebody is there to take leadership over."""
    registration = BrokerRegistration(7, "127.0.0.1:1", "one", "one")
    await store.put(keys.broker(7), registration.to_json())
    yield
    await store.txn((), [Delete(keys.broker(7))])


@asynccontextmanager
async def acting(controller: FakeController, store: Store, keys: Keys, directory: Path) -> AsyncIterator[None]:
    """The controller that etcd names, until the end."""
    server = RpcServer([f"unix:{directory}/c"])
    controller_pb2_grpc.add_ControllerServicer_to_server(controller, server.grpc)
    await server.start([])
    election = ControllerElection(
        store, keys, controller_id=1, address=f"unix:{directory}/c", incarnation="one", session_timeout_ms=5000
    )
    await election.campaign()
    try:
        yield
    finally:
        await election.resign()
        await server.stop(0)


async def test_sigterm_moves_leadership_away_first_and_deregisters(
    etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path, log_storage: Trio
) -> None:
    controller = FakeController()
    async with acting(controller, store, keys, tmp_path):
        async with another_broker(store, keys), running(etcd.address, keys.cluster, tmp_path) as process:
            brokers = await eventually(lambda: both_registered(store, keys), "the broker registers")
            assert await eventually(lambda: health(tmp_path, "highwater.v1.Broker"), "it serves")
            assert await eventually(lambda: health(tmp_path, "ready"), "it is ready")
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(10):
                assert await process.wait() == 0
        assert controller.asked == [brokers[0].broker_epoch] * 3
        assert await read_brokers(store, keys) == {}


async def test_its_peers_hear_at_once_that_it_has_gone(
    etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path, log_storage: Trio
) -> None:
    """Its lease would last for half a minute: who waited for it would wait for a host that answers nothing."""
    controller = FakeController()
    async with (
        acting(controller, store, keys, tmp_path),
        another_broker(store, keys),
        running(etcd.address, keys.cluster, tmp_path, broker_session_timeout_ms="30000") as process,
        asyncio.timeout(20),
        aclosing(watch_brokers(store, keys)) as peers_view,
    ):
        await eventually(lambda: both_registered(store, keys), "the broker registers")
        process.send_signal(signal.SIGTERM)
        registered = False
        async for brokers in peers_view:
            if registered and 0 not in brokers:
                break
            registered = 0 in brokers
        assert 0 < monotonic() - controller.let_go_s < 1
        assert await process.wait() == 0


async def test_a_registration_that_is_lost_while_it_waits_to_be_let_go_is_waited_for(
    etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path, log_storage: Trio
) -> None:
    """RULES 7.8. An ISR may hold it all the same: stopping would take the last replica away."""
    controller = FakeController()
    controller.lets_go = False
    async with (
        acting(controller, store, keys, tmp_path),
        another_broker(store, keys),
        running(etcd.address, keys.cluster, tmp_path) as process,
    ):
        first = (await eventually(lambda: both_registered(store, keys), "the broker registers"))[0].broker_epoch
        process.send_signal(signal.SIGTERM)

        async def asks() -> bool:
            return bool(controller.asked)

        await eventually(asks, "it asks to be let go")
        await log_storage.stop_log_storage()  # so that it cannot register again at once
        await store.txn((), [Delete(keys.broker(0))])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):  # between two of its questions there is a second at most
                await process.wait()
        await log_storage.start_log_storage()
        again = (await eventually(lambda: both_registered(store, keys), "it registers again"))[0]
        assert again.broker_epoch > first
        assert again.registration.shutting_down
        controller.lets_go = True
        async with asyncio.timeout(10):
            assert await process.wait() == 0
        assert controller.asked[-1] == again.broker_epoch


async def test_it_stops_all_the_same_when_its_grace_is_over(
    etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path, log_storage: Trio
) -> None:
    """RULES 7.8. It says what the controller held it back for."""
    controller = FakeController()
    controller.lets_go = False
    async with acting(controller, store, keys, tmp_path), another_broker(store, keys):
        async with running(etcd.address, keys.cluster, tmp_path, controlled_shutdown_max_wait_ms="2500") as process:
            await eventually(lambda: both_registered(store, keys), "the broker registers")
            await eventually(lambda: health(tmp_path, "ready"), "it is ready")
            process.send_signal(signal.SIGTERM)
            await eventually(lambda: unready(tmp_path), "it is ready no more, and waits")
            async with asyncio.timeout(10):
                _, stderr = await process.communicate()
        assert process.returncode == 0
        assert b"stopping although" in stderr
        assert b"needed_by=1" in stderr
        assert 1 < len(controller.asked) < 10  # it does not ask the more, the longer it waits
        assert 0 not in await read_brokers(store, keys)


async def unready(directory: Path) -> bool:
    return not await health(directory, "ready")


async def test_it_is_not_ready_before_a_controller_has_told_it_everything(
    etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path, log_storage: Trio
) -> None:
    """RULES 8.6: a StatefulSet would take the next pod."""
    controller = FakeController(told=False, out_of_sync=2)
    async with running(etcd.address, keys.cluster, tmp_path):
        await eventually(lambda: health(tmp_path, "highwater.v1.Broker"), "it serves")
        for _ in range(100):
            assert not await health(tmp_path, "ready")  # no controller acts
            await asyncio.sleep(0.02)
        async with acting(controller, store, keys, tmp_path):

            async def asked_often() -> bool:
                assert not await health(tmp_path, "ready")
                return len(controller.asked_about) > 4

            await eventually(asked_often, "it asks the controller")
            controller.told = True
            controller.asked_about.clear()
            await eventually(asked_often, "it asks again")
            controller.out_of_sync = 0
            await eventually(lambda: health(tmp_path, "ready"), "it is ready")
        assert await health(tmp_path, "ready")  # nothing is known of a change


async def test_what_cannot_be_in_sync_is_named_and_not_waited_for_for_ever(
    etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path, log_storage: Trio
) -> None:
    async with (
        acting(FakeController(out_of_sync=2), store, keys, tmp_path),
        running(etcd.address, keys.cluster, tmp_path, ready_max_wait_ms="1500") as process,
    ):
        assert process.stderr is not None
        async with asyncio.timeout(30):
            while b"not waited for any longer" not in (line := await process.stderr.readline()):
                assert line
        assert b"partitions=t-0,t-1" in line
        await eventually(lambda: health(tmp_path, "ready"), "it is ready")


async def both_registered(store: Store, keys: Keys) -> dict[int, LiveBroker]:
    brokers = await read_brokers(store, keys)
    return brokers if {0, 7} <= brokers.keys() else {}


async def test_the_last_broker_of_a_cluster_that_stops_does_not_wait(
    etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path, log_storage: Trio
) -> None:
    async with running(etcd.address, keys.cluster, tmp_path) as process:
        await eventually(lambda: read_brokers(store, keys), "the broker registers")
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(10):  # far less than controlled.shutdown.max.wait.ms
            assert await process.wait() == 0
    assert await read_brokers(store, keys) == {}


async def test_it_does_not_serve_before_log_storage_answers(
    etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path
) -> None:
    async with running(etcd.address, keys.cluster, tmp_path) as process:
        assert not await health(tmp_path, "highwater.v1.Broker")
        assert await read_brokers(store, keys) == {}
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(10):
            assert await process.wait() == 0


async def test_sigterm_ends_it_while_it_waits_for_etcd(keys: Keys, tmp_path: Path) -> None:
    async with running("127.0.0.1:1", keys.cluster, tmp_path) as process:
        assert process.stderr is not None
        async with asyncio.timeout(30):
            while b"waiting for etcd" not in await process.stderr.readline():
                pass
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(10):
            _, stderr = await process.communicate()
        assert process.returncode == 0
        assert b"Traceback" not in stderr


async def test_a_bad_setting_is_one_sentence(etcd: LocalEtcd, keys: Keys, tmp_path: Path) -> None:
    async with running(etcd.address, keys.cluster, tmp_path, log_storage="nowhere") as process:
        _, stderr = await process.communicate()
        assert process.returncode == 1
        assert b"log.storage" in stderr
        assert b"Traceback" not in stderr
