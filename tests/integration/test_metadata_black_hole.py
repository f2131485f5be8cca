"""Members of etcd that say nothing any more, while their connections stand: watches and leases go on elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from aetcd import rpc
from aetcd.rpc import rpc_pb2_grpc
from etcd_members import ThreeEtcds
from etcd_proxy import EtcdProxy, until
from grpc_health.v1 import health_pb2_grpc

from highwater.metadata.leases.registration import BrokerRegistrar
from highwater.metadata.local import LocalEtcd, etcd_healthy
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import BrokerRegistration
from highwater.metadata.store import connections
from highwater.metadata.store.connections import ASK_S, SILENT_S
from highwater.metadata.store.etcd_errors import OutcomeUnknown, Unavailable
from highwater.metadata.store.store import Store

NOTICED_S = ASK_S + SILENT_S
SLACK_S = 4.0  # to connect to another member, on a busy machine: gRPC by itself takes 12 s
QUIET_S = 1.5  # after what came last: gRPC pings a connection on which something came, and would notice by that


@contextlib.asynccontextmanager
async def watching(store: Store, prefix: str, start: int) -> AsyncIterator[list[int]]:
    """The revisions that a watch brings, as they come."""
    seen: list[int] = []

    async def watch() -> None:
        async with contextlib.aclosing(store.watch_prefix(prefix, start)) as batches:
            async for batch in batches:
                seen.extend(event.revision for event in batch.events)

    task = asyncio.create_task(watch())
    try:
        yield seen
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until_standing(members: ThreeEtcds) -> None:
    await until(lambda: all(map(etcd_healthy, members.addresses)), 20.0)


async def test_watches_go_on_at_another_member(tmp_path: Path) -> None:
    with ThreeEtcds(tmp_path) as members:
        await until_standing(members)
        async with (
            Store(members.addresses, timeout_s=8.0) as store,
            Store(members.addresses[1:], timeout_s=8.0) as other,
        ):
            first = await store.put("/w/0", b"")
            async with watching(store, "/w/", first) as one, watching(store, "/w/", first) as two:
                await until(lambda: one == two == [first])
                await asyncio.sleep(QUIET_S)
                members.pause(0)  # the one that the store talks to
                paused_s = time.monotonic()
                while len(one) < 2 or len(two) < 2:
                    assert time.monotonic() - paused_s < NOTICED_S + SLACK_S
                    with contextlib.suppress(OutcomeUnknown, Unavailable):  # where the paused one was etcd's leader
                        await other.put("/w/1", b"", timeout_s=0.3)
                # What the paused one has been sent by then is not told twice.
                members.go_on(0)
                last = await store.put("/w/2", b"")
                # A write whose outcome is not known may come after it: the paused one, if it was etcd's leader, had
                # been sent it, and passes it on.
                await until(lambda: last in one and last in two)
                assert [seen[: seen.index(last)] for seen in (one, two)] == [sorted({*one[: one.index(last)]})] * 2


@pytest.mark.parametrize("paused", [0, 1, 2])
async def test_a_broker_keeps_its_registration(tmp_path: Path, paused: int) -> None:
    """Whichever of them is etcd's leader, and whichever the broker talks to."""
    keys, lost = Keys("test"), list[str]()

    async def probe() -> None: ...

    with ThreeEtcds(tmp_path) as members:
        await until_standing(members)
        addresses = [*members.addresses[paused:], *members.addresses[:paused]]
        async with Store(addresses) as store:
            broker = BrokerRegistrar(
                store, keys, session_timeout_ms=6_000, probe=probe, on_lost=lambda: lost.append("lost")
            )
            epoch = await broker.register(BrokerRegistration(1, "h:1", "a", "s"))
            renewed_ms = broker.confirmed_until_ms
            await until(lambda: broker.confirmed_until_ms > renewed_ms)
            members.pause(paused)
            for _ in range(3):
                left_ms = broker.confirmed_until_ms
                await until(lambda left_ms=left_ms: broker.confirmed_until_ms > left_ms or lost, 12.0)
            assert not lost
            assert broker.broker_epoch == epoch
            await broker.close()


async def test_a_lone_address_is_connected_to_anew(etcd: LocalEtcd, store: Store, keys: Keys) -> None:
    """Behind it may be several members, of which another answers."""
    start = await store.put(keys.broker(0), b"")
    async with (
        EtcdProxy(etcd.address) as proxy,
        Store([proxy.address]) as proxied,
        watching(proxied, keys.broker_ids, start) as seen,
    ):
        await until(lambda: seen == [start])
        await asyncio.sleep(QUIET_S)
        proxy.swallow_what_stands()
        began_s = time.monotonic()
        second = await store.put(keys.broker(1), b"")
        await until(lambda: seen == [start, second], 20.0)
        assert time.monotonic() - began_s < NOTICED_S + SLACK_S


class SlowEtcd(rpc_pb2_grpc.KVServicer, rpc_pb2_grpc.WatchServicer, health_pb2_grpc.HealthServicer):
    """A member that stands still at first: a write is answered late, and nothing else is at all."""

    def __init__(self) -> None:
        self.watches = 0
        self.moved = asyncio.Event()

    async def Txn(self, request: Any, context: Any) -> Any:
        await self.moved.wait()
        return rpc.TxnResponse(succeeded=True, header=rpc.ResponseHeader(revision=7))

    async def Check(self, request: Any, context: Any) -> Any:
        await asyncio.Event().wait()

    async def Watch(self, requests: Any, context: Any) -> Any:
        self.watches += 1
        if self.watches == 2:
            self.moved.set()
        await asyncio.Event().wait()
        yield


async def test_a_write_on_its_way_keeps_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its outcome would be unknown without need, where etcd is only slow."""
    monkeypatch.setattr(connections, "SILENT_S", 0.2)
    server, etcd = grpc.aio.server(), SlowEtcd()
    rpc_pb2_grpc.add_KVServicer_to_server(etcd, server)
    rpc_pb2_grpc.add_WatchServicer_to_server(etcd, server)
    health_pb2_grpc.add_HealthServicer_to_server(etcd, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        async with Store([address]) as store, watching(store, "/w/", 1):
            assert await store.put("/w/0", b"") == 7
            assert etcd.watches > 1
    finally:
        await server.stop(None)


PROGRAM = """
import asyncio, contextlib, logging, sys
from highwater.metadata.store.store import Store

async def main():
    async with Store([sys.argv[1]]) as store, contextlib.aclosing(store.watch_prefix("/w/", 1)) as batches:
        async for batch in batches:
            for event in batch.events:
                print(event.key, flush=True)

logging.basicConfig(level=logging.INFO, stream=sys.stdout)
asyncio.run(main())
"""


async def test_a_process_that_stood_still_does_not_blame_etcd(own_etcd: LocalEtcd) -> None:
    async with Store([own_etcd.address]) as store:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PROGRAM, own_etcd.address, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        try:
            await store.put("/w/0", b"")
            assert await asyncio.wait_for(process.stdout.readline(), 20.0) == b"/w/0\n"
            for number in range(1, 4):
                os.kill(process.pid, signal.SIGSTOP)
                await asyncio.sleep(2 * NOTICED_S)
                os.kill(process.pid, signal.SIGCONT)
                await asyncio.sleep(NOTICED_S)
                await store.put(f"/w/{number}", b"")
                assert await asyncio.wait_for(process.stdout.readline(), 20.0) == b"/w/%d\n" % number
        finally:
            process.kill()
            await process.wait()
