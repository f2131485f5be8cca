"""Configurations of brokers and the cluster, changed while real processes run: set, effective, still there after
restarts, unset, and as before."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc.aio
import pytest
from replica_manager_cluster import eventually
from running_cluster import HIGHWATER, KEYS, Deployment, deployment, running_cluster

from highwater.cli.local_cluster import LocalCluster
from highwater.client import (
    ConfigResource,
    ConfigSource,
    ConfigValue,
    HighwaterError,
    InvalidRequestError,
    NewTopic,
    Producer,
    RecordTooLargeError,
)
from highwater.configuration.entities import CLUSTER, DEFAULT_BROKER, BrokerEntity
from highwater.log_storage.files import partition_metadata
from highwater.metadata.schema.models import NO_LEADER
from highwater.rpc.connections.channel import open_channel
from highwater.v1 import fetcher_pb2, fetcher_pb2_grpc

VALUE = b"x" * 600
ENOUGH = 20  # records of their own batches, of more than one segment's bytes together
BROKERS, THE_CLUSTER = ConfigResource.broker(), ConfigResource.cluster()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = {"log.retention.check.interval.ms": "300", "num.replica.fetchers": "1", "file.delete.delay.ms": "0"}
    with running_cluster(tmp_path_factory.mktemp("configs"), settings=settings) as made:
        yield made


@pytest.fixture
async def deployed(cluster: LocalCluster) -> AsyncIterator[Deployment]:
    async with deployment(cluster) as found:
        yield found


def segments(deployed: Deployment, topic: str, broker: int) -> int:
    directory: Path = deployed.cluster.settings.data / f"broker-{broker}" / partition_metadata.directory_name(topic, 0)
    return len(list(directory.glob("*.log")))


def fewest(deployed: Deployment, topic: str) -> int:
    return min(segments(deployed, topic, broker) for broker in (1, 2, 3))


async def create(deployed: Deployment, topic: str, replicas: list[int] | None = None) -> None:
    """Without a minimum of its own."""
    (made,) = await deployed.admin.create_topics([NewTopic(topic, assignment=[replicas or [1, 2, 3]])])
    assert made.error is None, made.error


async def produce(deployed: Deployment, topic: str, value: bytes = VALUE, count: int = ENOUGH) -> None:
    async with Producer(deployed.cluster.bootstrap, compression="none", delivery_timeout_ms=20_000) as producer:
        for _ in range(count):
            await producer.send_and_wait(topic, value)


async def value_of(deployed: Deployment, resource: ConfigResource, key: str) -> tuple[str | None, ConfigSource]:
    (entry,) = [each for each in await deployed.admin.describe_configs(resource) if each.key == key]
    return entry.value, entry.source


def restart(deployed: Deployment, *names: str) -> None:
    for name in names:
        deployed.cluster.processes[name].kill()
        deployed.cluster.processes[name].start()


async def test_a_default_of_brokers_reaches_logs_and_outlives_restarts(deployed: Deployment) -> None:
    topic, key, own = "small-segments", "log.segment.bytes", ConfigResource.broker(1)
    await create(deployed, topic)
    await produce(deployed, topic)
    assert fewest(deployed, topic) == 1
    assert await value_of(deployed, own, key) == (str(1 << 30), ConfigSource.DEFAULT)

    await deployed.admin.alter_configs(BROKERS, {key: "1024"})

    async def rolls(than: int) -> bool:
        await produce(deployed, topic, count=5)
        return fewest(deployed, topic) > than

    await eventually(lambda: rolls(3), "all replicas roll by the new default")
    assert await value_of(deployed, own, key) == ("1024", ConfigSource.DYNAMIC_DEFAULT_BROKER)
    of_topic = ConfigResource.topic(topic)
    assert await value_of(deployed, of_topic, "segment.bytes") == ("1024", ConfigSource.DYNAMIC_DEFAULT_BROKER)
    assert await value_of(deployed, of_topic, "segment.ms") == (None, ConfigSource.STATIC)
    assert await value_of(deployed, of_topic, "message.timestamp.type") == ("CreateTime", ConfigSource.DEFAULT)
    described = await deployed.admin.describe_topic_config(topic)
    assert described["segment.bytes"] == ConfigValue("1024", "broker-defaults")
    assert described["leader.replication.throttled.replicas"] == ConfigValue("", "default")

    restart(deployed, "log-storage-1", "replica-manager-2", "fetcher-3", "controller")
    await deployed.registered()
    await deployed.healed(topic)
    most = max(segments(deployed, topic, broker) for broker in (1, 2, 3))
    await eventually(lambda: rolls(most), "they still do")

    await deployed.admin.alter_configs(own, {key: "2048"})
    assert await value_of(deployed, own, key) == ("2048", ConfigSource.DYNAMIC_BROKER)
    assert await value_of(deployed, ConfigResource.broker(2), key) == ("1024", ConfigSource.DYNAMIC_DEFAULT_BROKER)

    await deployed.admin.alter_configs(own, {}, [key])
    await deployed.admin.alter_configs(BROKERS, {}, [key])
    assert await value_of(deployed, own, key) == (str(1 << 30), ConfigSource.DEFAULT)

    async def rests() -> bool:
        before = [segments(deployed, topic, broker) for broker in (1, 2, 3)]
        await produce(deployed, topic)
        return before == [segments(deployed, topic, broker) for broker in (1, 2, 3)]

    await eventually(rests, "nothing rolls any more")
    await deployed.admin.delete_topic(topic)


async def test_a_default_of_retention_lets_go_and_keeps_again(deployed: Deployment) -> None:
    topic = "let-go"
    await create(deployed, topic)
    await deployed.admin.alter_topic_config(topic, {"segment.bytes": "1024"})
    await produce(deployed, topic)
    assert fewest(deployed, topic) > 5
    await deployed.admin.alter_configs(BROKERS, {"log.retention.ms": "1"})

    async def gone() -> bool:
        return all(segments(deployed, topic, broker) <= 2 for broker in (1, 2, 3))

    await eventually(gone, "old segments are let go")
    await deployed.admin.alter_configs(BROKERS, {}, ["log.retention.ms"])

    async def kept() -> bool:
        """The change is written; each broker hears of it by itself, and tells its log-storage."""
        await produce(deployed, topic)
        before = fewest(deployed, topic)
        await asyncio.sleep(1)  # three looks of retention: a state that is to stay
        return fewest(deployed, topic) >= before > 5

    await eventually(kept, "nothing is let go any more")
    await deployed.admin.delete_topic(topic)


async def test_the_minimum_of_the_cluster_counts_where_topics_set_none(deployed: Deployment) -> None:
    await create(deployed, "no-minimum")
    await deployed.create_topic("own-minimum", [[1, 2, 3]], min_insync_replicas=1)
    await produce(deployed, "no-minimum", count=1)
    await deployed.admin.alter_configs(THE_CLUSTER, {"min.insync.replicas": "3"})
    found = await deployed.admin.describe_topic_config("no-minimum")
    assert (found["min.insync.replicas"].value, found["min.insync.replicas"].source) == ("3", "cluster")
    for name in ("replica-manager-3", "fetcher-3"):
        deployed.cluster.processes[name].kill()
    await deployed.left_isr(3, "no-minimum", [0])

    async def refused() -> bool:
        try:
            async with Producer(deployed.cluster.bootstrap, delivery_timeout_ms=1_000) as producer:
                await producer.send_and_wait("no-minimum", VALUE)
        except HighwaterError:
            return True
        return False

    await eventually(refused, "acks=all is refused")
    await produce(deployed, "own-minimum", count=1)
    await deployed.admin.alter_configs(THE_CLUSTER, {}, ["min.insync.replicas"])
    await produce(deployed, "no-minimum", count=1)
    for name in ("replica-manager-3", "fetcher-3"):
        deployed.cluster.processes[name].start()
    await deployed.healed("no-minimum")


async def test_the_largest_message_of_the_cluster(deployed: Deployment) -> None:
    topic = "large"
    await create(deployed, topic)
    await produce(deployed, topic, b"x" * 50_000, 1)
    await deployed.admin.alter_configs(THE_CLUSTER, {"message.max.bytes": "10000"})

    async def refused() -> bool:
        try:
            await produce(deployed, topic, b"x" * 50_000, 1)
        except RecordTooLargeError:
            return True
        return False

    await eventually(refused, "a record that is too large now is refused")
    await deployed.admin.alter_configs(THE_CLUSTER, {}, ["message.max.bytes"])
    await eventually(lambda: _taken(deployed, topic), "it is taken again")


async def _taken(deployed: Deployment, topic: str) -> bool:
    try:
        await produce(deployed, topic, b"x" * 50_000, 1)
    except RecordTooLargeError:
        return False
    return True


async def test_unclean_elections_begin_when_the_cluster_allows_them(deployed: Deployment) -> None:
    topic = "unclean"
    await create(deployed, topic, [1, 2])
    for name in ("replica-manager-2", "fetcher-2"):
        deployed.cluster.processes[name].kill()
    await deployed.left_isr(2, topic, [0])
    await produce(deployed, topic, count=1)
    deployed.cluster.processes["replica-manager-1"].kill()
    for name in ("replica-manager-2", "fetcher-2"):
        deployed.cluster.processes[name].start()

    async def leaderless() -> bool:
        (state,) = await deployed.states(topic)
        return state.leader == NO_LEADER

    await eventually(leaderless, "nobody may lead")
    await deployed.registered(2)
    assert await leaderless()
    await deployed.admin.alter_configs(THE_CLUSTER, {"unclean.leader.election.enable": "true"})

    async def led() -> bool:
        (state,) = await deployed.states(topic)
        return state.leader == 2

    await eventually(led, "broker 2 leads uncleanly")
    await deployed.admin.alter_configs(THE_CLUSTER, {}, ["unclean.leader.election.enable"])
    deployed.cluster.processes["replica-manager-1"].start()
    assert await value_of(deployed, THE_CLUSTER, "unclean.leader.election.enable") == ("false", ConfigSource.DEFAULT)


async def fetchers_of(deployed: Deployment, broker: int) -> set[int]:
    channel = open_channel(deployed.cluster.addresses[f"fetcher-{broker}"])
    try:
        described = await fetcher_pb2_grpc.FetcherStub(channel).Describe(fetcher_pb2.DescribeFetcherRequest())
    except grpc.aio.AioRpcError:
        return set()
    finally:
        await channel.close()
    return {each.fetcher_id for each in described.fetchers}


async def test_the_number_of_fetchers(deployed: Deployment) -> None:
    topic = "many-fetchers"
    await deployed.create_topic(topic, [[1, 2, 3]] * 12)
    await deployed.healed(topic, 12)
    assert await fetchers_of(deployed, 2) == {0}
    await deployed.admin.alter_configs(BROKERS, {"num.replica.fetchers": "3"})

    async def spread(count: int) -> bool:
        return len(await fetchers_of(deployed, 2)) == count

    await eventually(lambda: spread(3), "partitions are fetched by three")
    await produce(deployed, topic, count=3)
    restart(deployed, "fetcher-2")
    await eventually(lambda: spread(3), "a new fetcher is told too")
    await deployed.healed(topic, 12)
    await deployed.admin.alter_configs(BROKERS, {}, ["num.replica.fetchers"])
    await eventually(lambda: spread(1), "one is left")
    await produce(deployed, topic, count=3)
    await deployed.healed(topic, 12)


async def test_the_log_level_of_one_broker(deployed: Deployment) -> None:
    def debugged(name: str) -> int:
        return (deployed.cluster.settings.data / "logs" / f"{name}.log").read_text().count(" DEBUG ")

    before = {name: debugged(name) for name in ("replica-manager-1", "replica-manager-2")}
    await deployed.admin.alter_configs(ConfigResource.broker(1), {"log.level": "DEBUG"})
    await create(deployed, "watched-closely")

    async def more() -> bool:
        return debugged("replica-manager-1") > before["replica-manager-1"]

    await eventually(more, "broker 1 says more")
    assert debugged("replica-manager-2") == before["replica-manager-2"]
    await deployed.admin.alter_configs(ConfigResource.broker(1), {}, ["log.level"])
    assert await value_of(deployed, ConfigResource.broker(1), "log.level") == ("INFO", ConfigSource.DEFAULT)


async def test_what_cannot_be_changed_is_refused_with_the_remedy(deployed: Deployment) -> None:
    for resource, changed, said in (
        (BROKERS, {"log.cleaner.thread": "1"}, "did you mean log.cleaner.threads"),
        (BROKERS, {"log.cleaner.threads": "0"}, "is not between 1 and 64"),
        (BROKERS, {"listeners": "x"}, "READ_ONLY"),
        (BROKERS, {"min.insync.replicas": "2"}, "is of the cluster"),
        (ConfigResource.client("a"), {"log.level": "INFO"}, "unknown configuration"),
        (ConfigResource.client("a\nb"), {"producer_byte_rate": "1"}, "not printable"),
    ):
        with pytest.raises(InvalidRequestError, match=said):
            await deployed.admin.alter_configs(resource, changed)
    await deployed.admin.alter_configs(BROKERS, {"log.cleaner.threads": "2"}, validate_only=True)
    assert await deployed.admin.describe_configs(BROKERS) == []


async def test_damaged_entries_stop_nobody_and_delete_nothing(deployed: Deployment) -> None:
    topic = "beside-damage"
    await create(deployed, topic)
    await deployed.admin.alter_topic_config(topic, {"segment.bytes": "1024"})
    await deployed.admin.alter_configs(BROKERS, {"log.retention.bytes": "500000000"})
    await deployed.admin.alter_configs(ConfigResource.broker(2), {"log.retention.ms": "1"})
    await deployed.store.put(KEYS.entity_config(DEFAULT_BROKER), b"{damaged")
    await deployed.store.put(KEYS.entity_config(CLUSTER), json.dumps({"min.insync.replicas": "some"}).encode())
    await deployed.store.put(KEYS.entity_configs[BrokerEntity(1).kind] + "nonsense", b"{}")
    await deployed.store.put(KEYS.entity_configs[BrokerEntity(1).kind] + "01", b"\xff" * 100_000)

    def named(name: str) -> bool:
        log = (deployed.cluster.settings.data / "logs" / f"{name}.log").read_text()
        return all(f"config/{each}" in log for each in ("brokers/__default", "cluster", "brokers/nonsense"))

    async def all_named() -> bool:
        return all(named(name) for name in ("replica-manager-2", "controller"))

    await eventually(all_named, "the damage is named")
    await produce(deployed, topic)
    before = fewest(deployed, topic)
    await asyncio.sleep(1)  # three looks of retention
    assert fewest(deployed, topic) >= before > 5
    with pytest.raises(InvalidRequestError, match="repair or delete it"):
        await deployed.admin.alter_configs(BROKERS, {"log.roll.ms": "100000"})
    restart(deployed, "replica-manager-2", "controller")
    await deployed.registered()
    await deployed.healed(topic)
    await produce(deployed, topic)
    assert fewest(deployed, topic) >= before
    await deployed.store.put(KEYS.entity_config(DEFAULT_BROKER), b"{}")
    await deployed.store.put(KEYS.entity_config(CLUSTER), b"{}")

    async def gone() -> bool:
        return segments(deployed, topic, 2) <= 2

    await deployed.admin.elect_leaders([(topic, 0)])
    await deployed.admin.alter_configs(BROKERS, {"log.retention.ms": "1"})
    await eventually(gone, "what is readable again counts")
    for resource, key in ((BROKERS, "log.retention.ms"), (ConfigResource.broker(2), "log.retention.ms")):
        await deployed.admin.alter_configs(resource, {}, [key])


async def test_the_commands(deployed: Deployment) -> None:
    bootstrap = deployed.cluster.bootstrap

    async def highwater(*arguments: str) -> str:
        command = (HIGHWATER, "configs", *arguments, "--bootstrap", bootstrap)
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        out, _ = await process.communicate()
        assert process.returncode == 0, arguments
        return out.decode()

    assert "set for broker 1: log.cleaner.threads=3" in await highwater("set", "--broker", "1", "log.cleaner.threads=3")
    described = await highwater("describe", "--broker", "1", "--json")
    found = {each["key"]: each for each in map(json.loads, described.splitlines())}
    assert found["log.cleaner.threads"]["source"] == "DYNAMIC_BROKER"
    assert found["log.retention.check.interval.ms"]["source"] == "STATIC"
    assert found["log.retention.check.interval.ms"]["read_only"] is True
    assert found["queued.max.requests"]["source"] == "DEFAULT"
    assert found["num.replica.fetchers"]["value"] == "1"
    assert "log.cleaner.threads is now 1 (DEFAULT)" in await highwater("unset", "--broker", "1", "log.cleaner.threads")
    await highwater("set", "--user", "anna", "--client", "a/b", "producer_byte_rate=5")
    await highwater("set", "--client-defaults", "consumer_byte_rate=6")
    listed = [json.loads(line) for line in (await highwater("describe", "--users", "--clients", "--json")).splitlines()]
    assert [(each["resource"], each["name"], each["key"], each["value"]) for each in listed] == [
        ("CLIENT", "", "consumer_byte_rate", "6"),
        ("USER_CLIENT", "anna", "producer_byte_rate", "5"),
    ]
    await highwater("unset", "--user", "anna", "--client", "a/b", "producer_byte_rate")
    await highwater("unset", "--client-defaults", "consumer_byte_rate")
    assert (await highwater("describe", "--users", "--clients", "--json")) == ""
