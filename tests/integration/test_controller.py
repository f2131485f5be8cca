"""The controller against a real etcd, with brokers that are doubles at the gRPC edge."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import grpc
import grpc.aio
import pytest
from fake_broker import FakeBroker, eventually, eventually_async

from highwater.controller.service import ControllerService
from highwater.errors import ErrorCode
from highwater.metadata.controller_election import ControllerElection
from highwater.metadata.controller_term import ControllerTerm
from highwater.metadata.etcd_errors import ControllerDeposed
from highwater.metadata.keys import Keys
from highwater.metadata.local import LocalEtcd
from highwater.metadata.models import PartitionKey, PartitionState, TopicAssignment
from highwater.metadata.partition_states import IsrChange, IsrWriter, StateWrite, read_states, write_states
from highwater.metadata.store import Store
from highwater.metadata.topics import change_assignment, create_topic, mark_for_deletion, read_topics
from highwater.rpc.channel import open_channel
from highwater.rpc.errors import from_proto
from highwater.rpc.settings import ControllerSettings
from highwater.v1 import common_pb2, controller_pb2, controller_pb2_grpc


class World:
    """Controllers and brokers of one cluster, stopped at the end."""

    def __init__(self, etcd: LocalEtcd, store: Store, keys: Keys) -> None:
        self.etcd = etcd
        self.store = store
        self.keys = keys
        self.controllers: list[ControllerService] = []
        self.brokers: dict[int, FakeBroker] = {}
        self.channels: list[grpc.aio.Channel] = []
        self.closing: list[Callable[[], Awaitable[None]]] = []

    def settings(self, controller_id: int = 0) -> ControllerSettings:
        return ControllerSettings(
            controller_id=controller_id,
            cluster=self.keys.cluster,
            listen=["127.0.0.1:0"],
            advertised_listener="127.0.0.1:0",
            etcd=[self.etcd.address],
            num_partitions=2,
            default_replication_factor=2,
            min_insync_replicas=2,
            controller_session_timeout_ms=1_000,
        )

    async def controller(self, controller_id: int = 0) -> ControllerService:
        service = ControllerService(self.settings(controller_id), isr_quiet_ms=50)
        self.controllers.append(service)
        await service.start()
        return service

    async def acting(self, controller_id: int = 0) -> controller_pb2_grpc.ControllerAsyncStub:
        service = await self.controller(controller_id)
        await acts(service)
        return self.stub(service.address)

    async def broker(self, broker_id: int) -> FakeBroker:
        broker = FakeBroker(broker_id, self.store, self.keys)
        self.brokers[broker_id] = broker
        await broker.start()
        return broker

    async def cluster(self, brokers: int = 3) -> controller_pb2_grpc.ControllerAsyncStub:
        stub = await self.acting()
        for broker_id in range(1, brokers + 1):
            await self.broker(broker_id)
        everyone = set(self.brokers)
        await eventually(lambda: all(each.live == everyone for each in self.brokers.values()), "all brokers seen")
        return stub

    def stub(self, address: str) -> controller_pb2_grpc.ControllerAsyncStub:
        self.channels.append(open_channel(address))
        return controller_pb2_grpc.ControllerStub(self.channels[-1])  # type: ignore[return-value]

    async def states(self, topic: str, partitions: int) -> list[PartitionState]:
        found, _ = await read_states(self.store, self.keys, [(topic, number) for number in range(partitions)])
        return [found[topic, number].state for number in range(partitions)]

    async def close(self) -> None:
        for channel in self.channels:
            await channel.close(None)
        for broker in self.brokers.values():
            await broker.stop()
        for service in self.controllers:
            await service.stop()
        for close in self.closing:
            await close()


@pytest.fixture
async def world(etcd: LocalEtcd, store: Store, keys: Keys) -> AsyncIterator[World]:
    made = World(etcd, store, keys)
    yield made
    await made.close()


async def acts(service: ControllerService) -> None:
    await eventually(lambda: service.reign is not None and service.reign.loaded, "the controller acts")


def new_topic(name: str, partitions: int = 1, factor: int = 1, **more: object) -> controller_pb2.CreateTopicsRequest:
    topic = controller_pb2.NewTopic(topic=name, partitions=partitions, replication_factor=factor, **more)
    return controller_pb2.CreateTopicsRequest(topics=[topic], timeout_ms=10_000)


def only(
    response: controller_pb2.CreateTopicsResponse
    | controller_pb2.CreatePartitionsResponse
    | controller_pb2.DeleteTopicsResponse,
) -> ErrorCode:
    assert from_proto(response.error) is ErrorCode.NONE
    (result,) = response.results
    return from_proto(result.error)


async def create(
    stub: controller_pb2_grpc.ControllerAsyncStub, name: str, partitions: int, factor: int
) -> list[PartitionKey]:
    response = await stub.CreateTopics(new_topic(name, partitions, factor))
    assert only(response) is ErrorCode.NONE, response
    return [PartitionKey(response.results[0].topic_id, number) for number in range(partitions)]


async def test_a_created_topic_is_led_and_known_everywhere_when_the_answer_comes(world: World) -> None:
    stub = await world.cluster()
    keys = await create(stub, "flights", 6, 3)
    leaders = Counter[int]()
    for broker in world.brokers.values():
        assert set(broker.states) == set(keys)
        leaders[broker.broker_id] = len(broker.leads())
        assert len(broker.metadata["flights"].partitions) == 6
    assert leaders == {1: 2, 2: 2, 3: 2}
    for state in await world.states("flights", 6):
        assert state.isr == (1, 2, 3)
        assert state.leader_epoch == 0
        assert state.leader_broker_epoch == world.brokers[state.leader].broker_epoch
    described = await stub.DescribeCluster(controller_pb2.DescribeClusterRequest())
    assert (described.topics, described.partitions, described.offline_partitions) == (1, 6, 0)
    assert described.cluster_id
    assert [(each.leaders, each.replicas) for each in described.brokers] == [(2, 6)] * 3


async def test_what_cannot_be_created_is_refused_with_a_reason(world: World) -> None:
    stub = await world.cluster(2)
    await create(stub, "taken", 1, 1)

    async def refused(request: controller_pb2.CreateTopicsRequest) -> tuple[ErrorCode, str]:
        response = await stub.CreateTopics(request)
        return only(response), response.results[0].error.message

    assert (await refused(new_topic("taken")))[0] is ErrorCode.TOPIC_ALREADY_EXISTS
    assert (await refused(new_topic("a/b")))[0] is ErrorCode.INVALID_TOPIC
    assert (await refused(new_topic("p", partitions=0)))[0] is ErrorCode.INVALID_PARTITIONS
    error, message = await refused(new_topic("p", factor=3))
    assert error is ErrorCode.INVALID_REPLICATION_FACTOR
    assert "2 live brokers" in message
    error, message = await refused(new_topic("p", config={"retention.msec": "1"}))
    assert error is ErrorCode.INVALID_CONFIG
    assert "retention.msec" in message
    defaults = await stub.CreateTopics(new_topic("defaults", -1, -1))
    assert (defaults.results[0].partitions, defaults.results[0].replication_factor) == (2, 2)
    only_checked = new_topic("checked")
    only_checked.validate_only = True
    assert only(await stub.CreateTopics(only_checked)) is ErrorCode.NONE
    assert "checked" not in {
        each.assignment.topic for each in (await read_topics(world.store, world.keys)).topics.values()
    }


async def test_what_this_version_does_not_serve_is_unimplemented(world: World) -> None:
    stub = await world.acting()
    calls = (
        stub.AlterConfigs(controller_pb2.AlterConfigsRequest(resource=controller_pb2.ConfigResource(name="1"))),
        stub.DescribeConfigs(
            controller_pb2.DescribeConfigsRequest(
                resources=[controller_pb2.ConfigResource(type=controller_pb2.BROKER, name="1")]
            )
        ),
        stub.ReassignPartitions(controller_pb2.ReassignPartitionsRequest()),
        stub.ElectLeaders(controller_pb2.ElectLeadersRequest(type=controller_pb2.UNCLEAN)),
    )
    for call in calls:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def more_partitions(name: str, total: int, **more: object) -> controller_pb2.CreatePartitionsRequest:
    topic = controller_pb2.NewPartitions(topic=name, total=total)
    return controller_pb2.CreatePartitionsRequest(topics=[topic], timeout_ms=10_000, **more)  # type: ignore[arg-type]


async def test_added_partitions_are_led_and_known_everywhere_when_the_answer_comes(world: World) -> None:
    stub = await world.cluster()
    (first,) = await create(stub, "growing", 1, 2)
    response = await stub.CreatePartitions(more_partitions("growing", 6))
    assert only(response) is ErrorCode.NONE, response
    result = response.results[0]
    assert (result.topic_id, result.partitions, result.replication_factor) == (first.topic_id, 6, 2)
    keys = {PartitionKey(first.topic_id, number) for number in range(6)}
    assert Counter(len(broker.leads()) for broker in world.brokers.values()) == {2: 3}
    assert set.union(*(broker.leads() for broker in world.brokers.values())) == keys
    for broker in world.brokers.values():
        assert len(broker.metadata["growing"].partitions) == 6
    assert [state.leader_epoch for state in await world.states("growing", 6)] == [0] * 6
    # An assignment of one's own.
    own = more_partitions("growing", 7)
    own.topics[0].assignment.add(partition=6, replicas=[3, 1])
    assert only(await stub.CreatePartitions(own)) is ErrorCode.NONE
    assert (await world.states("growing", 7))[6].leader == 3


async def test_what_cannot_be_added_is_refused_with_a_reason(world: World) -> None:
    stub = await world.cluster(2)
    await create(stub, "growing", 2, 2)

    async def refused(request: controller_pb2.CreatePartitionsRequest) -> tuple[ErrorCode, str]:
        response = await stub.CreatePartitions(request)
        return only(response), response.results[0].error.message

    error, message = await refused(more_partitions("growing", 2))
    assert error is ErrorCode.INVALID_PARTITIONS
    assert "it has 2" in message
    assert (await refused(more_partitions("absent", 3)))[0] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert only(await stub.CreatePartitions(more_partitions("growing", 3, validate_only=True))) is ErrorCode.NONE
    twice = more_partitions("growing", 3, validate_only=True)
    twice.topics.add(topic="growing", total=4)
    answers = (await stub.CreatePartitions(twice)).results
    assert [from_proto(each.error) for each in answers] == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
    await world.brokers[2].kill()
    await eventually(lambda: world.brokers[1].live == {1}, "the dead broker is noticed")
    assert (await refused(more_partitions("growing", 3)))[0] is ErrorCode.INVALID_REPLICATION_FACTOR
    (topic,) = (await read_topics(world.store, world.keys)).topics.values()
    assert len(topic.assignment.replicas) == 2


async def test_of_two_that_grow_a_topic_at_once_both_are_answered_rightly(world: World) -> None:
    """RULES 2.2: each write compares the assignment that it was computed from."""
    stub = await world.cluster(2)
    await create(stub, "growing", 1, 1)
    totals = [2, 3, 3, 5]
    answers = await asyncio.gather(*(stub.CreatePartitions(more_partitions("growing", total)) for total in totals))
    (topic,) = (await read_topics(world.store, world.keys)).topics.values()
    assert len(topic.assignment.replicas) == 5
    found = [(total, only(answer)) for total, answer in zip(totals, answers, strict=True)]
    assert (5, ErrorCode.NONE) in found
    assert {error for _, error in found} <= {ErrorCode.NONE, ErrorCode.INVALID_PARTITIONS}


async def test_a_growth_that_a_controller_left_half_done_is_finished(world: World) -> None:
    """RULES 9.1: the longer assignment was written, the states were not."""
    for broker_id in (1, 2):
        await world.broker(broker_id)
    earlier = await elected(world)
    made = TopicAssignment("grown", uuid.uuid4().bytes, ((1, 2),))
    versioned = await create_topic(world.store, world.keys, earlier.term, made, {})
    longer = TopicAssignment("grown", made.topic_id, ((1, 2), (2, 1), (1, 2)))
    assert await change_assignment(world.store, world.keys, earlier.term, versioned, longer) is not None
    await earlier.election.resign()
    stub = await world.acting()
    wanted = {PartitionKey(made.topic_id, number) for number in range(3)}
    await eventually(lambda: all(set(b.states) == wanted for b in world.brokers.values()), "states are made and sent")
    assert [state.leader for state in await world.states("grown", 3)] == [1, 2, 1]
    assert only(await stub.CreatePartitions(more_partitions("grown", 3))) is ErrorCode.INVALID_PARTITIONS


def altered(name: str, **more: object) -> controller_pb2.AlterConfigsRequest:
    resource = controller_pb2.ConfigResource(type=controller_pb2.TOPIC, name=name)
    return controller_pb2.AlterConfigsRequest(resource=resource, **more)  # type: ignore[arg-type]


async def test_a_changed_configuration_is_taken_everywhere_when_the_answer_comes(world: World) -> None:
    stub = await world.cluster(2)
    request = new_topic("t", 2, 2, config={"min.insync.replicas": "1", "retention.ms": "5"})
    response = await stub.CreateTopics(request)
    assert only(response) is ErrorCode.NONE
    keys = {PartitionKey(response.results[0].topic_id, number) for number in range(2)}
    answer = await stub.AlterConfigs(altered("t", set={"segment.bytes": "2048", "retention.ms": "6"}))
    assert from_proto(answer.error) is ErrorCode.NONE, answer
    wanted = {"min.insync.replicas": "1", "retention.ms": "6", "segment.bytes": "2048"}
    for broker in world.brokers.values():
        assert broker.configs == dict.fromkeys(keys, wanted)
        assert dict(broker.metadata["t"].config) == wanted
    assert {state.leader_epoch for state in await world.states("t", 2)} == {0}  # nothing is elected for it (RULES 1.3)
    answer = await stub.AlterConfigs(altered("t", unset=["min.insync.replicas", "retention.ms"]))
    assert from_proto(answer.error) is ErrorCode.NONE
    assert world.brokers[1].configs == {key: {"segment.bytes": "2048"} for key in keys}
    described = await stub.DescribeConfigs(
        controller_pb2.DescribeConfigsRequest(
            resources=[controller_pb2.ConfigResource(type=controller_pb2.TOPIC, name=name) for name in ("t", "absent")]
        )
    )
    found = {entry.key: (entry.value, entry.is_default, entry.source) for entry in described.configs[0].entries}
    assert found["segment.bytes"] == ("2048", False, "topic")
    assert found["min.insync.replicas"] == ("2", True, "controller")
    assert found["retention.ms"] == ("", True, "brokers")
    assert from_proto(described.configs[1].error) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_configuration_that_cannot_be_is_refused_with_a_reason(world: World) -> None:
    stub = await world.cluster(1)
    await create(stub, "t", 1, 1)

    async def refused(request: controller_pb2.AlterConfigsRequest) -> tuple[ErrorCode, str]:
        error = (await stub.AlterConfigs(request)).error
        return from_proto(error), error.message

    for request, part in (
        (altered("t", set={"retention.ms": "long"}), "retention.ms='long'"),
        (altered("t", set={"retention.msec": "1"}), "'retention.msec'"),
        (altered("t", unset=["retention.msec"]), "'retention.msec'"),
    ):
        error, message = await refused(request)
        assert error is ErrorCode.INVALID_CONFIG
        assert part in message
    both = altered("t", set={"retention.ms": "1"}, unset=["retention.ms"])
    assert (await refused(both))[0] is ErrorCode.INVALID_REQUEST
    assert (await refused(altered("absent")))[0] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    checked = altered("t", set={"retention.ms": "1"}, validate_only=True)
    assert (await refused(checked))[0] is ErrorCode.NONE
    entry = await world.store.get(world.keys.topic_config("t"))
    assert entry is not None
    assert entry.value == b"{}"


async def test_changes_of_one_configuration_at_once_are_all_made(world: World) -> None:
    """RULES 2.2: each write compares what it was computed from."""
    stub = await world.cluster(1)
    (key,) = await create(stub, "t", 1, 1)
    wanted = {"retention.ms": "1", "retention.bytes": "2", "segment.ms": "3", "flush.ms": "4"}
    answers = await asyncio.gather(*(stub.AlterConfigs(altered("t", set={k: v})) for k, v in wanted.items()))
    assert {from_proto(answer.error) for answer in answers} == {ErrorCode.NONE}
    assert world.brokers[1].configs[key] == wanted


async def test_a_configuration_may_make_an_unclean_election_possible(world: World) -> None:
    """RULES 7.4: the controller looks at its partitions again when the configuration changes."""
    stub = await world.cluster(2)
    response = await stub.CreateTopics(new_topic("t", 1, 2, config={"min.insync.replicas": "1"}))
    (key,) = [PartitionKey(response.results[0].topic_id, 0)]
    (state,) = await world.states("t", 1)
    leader, other = world.brokers[state.leader], world.brokers[3 - state.leader]
    await joins_isr(world, "t", key, leader, (leader.broker_id,))
    await leader.kill()
    await eventually(lambda: other.states[key].leader == -1, "nobody may lead")
    answer = await stub.AlterConfigs(altered("t", set={"unclean.leader.election.enable": "true"}))
    assert from_proto(answer.error) is ErrorCode.NONE
    await eventually(lambda: other.leads() == {key}, "the other one may")


async def test_a_deleted_topic_is_gone_and_its_name_free_again(world: World) -> None:
    stub = await world.cluster(2)
    first = await create(stub, "again", 3, 2)
    await world.brokers[2].kill()  # offline brokers block nothing (RULES 9.2)
    await eventually(lambda: world.brokers[1].live == {1}, "the dead broker is noticed")
    response = await stub.DeleteTopics(controller_pb2.DeleteTopicsRequest(topics=["again"], timeout_ms=10_000))
    assert only(response) is ErrorCode.NONE
    assert set(world.brokers[1].stopped) == set(first)
    assert (await world.store.get_prefix(world.keys.topics)).entries == ()
    assert (await world.store.get_prefix(world.keys.topic_configs)).entries == ()
    assert (await world.store.get_prefix(world.keys.delete_topics)).entries == ()
    await eventually(lambda: "again" not in world.brokers[1].metadata, "clients hear of it")
    second = await create(stub, "again", 3, 1)
    assert set(first).isdisjoint(second)
    unknown = await stub.DeleteTopics(controller_pb2.DeleteTopicsRequest(topics=["never"], timeout_ms=1_000))
    assert only(unknown) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_killed_broker_is_replaced_long_before_its_lease_ends(world: World) -> None:
    """RULES 8.3: refused connections end the registration; one batch of elections follows."""
    stub = await world.cluster()
    keys = await create(stub, "failover", 30, 3)
    dead = world.brokers[1]
    led = dead.leads()
    assert len(led) == 10
    await dead.kill()
    survivors = [world.brokers[2], world.brokers[3]]
    # It waits for 10 s; the lease is 30 s.
    await eventually(lambda: led <= survivors[0].leads() | survivors[1].leads(), "new leaders are told")
    await eventually(lambda: all(each.live == {2, 3} for each in survivors), "clients are told")
    for number, state in enumerate(await world.states("failover", 30)):
        moved = keys[number] in led
        assert state.leader_epoch == int(moved)
        assert state.isr == ((2, 3) if moved else (1, 2, 3))


async def test_a_restarted_broker_is_told_everything_and_leads_under_a_new_epoch(world: World) -> None:
    stub = await world.cluster(2)
    shared = await create(stub, "shared", 4, 2)
    alone = new_topic("alone", -1, -1)
    alone.topics[0].assignment.add(partition=0, replicas=[1])
    response = await stub.CreateTopics(alone)
    assert only(response) is ErrorCode.NONE
    own = PartitionKey(response.results[0].topic_id, 0)
    restarted, other = world.brokers[1], world.brokers[2]
    await restarted.register()
    await eventually(lambda: set(restarted.states) == {*shared, own}, "the whole of LeaderAndIsr")
    await eventually(lambda: restarted.leads() == {own}, "it leads what nobody else can")
    await eventually(lambda: other.leads() == set(shared), "the other one took over meanwhile")
    assert restarted.states[own].leader_epoch == 2  # RULES 3.5: nobody led under 1
    assert restarted.states[own].leader_broker_epoch == restarted.broker_epoch


async def test_a_storage_error_moves_the_leadership_of_that_partition_alone(world: World) -> None:
    """RULES 7.7."""
    stub = await world.cluster(2)
    good = await create(stub, "good", 2, 2)
    broken, other = world.brokers[1], world.brokers[2]
    led = broken.leads()
    broken.broken_topic = "broken"
    keys = await create(stub, "broken", 4, 2)
    assert other.leads() == {*keys, *good} - led
    assert broken.leads() == led
    broken.broken_topic = ""
    await eventually(lambda: set(broken.states) == {*keys, *good}, "it is asked until it answers without error")


async def test_controlled_shutdown_moves_leaderships_first(world: World) -> None:
    stub = await world.cluster()
    keys = await create(stub, "moving", 6, 3)
    alone = new_topic("alone", -1, -1)
    alone.topics[0].assignment.add(partition=0, replicas=[1])
    assert only(await stub.CreateTopics(alone)) is ErrorCode.NONE
    leaving = world.brokers[1]
    request = controller_pb2.ControlledShutdownRequest(broker_id=1, broker_epoch=leaving.broker_epoch)
    response = await stub.ControlledShutdown(request)
    assert [each.partition for each in response.remaining] == [0]  # nobody else may lead "alone"
    assert {key for broker in (2, 3) for key in world.brokers[broker].leads()} == set(keys)
    for state in await world.states("moving", 6):
        assert state.isr == (2, 3)
    stale = controller_pb2.ControlledShutdownRequest(broker_id=1, broker_epoch=leaving.broker_epoch - 1)
    assert from_proto((await stub.ControlledShutdown(stale)).error) is ErrorCode.STALE_BROKER_EPOCH
    # A topic made now keeps away from it.
    await create(stub, "later", 2, 2)
    assert [state.isr for state in await world.states("later", 2)] == [(2, 3)] * 2


async def test_preferred_leaders_are_elected_on_demand(world: World) -> None:
    stub = await world.cluster(2)
    (key,) = await create(stub, "preferred", 1, 2)
    (state,) = await world.states("preferred", 1)
    preferred, other = (
        (world.brokers[1], world.brokers[2]) if state.leader == 1 else (world.brokers[2], world.brokers[1])
    )
    await stub.ControlledShutdown(
        controller_pb2.ControlledShutdownRequest(broker_id=preferred.broker_id, broker_epoch=preferred.broker_epoch)
    )
    assert other.leads() == {key}
    place = common_pb2.TopicPartition(topic="preferred", partition=0)
    request = controller_pb2.ElectLeadersRequest(partitions=[place], timeout_ms=5_000)

    async def outcome() -> ErrorCode:
        return from_proto((await stub.ElectLeaders(request)).results[0].error)

    assert await outcome() is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    await preferred.register()
    await joins_isr(world, "preferred", key, other, (1, 2))
    await eventually(lambda: preferred.states, "it is back")

    async def moved() -> bool:
        return await outcome() is ErrorCode.NONE

    await eventually_async(moved, "the controller sees it in the ISR")
    await eventually(lambda: preferred.leads() == {key}, "it leads again")
    assert await outcome() is ErrorCode.ELECTION_NOT_NEEDED


async def joins_isr(world: World, topic: str, key: PartitionKey, leader: FakeBroker, isr: tuple[int, ...]) -> None:
    """The leader's ISR change, with its notification."""
    found, _ = await read_states(world.store, world.keys, [(topic, key.partition)])
    versioned = found[topic, key.partition]
    change = IsrChange(key, topic, versioned.state.with_(isr=isr, elr=()), versioned.revision)
    (result,) = await IsrWriter(world.store, world.keys, leader.broker_id).write([change], leader.broker_epoch)
    assert result.revision


async def test_isr_changes_are_collected_announced_and_removed(world: World) -> None:
    """RULES 2.5 (the quiet time is short here)."""
    stub = await world.cluster(2)
    (key,) = await create(stub, "shrinking", 1, 2)
    (state,) = await world.states("shrinking", 1)
    await joins_isr(world, "shrinking", key, world.brokers[state.leader], (state.leader,))

    def told() -> bool:
        return all(
            list(b.metadata["shrinking"].partitions[0].state.isr) == [state.leader] for b in world.brokers.values()
        )

    await eventually(told, "everyone hears of the ISR")

    async def removed() -> bool:
        return not (await world.store.get_prefix(world.keys.isr_changes)).entries

    await eventually_async(removed, "the notification is removed")


async def test_a_lost_tail_leaves_the_isr_and_is_recorded(world: World) -> None:
    """RULES 7.2."""
    stub = await world.cluster()
    keys = await create(stub, "tails", 3, 3)
    lost = world.brokers[2]
    led = {key.partition for key in keys if key in lost.leads()}
    await lost.register(tail_lost=True)

    async def recorded() -> bool:
        entry = await world.store.get(world.keys.broker_tail(2))
        return entry is not None and entry.value == str(lost.broker_epoch).encode()

    await eventually_async(recorded, "the registration is recorded")
    for number, state in enumerate(await world.states("tails", 3)):
        assert state.isr == (1, 3)
        assert number in led or state.lost == (2,)  # what it led, the election may have taken from it before


async def test_what_a_controller_left_half_done_is_finished(world: World) -> None:
    """RULES 9.1, 9.2."""
    for broker_id in (1, 2):
        await world.broker(broker_id)
    earlier = await elected(world)
    replicas = ((1, 2), (2, 1))
    made = TopicAssignment("made", uuid.uuid4().bytes, replicas)
    await create_topic(world.store, world.keys, earlier.term, made, {"min.insync.replicas": "1"})
    doomed = TopicAssignment("doomed", uuid.uuid4().bytes, replicas)
    versioned = await create_topic(world.store, world.keys, earlier.term, doomed, {})
    await mark_for_deletion(world.store, world.keys, earlier.term, versioned)
    await earlier.election.resign()
    await world.acting()
    wanted = {PartitionKey(made.topic_id, number) for number in (0, 1)}
    await eventually(lambda: all(set(b.states) == wanted for b in world.brokers.values()), "states are made and sent")
    assert [state.leader for state in await world.states("made", 2)] == [1, 2]

    async def deleted() -> bool:
        return doomed.topic_id not in (await read_topics(world.store, world.keys)).topics

    await eventually_async(deleted, "the deletion is finished")


class Earlier:
    """A controller's term without the controller."""

    def __init__(self, election: ControllerElection, term: ControllerTerm) -> None:
        self.election = election
        self.term = term


async def elected(world: World) -> Earlier:
    election = ControllerElection(
        world.store, world.keys, controller_id=9, address="x:1", incarnation="e", session_timeout_ms=5_000
    )
    return Earlier(election, await election.campaign())


async def test_another_controller_takes_over_at_once_when_one_stops(world: World) -> None:
    first = await world.controller(0)
    await acts(first)
    second = await world.controller(1)
    broker = await world.broker(1)
    await eventually(lambda: broker.live == {1}, "the broker is seen")
    stub = world.stub(first.address)
    keys = await create(stub, "kept", 2, 1)
    await eventually(lambda: second._acting() is not None, "the second one knows who acts")
    answer = await world.stub(second.address).CreateTopics(new_topic("elsewhere"))
    assert from_proto(answer.error) is ErrorCode.NOT_CONTROLLER
    assert answer.controller.address == first.address
    broker.states.clear()
    await first.stop()
    await acts(second)
    await eventually(lambda: set(broker.states) == set(keys), "the new one sends everything")
    assert broker.controller_epoch == 2
    assert {state.leader_epoch for state in await world.states("kept", 2)} == {0}  # nothing changed, nothing is elected


async def test_a_zombie_can_neither_write_nor_instruct(world: World, tmp_path: Path) -> None:
    """Invariant 9: a controller that was paused while another took over."""
    settings = world.settings(5)
    arguments = [f"controller.id={settings.controller_id}", f"cluster={settings.cluster}", f"etcd={world.etcd.address}"]
    arguments += ["listen=127.0.0.1:0", "advertised.listener=127.0.0.1:0", "controller.session.timeout.ms=1000"]
    with (tmp_path / "controller.log").open("wb") as log:
        zombie = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "highwater.controller", *(f"--set={each}" for each in arguments), stderr=log
        )
    try:
        broker = await world.broker(1)
        await eventually(lambda: broker.metadata_updates, "the first controller acts", 20)
        assert set(broker.every_controller) == {5}
        zombie.send_signal(signal.SIGSTOP)
        stub = await world.acting(0)
        await create(stub, "after", 1, 1)
        zombie.send_signal(signal.SIGCONT)
        broker.every_controller.clear()
        await create(stub, "more", 2, 1)
        await eventually(lambda: b"deposed" in (tmp_path / "controller.log").read_bytes(), "the zombie finds out")
        assert broker.controller_epoch == 2
        assert {state.controller_epoch for state in await world.states("more", 2)} == {2}
    finally:
        os.kill(zombie.pid, signal.SIGCONT)
        zombie.kill()
        await zombie.wait()


async def test_every_write_of_a_deposed_controller_is_refused(world: World) -> None:
    """RULES 2.2."""
    earlier = await elected(world)
    assignment = TopicAssignment("t", uuid.uuid4().bytes, ((1,),))
    await create_topic(world.store, world.keys, earlier.term, assignment, {})
    await earlier.election.resign()
    await world.acting()
    state = PartitionState(leader=1, leader_epoch=7, leader_broker_epoch=1, isr=(1,))
    with pytest.raises(ControllerDeposed):
        await write_states(world.store, world.keys, earlier.term, [StateWrite("t", 0, state, 0)])


async def test_a_controller_that_a_broker_calls_stale_ends_its_term(world: World) -> None:
    service = await world.controller()
    await acts(service)
    broker = FakeBroker(1, world.store, world.keys)
    world.brokers[1] = broker
    broker.controller_epoch = 3
    await broker.start()
    await eventually(lambda: service.reign is not None and service.reign.term.controller_epoch >= 3, "a later term")
    await eventually(lambda: broker.metadata_updates, "which the broker listens to")


async def test_a_broker_that_registers_while_it_still_refuses_is_left_to_its_lease(world: World) -> None:
    """RULES 8.3: it lives, and is only out of the controller's reach."""
    await world.cluster(2)
    unreachable = world.brokers[2]
    await unreachable.kill()
    await eventually(lambda: world.brokers[1].live == {1}, "its first registration ends")
    await unreachable.register()
    await eventually(lambda: world.brokers[1].live == {1, 2}, "its second one is seen")
    service = world.controllers[0]
    assert service.reign is not None
    fast_path = service.reign._fast_paths[2]
    await eventually(lambda: fast_path._barred_until_ms is not None, "its refusals are seen")
    epoch = unreachable.broker_epoch
    # Three times as long as a first refusal was suffered:
    with pytest.raises(AssertionError, match="not within"):
        await eventually(lambda: world.brokers[1].live == {1}, "it is ended again", 0.9)
    assert service.reign.cluster.is_registered(2, epoch)
