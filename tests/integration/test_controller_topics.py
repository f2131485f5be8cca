"""What is asked of a controller about topics: making, growing, configuring and deleting them."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter

import grpc
import grpc.aio
import pytest
from controller_world import World, create, elected, joins_isr, new_topic, only
from fake_broker import eventually

from highwater.controller.state_machines.topic_table import TopicTable
from highwater.errors import ErrorCode
from highwater.metadata.schema.models import PartitionState, TopicAssignment
from highwater.metadata.state.topics import change_assignment, create_states, create_topic, read_topics
from highwater.metadata.store.etcd_errors import Unavailable
from highwater.model.partition import PartitionKey
from highwater.rpc.errors import from_proto
from highwater.v1 import controller_pb2

pytestmark = pytest.mark.alone


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
            controller_pb2.DescribeConfigsRequest(resources=[controller_pb2.ConfigResource(name="1")])
        ),
        stub.ReassignPartitions(controller_pb2.ReassignPartitionsRequest()),
        stub.ElectLeaders(controller_pb2.ElectLeadersRequest(type=controller_pb2.ELECTION_TYPE_UNCLEAN)),
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
    error, message = await refused(more_partitions("growing", 3))
    assert (error, error.retriable) == (ErrorCode.REPLICA_NOT_AVAILABLE, True)
    assert "asks for 2 brokers, and 1 are registered now" in message
    response = await stub.CreateTopics(new_topic("another", factor=2))
    assert only(response) is ErrorCode.REPLICA_NOT_AVAILABLE
    assert only(await stub.CreateTopics(new_topic("another", factor=3))) is ErrorCode.INVALID_REPLICATION_FACTOR
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
    resource = controller_pb2.ConfigResource(type=controller_pb2.CONFIG_RESOURCE_TYPE_TOPIC, name=name)
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
            resources=[
                controller_pb2.ConfigResource(type=controller_pb2.CONFIG_RESOURCE_TYPE_TOPIC, name=name)
                for name in ("t", "absent")
            ]
        )
    )
    found = {entry.key: (entry.value, entry.is_default, entry.source) for entry in described.configs[0].entries}
    assert found["segment.bytes"] == ("2048", False, "topic")
    assert found["min.insync.replicas"] == ("2", True, "controller")
    assert found["retention.ms"] == ("", True, "brokers")
    assert from_proto(described.configs[1].error) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [each.absent_in_etcd for each in described.configs] == [False, True]


async def test_that_there_is_no_topic_is_said_by_etcd_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """RULES 9.5: a controller that the watch has not told, as one that was deposed and cut off."""
    stub = await world.cluster(1)
    await create(stub, "t", 1, 1)
    monkeypatch.setattr(TopicTable, "named", lambda table, name: None)

    async def described() -> list[tuple[ErrorCode, bool]]:
        topic = controller_pb2.CONFIG_RESOURCE_TYPE_TOPIC
        resources = [controller_pb2.ConfigResource(type=topic, name=name) for name in ("t", "absent")]
        response = await stub.DescribeConfigs(controller_pb2.DescribeConfigsRequest(resources=resources))
        return [(from_proto(each.error), each.absent_in_etcd) for each in response.configs]

    there, absent = await described()
    assert there == (ErrorCode.LEADER_NOT_AVAILABLE, False)
    assert absent == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, True)

    async def unavailable(*arguments: object, **more: object) -> None:
        raise Unavailable("etcd is away")

    monkeypatch.setattr("highwater.controller.administration.absent_topics.read_absent_topics", unavailable)
    assert await described() == [(ErrorCode.REQUEST_TIMED_OUT, False)] * 2


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


async def test_a_topic_of_a_thousand_partitions(world: World) -> None:
    """Its states are many transactions (RULES 2.6), and brokers hear of it in several requests."""
    stub = await world.cluster()
    response = await stub.CreateTopics(new_topic("wide", 1_000, 3))
    # On a starved machine the term may end meanwhile; the next one finishes it (RULES 9.1).
    assert only(response) in (ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT)
    keys = {PartitionKey(response.results[0].topic_id, number) for number in range(1_000)}
    brokers = list(world.brokers.values())
    await eventually(lambda: all(set(broker.states) == keys for broker in brokers), "all brokers are instructed")
    await eventually(lambda: sum(len(broker.leads()) for broker in brokers) == 1_000, "all partitions are led")
    await eventually(
        lambda: all("wide" in b.metadata and len(b.metadata["wide"].partitions) == 1_000 for b in brokers),
        "all brokers know of it",
    )


async def test_a_topic_of_a_thousand_partitions_that_was_left_half_done_is_finished(world: World) -> None:
    """RULES 9.1: its key was put, and the first transaction of its states."""
    for broker_id in (1, 2, 3):
        await world.broker(broker_id)
    assignment = TopicAssignment("wide", uuid.uuid4().bytes, ((1, 2, 3),) * 1_000)
    earlier = await elected(world)
    topic = await create_topic(world.store, world.keys, earlier.term, assignment, {})
    broker_epoch = world.brokers[1].broker_epoch
    led = PartitionState(leader=1, leader_epoch=0, leader_broker_epoch=broker_epoch, isr=(1, 2, 3))
    await create_states(world.store, world.keys, earlier.term, topic, dict.fromkeys(range(120), led))
    await earlier.election.resign()
    await world.acting()
    await eventually(lambda: len(world.brokers[1].leads()) == 1_000, "all of them are led")
    assert len(await world.states("wide", 1_000)) == 1_000
