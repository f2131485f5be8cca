"""A member of etcd that says goodbye and goes: its streams live on until its connection is replaced, and are then
cancelled, which is no cancellation of who waits for them (RULES 8.8)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest
from aetcd import rpc

from highwater.metadata.leases.controller_election import ControllerElection
from highwater.metadata.leases.leased_key import LeasedKey
from highwater.metadata.schema.keys import Keys
from highwater.metadata.store.connections import Member
from highwater.metadata.store.etcd_errors import OutcomeUnknown
from highwater.metadata.store.store import Store
from highwater.metadata.store.transactions import Entry, Put, WatchBatch
from highwater.rpc.process.local_process import free_ports

_GRACE_S = 20.0
_SOON_S = 10.0


class FakeEtcd:
    """Knows nothing. The first one answers no call and has no event; the one after it does."""

    def __init__(self, address: str, *, answers: bool) -> None:
        self._address = address
        self._answers = answers
        self.healthy = True  # it gives signs of life
        self.called = asyncio.Event()

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[grpc.aio.Server]:
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
        header = rpc.ResponseHeader(revision=7)
        kv = {
            "Range": unary(self._unary(rpc.RangeResponse(header=header)), rpc.RangeRequest.FromString, _bytes),
            "Txn": unary(self._unary(rpc.TxnResponse(header=header)), rpc.TxnRequest.FromString, _bytes),
        }
        watch = {"Watch": stream(self._watch, rpc.WatchRequest.FromString, _bytes)}
        health = {"Check": unary(self._healthy, lambda data: data, lambda data: data)}
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler("etcdserverpb.KV", kv),
                grpc.method_handlers_generic_handler("etcdserverpb.Watch", watch),
                grpc.method_handlers_generic_handler("grpc.health.v1.Health", health),
            )
        )
        assert server.add_insecure_port(self._address)
        await server.start()
        try:
            yield server
        finally:
            await server.stop(0)

    def _unary(self, response: Any) -> Callable[[Any, Any], Awaitable[Any]]:
        async def answer(request: Any, context: Any) -> Any:
            self.called.set()
            if not self._answers:
                await asyncio.sleep(_GRACE_S)
            return response

        return answer

    async def _healthy(self, request: bytes, context: Any) -> bytes:
        self.called.set()
        if not self.healthy:
            await asyncio.sleep(_GRACE_S)
        return b"\x08\x01"

    async def _watch(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        async for _ in requests:
            yield rpc.WatchResponse(header=rpc.ResponseHeader(revision=7), created=True)
            self.called.set()
            if self._answers:
                pair = rpc.KeyValue(key=b"/k", value=b"v", create_revision=8, mod_revision=8)
                yield rpc.WatchResponse(header=rpc.ResponseHeader(revision=8), events=[rpc.Event(kv=pair)])
            await asyncio.sleep(_GRACE_S)


def _bytes(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


async def first_batch(store: Store) -> WatchBatch:
    async with contextlib.aclosing(store.watch("/k", 8)) as batches:
        return await anext(batches)


async def after_a_goodbye(address: str, store: Store, work: Awaitable[Any]) -> Any:
    """The outcome of work that is under way when its member goes. Another one is there three seconds later."""
    gone = FakeEtcd(address, answers=False)
    async with gone.serving() as server:
        working = asyncio.ensure_future(work)
        await asyncio.wait_for(gone.called.wait(), _SOON_S)
        stopping = asyncio.create_task(server.stop(_GRACE_S))  # no new connections; what is under way may end
        with contextlib.suppress(Exception):
            await store.get("/other", timeout_s=4.0)  # looks for a connection, and replaces the one that cannot be had
        async with FakeEtcd(address, answers=True).serving():
            try:
                return await asyncio.wait_for(working, _SOON_S)
            finally:
                stopping.cancel()


@pytest.fixture
async def gone_store() -> AsyncIterator[tuple[str, Store]]:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    async with Store([address]) as store:
        yield address, store


async def test_a_watch_goes_on(gone_store: tuple[str, Store]) -> None:
    address, store = gone_store
    batch = await after_a_goodbye(address, store, first_batch(store))
    assert [(event.key, event.revision) for event in batch.events] == [("/k", 8)]


async def test_a_read_is_asked_again(gone_store: tuple[str, Store]) -> None:
    address, store = gone_store
    assert await after_a_goodbye(address, store, store.get("/k", timeout_s=15.0)) is None


async def test_a_write_is_one_of_unknown_outcome(gone_store: tuple[str, Store]) -> None:
    address, store = gone_store
    with pytest.raises(OutcomeUnknown, match="was replaced"):
        await after_a_goodbye(address, store, store.txn((), (Put("/k", b""),), timeout_s=15.0))


async def test_who_asks_for_signs_of_life_goes_on_asking() -> None:
    """Otherwise the watches over the next connection would hang on a member that is never asked."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    etcd, member = FakeEtcd(address, answers=True), Member(address, None)
    etcd.healthy = False
    async with etcd.serving():
        asking = asyncio.create_task(member.answers())
        await asyncio.wait_for(etcd.called.wait(), _SOON_S)
        member._link.replace()
        assert await asyncio.wait_for(asking, _SOON_S)
        await member.close()


async def test_a_term_whose_key_is_held_no_more_ends_with_a_word(caplog: pytest.LogCaptureFixture) -> None:
    """By whatever was cancelled below it."""

    class Held(LeasedKey):
        async def hold(self) -> Entry | None:
            raise asyncio.CancelledError

    store: Any = None
    election = ControllerElection(
        store, Keys("c"), controller_id=1, address="c:1", incarnation="i", session_timeout_ms=1_000
    )
    election._holding = asyncio.create_task(election._hold(Held(store, "/k", session_timeout_ms=1_000)))
    await asyncio.wait_for(election.lost(), _SOON_S)
    assert "the controller key cannot be held" in caplog.text
