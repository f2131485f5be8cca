"""Throttled replication in a cluster of real processes: who is out of sync is bounded, who is in sync never."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from statistics import median
from time import monotonic

import pytest
from replica_manager_cluster import eventually
from running_cluster import HEAL_S, KEYS, Deployment, deployment, running_cluster

from highwater.cli.local_cluster import LocalCluster
from highwater.client import Producer
from highwater.configuration.entities import BrokerEntity
from highwater.metadata.schema.models import config_to_json
from highwater.rpc.connections.channel import open_channel
from highwater.v1 import fetcher_pb2, fetcher_pb2_grpc

RATE = 1_000_000  # bytes a second
VALUE = bytes(range(256)) * 40
MISSED = 600  # records, which are six seconds at that rate
LAG_S = 6.0
MISSED_BYTES = MISSED * len(VALUE)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = {"replica.lag.time.max.ms": str(int(1000 * LAG_S))}
    with running_cluster(tmp_path_factory.mktemp("throttle"), settings=settings) as running:
        yield running


@pytest.fixture
async def deployed(cluster: LocalCluster) -> AsyncGenerator[Deployment]:
    async with deployment(cluster) as found:
        yield found


async def configure(deployed: Deployment, lag_s: float | None = None, **rates: int) -> None:
    config = {f"{side}.replication.throttled.rate": str(rate) for side, rate in rates.items()}
    if lag_s is not None:
        config["replica.lag.time.max.ms"] = str(int(1000 * lag_s))
    await deployed.store.put(KEYS.entity_config(BrokerEntity(None)), config_to_json(config))


async def fill(deployed: Deployment, topic: str, records: int) -> None:
    async with Producer(deployed.cluster.bootstrap, compression=None, batch_size=100_000) as producer:
        for _ in range(records):
            await producer.send(topic, VALUE, partition=0)
        await producer.flush()


async def missing_broker_3(deployed: Deployment, topic: str, side: str | None, *, away_s: float = LAG_S) -> None:
    config = {} if side is None else {f"{side}.replication.throttled.replicas": "*"}
    await deployed.create_topic(topic, [[1, 2, 3]])
    await deployed.healed(topic)
    await fill(deployed, topic, 1)  # acknowledged once broker 3 has it: who never copied anything is not back, but new
    await deployed.admin.alter_topic_config(topic, config)
    fetcher = deployed.cluster.processes["fetcher-3"]
    fetcher.kill()
    await deployed.left_isr(3, topic, [0])
    await fill(deployed, topic, MISSED)
    await asyncio.sleep(away_s)  # then nobody believes any more that it is about to join again (RULES 5.1)


async def seconds_to_catch_up(deployed: Deployment, topic: str) -> float:
    deployed.cluster.processes["fetcher-3"].start()
    return await deployed.healed(topic)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("side", [pytest.param("leader", marks=pytest.mark.long), "follower"])
async def test_a_follower_that_is_behind_catches_up_at_the_rate(deployed: Deployment, side: str) -> None:
    topic = f"behind-{side}"
    await missing_broker_3(deployed, topic, side)
    await configure(deployed, **{side: RATE})
    try:
        catching_up = asyncio.create_task(seconds_to_catch_up(deployed, topic))
        # Who is in sync is not slowed meanwhile, by the same leader and of the same partition.
        async with Producer(deployed.cluster.bootstrap, compression=None) as producer:
            latencies = await produce_latencies(producer, topic, lambda: not catching_up.done())
            took = await catching_up
            unthrottled = await produce_latencies(producer, topic, lambda: True)
    finally:
        await configure(deployed)
    print(f"{side}: {took:.1f} s for {MISSED_BYTES / RATE:.1f} s, slowest produce {max(latencies):.3f} s")
    assert 0.75 < took / (MISSED_BYTES / RATE) < 3
    assert max(latencies) < took / 2, "no commit waits for it"
    # A machine that is slow is so afterwards, too.
    assert median(latencies) < max(0.5, 2 * median(unthrottled)), "who is in sync is slowed"


async def produce_latencies(producer: Producer, topic: str, goes_on: Callable[[], bool]) -> list[float]:
    """Of three seconds at most, in seconds."""
    begun, latencies = monotonic(), list[float]()
    while goes_on() and monotonic() - begun < 3:
        sent = monotonic()
        await producer.send_and_wait(topic, b"in sync", partition=0)
        latencies.append(monotonic() - sent)
    return latencies


@pytest.mark.timeout(120)
@pytest.mark.parametrize("side", ["leader", "follower"])
async def test_commits_do_not_wait_for_a_throttle(deployed: Deployment, side: str) -> None:
    """A follower that is back soon counts for the high watermark at once (RULES 5.1), and is not held back then. Soon
    is as long as a busy machine may take to start it; at the rate it would take ten minutes."""
    topic = f"soon-{side}"
    try:
        await configure(deployed, HEAL_S)
        await missing_broker_3(deployed, topic, side, away_s=0)
        await configure(deployed, HEAL_S, **{side: RATE // 100})
        await seconds_to_catch_up(deployed, topic)
    finally:
        await configure(deployed)


@pytest.mark.timeout(60)
async def test_other_topics_and_no_rate_are_not_throttled(deployed: Deployment) -> None:
    await missing_broker_3(deployed, "free", None)
    await configure(deployed, leader=RATE // 10, follower=RATE // 10)
    try:
        await seconds_to_catch_up(deployed, "free")  # at the rate it would take twice as long as is waited for
    finally:
        await configure(deployed)


@pytest.mark.timeout(120)
async def test_set_throttle_goes_before_the_configuration(deployed: Deployment) -> None:
    await missing_broker_3(deployed, "given", "follower")
    await configure(deployed, follower=RATE // 100)
    deployed.cluster.processes["fetcher-3"].start()
    try:
        async with open_channel(deployed.cluster._inner_address("3-fetcher")) as channel:
            stub = fetcher_pb2_grpc.FetcherStub(channel)
            refused = await stub.SetThrottle(fetcher_pb2.SetThrottleRequest(bytes_per_second=-1), wait_for_ready=True)
            assert refused.error.message
            await asyncio.sleep(1.0)
            assert len((await deployed.states("given"))[0].isr) == 2
            given = await stub.SetThrottle(fetcher_pb2.SetThrottleRequest(bytes_per_second=1 << 40))
            assert not given.HasField("error")

            async def caught_up() -> bool:
                return len((await deployed.states("given"))[0].isr) == 3

            await eventually(caught_up, "it catches up at the rate that was given", 20)
    finally:
        await configure(deployed)
