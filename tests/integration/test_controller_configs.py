"""AlterConfigs and DescribeConfigs of brokers, clients, users and the cluster, at the controller."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from controller_world import World, acts, create
from fake_broker import FakeBroker, eventually

from highwater.configuration.entities import (
    CLUSTER,
    DEFAULT_BROKER,
    BrokerEntity,
    ClientEntity,
    ConfigEntity,
    EntityKind,
    UserClientEntity,
)
from highwater.errors import ErrorCode
from highwater.metadata.schema import config_view
from highwater.metadata.state import dynamic_configs
from highwater.metadata.state.dynamic_configs import read_entity_config
from highwater.rpc.errors import from_proto
from highwater.v1 import common_pb2, controller_pb2, replica_control_pb2

pytestmark = pytest.mark.alone

TYPES = {
    "topic": controller_pb2.CONFIG_RESOURCE_TYPE_TOPIC,
    "broker": controller_pb2.CONFIG_RESOURCE_TYPE_BROKER,
    "client": controller_pb2.CONFIG_RESOURCE_TYPE_CLIENT,
    "user": controller_pb2.CONFIG_RESOURCE_TYPE_USER,
    "cluster": controller_pb2.CONFIG_RESOURCE_TYPE_CLUSTER,
    "pair": controller_pb2.CONFIG_RESOURCE_TYPE_USER_CLIENT_PAIR,
}


def resource(kind: str, name: str = "", client_id: str = "") -> controller_pb2.ConfigResource:
    return controller_pb2.ConfigResource(type=TYPES[kind], name=name, client_id=client_id)


async def alter(stub: Any, what: controller_pb2.ConfigResource, **more: Any) -> tuple[ErrorCode, str]:
    answer = await stub.AlterConfigs(controller_pb2.AlterConfigsRequest(resource=what, **more))
    return from_proto(answer.error), answer.error.message


async def describe(stub: Any, *what: controller_pb2.ConfigResource, **more: Any) -> list[controller_pb2.ResourceConfig]:
    answer = await stub.DescribeConfigs(controller_pb2.DescribeConfigsRequest(resources=what, **more))
    assert from_proto(answer.error) is ErrorCode.NONE, answer.error
    return list(answer.configs)


def entries(config: controller_pb2.ResourceConfig) -> dict[str, tuple[str, str, bool]]:
    sources = controller_pb2.ConfigSource
    return {
        each.key: (each.value, sources.Name(each.config_source).removeprefix("CONFIG_SOURCE_"), each.read_only)
        for each in config.entries
    }


async def in_etcd(world: World, entity: ConfigEntity) -> dict[str, str]:
    return dict((await read_entity_config(world.store, world.keys, entity)).config)


@pytest.mark.parametrize(
    ("what", "entity", "key"),
    [
        (resource("broker", "7"), BrokerEntity(7), "log.cleaner.threads"),
        (resource("broker"), DEFAULT_BROKER, "log.cleaner.threads"),
        (resource("client", "a/b"), ClientEntity("a/b"), "producer_byte_rate"),
        (resource("pair", "anna"), UserClientEntity("anna", None), "consumer_byte_rate"),
        (resource("cluster"), CLUSTER, "min.insync.replicas"),
    ],
)
async def test_keys_are_set_and_given_back(
    world: World, what: controller_pb2.ConfigResource, entity: ConfigEntity, key: str
) -> None:
    stub = await world.acting()
    assert await alter(stub, what, set={key: "3"}, validate_only=True) == (ErrorCode.NONE, "")
    assert await in_etcd(world, entity) == {}
    assert await alter(stub, what, set={key: "3"}) == (ErrorCode.NONE, "")
    assert await in_etcd(world, entity) == {key: "3"}
    (described,) = await describe(stub, what)
    assert entries(described)[key][0] == "3"
    assert await alter(stub, what, set={key: "4"}) == (ErrorCode.NONE, "")
    assert await in_etcd(world, entity) == {key: "4"}
    assert await alter(stub, what, unset=[key]) == (ErrorCode.NONE, "")
    assert await world.store.get(world.keys.entity_config(entity)) is None
    assert await alter(stub, what, unset=[key]) == (ErrorCode.NONE, "")


async def test_what_is_wrong_is_refused_and_changes_nothing(world: World) -> None:
    stub = await world.acting()
    for what, more, error, words in (
        (resource("broker", "x"), {"set": {"log.roll.ms": "5"}}, ErrorCode.INVALID_REQUEST, "no broker id"),
        (resource("broker", "1"), {"set": {"log.rol.ms": "5"}}, ErrorCode.INVALID_CONFIG, "did you mean log.roll.ms"),
        (resource("broker", "1"), {"set": {"log.roll.ms": "0"}}, ErrorCode.INVALID_CONFIG, "is not between 1 and"),
        (resource("broker", "1"), {"unset": ["listeners"]}, ErrorCode.INVALID_CONFIG, "READ_ONLY"),
        (
            resource("broker", "1"),
            {"set": {"log.roll.ms": "5"}, "unset": ["log.roll.ms"]},
            ErrorCode.INVALID_REQUEST,
            "both set and given back",
        ),
        (resource("cluster", "mine"), {"set": {"num.partitions": "5"}}, ErrorCode.INVALID_REQUEST, "has no name"),
        (resource("user", "a" * 256), {"set": {"producer_byte_rate": "5"}}, ErrorCode.INVALID_REQUEST, "255"),
        (resource("pair", "a", "\n"), {"set": {"producer_byte_rate": "5"}}, ErrorCode.INVALID_REQUEST, "printable"),
    ):
        assert (await alter(stub, what, **more))[0] is error, what
        assert words in (await alter(stub, what, **more))[1]
    for prefix in world.keys.entity_configs.values():
        assert not await world.store.has_prefix(prefix)


async def test_two_at_once_lose_nothing_of_each_other(world: World) -> None:
    stub = await world.acting()
    keys = ["log.roll.ms", "log.retention.ms", "log.segment.bytes", "file.delete.delay.ms", "log.scrub.interval.ms"]
    answers = await asyncio.gather(*(alter(stub, resource("broker"), set={key: "5000"}) for key in keys))
    assert answers == [(ErrorCode.NONE, "")] * len(keys)
    assert await in_etcd(world, DEFAULT_BROKER) == dict.fromkeys(keys, "5000")


async def test_a_write_that_comes_between_is_not_overwritten(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    stub = await world.acting()
    key = world.keys.entity_config(DEFAULT_BROKER)
    read, done = dynamic_configs.read_entity_config, []

    async def read_and_be_late(*arguments: Any) -> Any:
        found = await read(*arguments)
        if not done:
            done.append(True)
            await world.store.put(key, json.dumps({"log.roll.ms": "7"}).encode())
        return found

    monkeypatch.setattr("highwater.controller.administration.entity_configuration.read_entity_config", read_and_be_late)
    assert await alter(stub, resource("broker"), set={"log.segment.bytes": "5000"}) == (ErrorCode.NONE, "")
    assert await in_etcd(world, DEFAULT_BROKER) == {"log.roll.ms": "7", "log.segment.bytes": "5000"}


async def test_a_controller_that_does_not_act_sends_elsewhere(world: World) -> None:
    await world.acting()
    idle = await world.controller(1)
    error, _ = await alter(world.stub(idle.address), resource("broker"), set={"log.roll.ms": "5"})
    assert error is ErrorCode.NOT_CONTROLLER


async def test_there_are_only_so_many(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("highwater.controller.administration.entity_configuration.MOST_ENTITIES", 2)
    monkeypatch.setattr(config_view, "MOST_ENTITIES", 2)
    stub = await world.acting()
    for name in ("a", "b"):
        assert (await alter(stub, resource("client", name), set={"producer_byte_rate": "5"}))[0] is ErrorCode.NONE
    error, message = await alter(stub, resource("client", "c"), set={"producer_byte_rate": "5"})
    assert (error, message) == (
        ErrorCode.POLICY_VIOLATION,
        "2 clients have a configuration, 2 are the most: unset some",
    )
    assert (await alter(stub, resource("client", "a"), unset=["producer_byte_rate"]))[0] is ErrorCode.NONE
    assert (await alter(stub, resource("client", "c"), set={"producer_byte_rate": "5"}))[0] is ErrorCode.NONE


async def test_a_damaged_entry_is_not_written_over(world: World) -> None:
    stub = await world.acting()
    await world.store.put(world.keys.entity_config(CLUSTER), b"{damaged")
    error, message = await alter(stub, resource("cluster"), set={"num.partitions": "5"})
    assert error is ErrorCode.INVALID_CONFIG
    assert "repair or delete it" in message
    (described,) = await describe(stub, resource("cluster"))
    assert entries(described)["num.partitions"] == ("2", "STATIC", False)
    await eventually(lambda: world.controllers[0].configs.unreadable == 1, "it is counted")


async def test_the_cluster_is_described_with_what_is_behind_it(world: World) -> None:
    stub = await world.acting()
    await alter(stub, resource("cluster"), set={"min.insync.replicas": "3"})
    (described,) = await describe(stub, resource("cluster"))
    found = entries(described)
    assert found["min.insync.replicas"] == ("3", "CLUSTER", False)
    assert found["num.partitions"] == ("2", "STATIC", False)
    assert found["unclean.leader.election.enable"] == ("false", "DEFAULT", False)
    assert found["message.max.bytes"] == ("", "STATIC", False)


async def test_all_of_a_kind_are_listed(world: World) -> None:
    stub = await world.acting()
    for what in (resource("client", "x"), resource("user", "anna"), resource("pair", "anna", "x"), resource("pair")):
        await alter(stub, what, set={"producer_byte_rate": "5"})
    kinds = [resource("client"), resource("user"), resource("pair")]
    found = await describe(stub, *kinds, all_of_kind=True)
    assert sorted((each.resource.type, each.resource.name, each.resource.client_id) for each in found) == [
        (TYPES["client"], "x", ""),
        (TYPES["user"], "anna", ""),
        (TYPES["pair"], "", ""),
        (TYPES["pair"], "anna", "x"),
    ]
    answer = await stub.DescribeConfigs(
        controller_pb2.DescribeConfigsRequest(resources=[resource("broker")], all_of_kind=True)
    )
    assert from_proto(answer.error) is ErrorCode.INVALID_REQUEST


class Described(FakeBroker):
    """One that says what it was started with."""

    async def DescribeBrokerConfig(self, request: Any, context: Any) -> Any:
        made = common_pb2.StaticSetting
        return replica_control_pb2.DescribeBrokerConfigResponse(
            settings=[
                made(key="log.roll.ms", value="9", is_default=True, service="log-storage"),
                made(key="log.retention.ms", value="8", service="log-storage"),
                made(key="log.level", value="INFO", is_default=True, service="log-storage"),
                made(key="log.level", value="DEBUG", service="fetcher"),
                made(key="broker.id", value="1", service="log-storage"),
                made(key="broker.id", value="1", service="fetcher"),
                made(key="min.insync.replicas", value="1", is_default=True, service="replica-manager"),
            ]
        )


async def test_a_broker_is_described_level_by_level(world: World) -> None:
    stub = await world.acting()
    broker = world.brokers[1] = Described(1, world.store, world.keys)
    await broker.start()
    await eventually(lambda: broker.live == {1}, "it is told of")
    await alter(stub, resource("broker"), set={"log.roll.ms": "5", "leader.replication.throttled.rate": "7"})
    await alter(stub, resource("broker", "1"), set={"log.roll.ms": "6"})
    await alter(stub, resource("cluster"), set={"min.insync.replicas": "2"})
    (described,) = await describe(stub, resource("broker", "1"))
    assert [
        (each.key, each.value, controller_pb2.ConfigSource.Name(each.config_source)[14:], each.read_only, each.service)
        for each in described.entries
    ] == [
        ("broker.id", "1", "STATIC", True, ""),
        ("leader.replication.throttled.rate", "7", "DYNAMIC_DEFAULT_BROKER", False, ""),
        ("log.level", "DEBUG", "STATIC", False, "fetcher"),
        ("log.level", "INFO", "DEFAULT", False, "log-storage"),
        ("log.retention.ms", "8", "STATIC", False, ""),
        ("log.roll.ms", "6", "DYNAMIC_BROKER", False, ""),
        ("min.insync.replicas", "2", "CLUSTER", False, ""),
    ]
    await alter(stub, resource("broker", "1"), set={"log.level": "ERROR"})
    (described,) = await describe(stub, resource("broker", "1"))
    assert entries(described)["log.level"] == ("ERROR", "DYNAMIC_BROKER", False)
    assert sum(each.key == "log.level" for each in described.entries) == 1


async def test_a_broker_that_does_not_answer_is_described_by_what_etcd_has(world: World) -> None:
    stub = await world.cluster(1)
    await alter(stub, resource("broker", "1"), set={"log.roll.ms": "6"})
    for broker, words in (("1", "does not say"), ("5", "is not registered")):
        (described,) = await describe(stub, resource("broker", broker))
        assert from_proto(described.error) is ErrorCode.NETWORK_EXCEPTION
        assert words in described.error.message
    (described,) = await describe(stub, resource("broker", "1"))
    assert entries(described) == {"log.roll.ms": ("6", "DYNAMIC_BROKER", False)}
    too_many = controller_pb2.DescribeConfigsRequest(resources=[resource("broker", str(n)) for n in range(101)])
    assert from_proto((await stub.DescribeConfigs(too_many)).error) is ErrorCode.INVALID_REQUEST


async def test_a_topic_shows_the_clusters_default(world: World) -> None:
    stub = await world.cluster(2)
    await create(stub, "t", 1, 2)
    await alter(stub, resource("cluster"), set={"message.max.bytes": "5000", "log.cleanup.policy": "compact"})
    (described,) = await describe(stub, resource("topic", "t"))
    found = entries(described)
    assert found["max.message.bytes"] == ("5000", "CLUSTER", False)
    assert found["cleanup.policy"] == ("compact", "CLUSTER", False)
    assert found["min.insync.replicas"] == ("2", "STATIC", False)
    assert found["segment.bytes"] == ("", "STATIC", False)


async def test_a_topic_shows_the_default_of_brokers_and_what_nothing_sets(world: World) -> None:
    stub = await world.cluster(2)
    await create(stub, "t", 1, 2)
    await alter(stub, resource("broker"), set={"log.retention.ms": "5000"})
    await alter(stub, resource("broker", "1"), set={"log.roll.ms": "7000"})
    (described,) = await describe(stub, resource("topic", "t"))
    found = entries(described)
    assert found["retention.ms"] == ("5000", "DYNAMIC_DEFAULT_BROKER", False)
    assert found["segment.ms"] == ("", "STATIC", False)
    assert found["payload.format"] == ("any", "DEFAULT", False)
    assert found["message.timestamp.type"] == ("CreateTime", "DEFAULT", False)
    assert found["message.timestamp.after.max.ms"] == ("3600000", "DEFAULT", False)
    assert found["leader.replication.throttled.replicas"] == ("", "DEFAULT", False)
    words = {each.key: (each.source, each.is_default) for each in described.entries}
    assert words["retention.ms"] == ("broker-defaults", True)
    assert words["payload.format"] == ("default", True)
    assert words["segment.ms"] == ("brokers", True)
    await alter(stub, resource("broker"), unset=["log.retention.ms"])
    (described,) = await describe(stub, resource("topic", "t"))
    assert entries(described)["retention.ms"] == ("", "STATIC", False)


async def test_defaults_of_new_topics_and_of_elections(world: World) -> None:
    stub = await world.cluster(3)
    await alter(stub, resource("cluster"), set={"num.partitions": "3", "default.replication.factor": "3"})
    response = await stub.CreateTopics(
        controller_pb2.CreateTopicsRequest(
            topics=[controller_pb2.NewTopic(topic="t", partitions=-1, replication_factor=-1)], timeout_ms=10_000
        )
    )
    assert (response.results[0].partitions, response.results[0].replication_factor) == (3, 3)
    cluster = world.controllers[0].active_controller
    assert cluster is not None
    assert cluster.cluster._defaults.min_insync_replicas == 2
    await alter(stub, resource("cluster"), set={"min.insync.replicas": "3", "unclean.leader.election.enable": "true"})
    await eventually(lambda: cluster.cluster._defaults.min_insync_replicas == 3, "elections go by it")
    assert cluster.cluster._defaults.unclean_leader_election_enable
    # A controller that is elected later begins with it.
    await world.controllers.pop().stop()
    after = await world.controller(1)
    await acts(after)
    assert after.active_controller is not None
    assert after.active_controller.cluster._defaults.min_insync_replicas == 3
    again = world.stub(after.address)
    await alter(again, resource("cluster"), unset=["min.insync.replicas", "unclean.leader.election.enable"])
    await eventually(
        lambda: (
            after.active_controller is not None and after.active_controller.cluster._defaults.min_insync_replicas == 2
        ),
        "what it was started with counts again",
    )


async def test_the_rebalancing_of_leaders_begins_and_ends(world: World) -> None:
    stub = await world.acting()
    active = world.controllers[0].active_controller
    assert active is not None
    await alter(stub, resource("cluster"), set={"leader.imbalance.check.interval.seconds": "1"})
    await eventually(lambda: active._rebalancing is not None and active._rebalancing.interval_s == 1, "sooner")
    rebalanced = []
    active.cluster.rebalance = lambda percent: rebalanced.append(percent) or []  # type: ignore[method-assign,func-returns-value]
    await eventually(lambda: rebalanced == [10], "it looks after a second")
    await alter(
        stub,
        resource("cluster"),
        set={"auto.leader.rebalance.enable": "false", "leader.imbalance.per.broker.percentage": "3"},
    )
    await eventually(lambda: active._rebalancing is None, "never")
    await alter(stub, resource("cluster"), unset=["auto.leader.rebalance.enable"])
    await eventually(lambda: rebalanced[-1] == 3, "again, by the other share")


async def test_ten_thousand_clients_are_listed(world: World) -> None:
    """What a controller or broker that starts finds; every one is known, and a change is one event."""
    from highwater.metadata.store.transactions import Put

    clients = [ClientEntity(f"client-{number}") for number in range(10_000)]
    value = b'{"producer_byte_rate":"1048576"}'
    for first in range(0, len(clients), 100):
        await world.store.txn((), [Put(world.keys.entity_config(each), value) for each in clients[first : first + 100]])
    stub = await world.acting()
    service = world.controllers[0]
    assert len(service.configs.view.entities(EntityKind.CLIENTS)) == 10_000
    heard: list[ConfigEntity] = []

    class Told:
        def on_change(self, entity: ConfigEntity, config: object) -> None:
            heard.append(entity)

    service.configs.view.subscribe(Told(), [EntityKind.CLIENTS])
    assert len(heard) == 10_000
    heard.clear()
    await alter(stub, resource("client", "client-7"), set={"producer_byte_rate": "5"})
    assert heard == [ClientEntity("client-7")]
    found = await describe(stub, resource("client"), all_of_kind=True)
    assert len(found) == 10_000
