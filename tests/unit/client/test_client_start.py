"""Clients that are started before their brokers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest
from cluster_double import ClusterDouble

from highwater.client import Admin, Consumer, InvalidRequestError, NetworkError, Producer

Client = Admin | Consumer | Producer
CLIENTS: list[Callable[[str, float], Client]] = [
    lambda address, max_block_ms: Producer(address, max_block_ms=max_block_ms),
    lambda address, max_block_ms: Consumer("t", bootstrap=address, max_block_ms=max_block_ms),
    lambda address, max_block_ms: Admin(address, max_block_ms=max_block_ms),
]
NAMES = ["producer", "consumer", "admin"]


def free_address() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"


@pytest.mark.parametrize(
    ("bootstrap", "sentence"),
    [
        ("127.0.0.1:1", r"\(tried 127.0.0.1:1\): nothing listens there; is the cluster up\?"),
        ("no.such.name.invalid:9092", r"\(tried .*\): the name cannot be resolved; is it spelt right\?"),
        ("unix:/no/such/socket", r"\(tried .*\): there is no such socket; is the cluster up\?"),
        (
            "127.0.0.1:1,no.such.name.invalid:9092",
            r"127.0.0.1:1: nothing listens there; no.such.name.invalid:9092: the name cannot be resolved; is the",
        ),
    ],
)
async def test_why_no_broker_could_be_reached(bootstrap: str, sentence: str) -> None:
    with pytest.raises(NetworkError, match=sentence):
        await Admin(bootstrap, max_block_ms=0).start()


@pytest.mark.parametrize(
    ("bootstrap", "sentence"),
    [
        ("", "no bootstrap address was given"),
        ("localhost", "is neither host:port nor unix:/path"),
        (":9092", "is neither host:port"),
        ("localhost:ninety", "is neither host:port"),
        ("localhost:0", "has the port 0; ports go from 1 to 65535"),
        ("localhost:99999", "has the port 99999"),
        ("http://localhost:9092", "is a URL; write host:port, without http://"),
        ("::1:9092", r"without brackets; write \[::1\]:9092"),
        ("[::1:9092", "without brackets"),
        ("local host:9092", "a character that no host's name has"),
        ("localhost/x:9092", "a character that no host's name has"),
    ],
)
def test_an_address_that_can_be_none_is_refused_at_once(bootstrap: str, sentence: str) -> None:
    with pytest.raises(InvalidRequestError, match=sentence):
        Producer(bootstrap)
    assert Producer(["[::1]:9092", "unix:/run/broker.sock", "a-b.c_d:1"])


async def told(caplog: pytest.LogCaptureFixture, times: int) -> None:
    await ClusterDouble().until(lambda: caplog.text.count("trying for another") >= times, 10)


@pytest.mark.parametrize("client", CLIENTS, ids=NAMES)
async def test_start_waits_for_the_first_broker_and_says_so(
    client: Callable[[str, float], Client], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("highwater.client.cluster.cluster.STILL_TRYING_EVERY_S", 0.3)
    address = free_address()
    starting = asyncio.create_task(client(address, 30_000).start())
    await told(caplog, 2)
    assert (
        f"no broker could be reached (tried {address}): nothing listens there; is the cluster up?; trying for another"
        in caplog.text
    )
    assert not starting.done()
    cluster = ClusterDouble()
    cluster.create("t")
    await cluster.brokers[1].start(address)
    try:
        async with asyncio.timeout(10):
            started = await starting
        await started.stop()
    finally:
        await cluster.brokers[1].stop()


@pytest.mark.parametrize("client", CLIENTS, ids=NAMES)
async def test_a_start_that_gave_up_may_be_repeated(
    client: Callable[[str, float], Client], caplog: pytest.LogCaptureFixture
) -> None:
    address = free_address()
    made = client(address, 300)
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(NetworkError, match="is the cluster up"):
        await made.start()
    assert 0.3 <= loop.time() - began < 5
    assert caplog.text.count("trying for another") == 1
    cluster = ClusterDouble()
    cluster.create("t")
    await cluster.brokers[1].start(address)
    try:
        async with asyncio.timeout(10):
            await made.start()
        await made.stop()
    finally:
        await cluster.brokers[1].stop()


async def test_a_start_that_is_cancelled_leaves_nothing_behind() -> None:
    producer = Producer(free_address())
    before = asyncio.all_tasks()
    starting = asyncio.create_task(producer.start())
    await ClusterDouble().until(lambda: any(producer._cluster._connections))
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert asyncio.all_tasks() == before
