"""Consumer groups by their contract, over one broker: real processes' services, a real log, a real controller."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from group_members import (
    MEMBER_ID,
    Member,
    commit,
    committed,
    controller,
    coordinator,
    create_topic,
    group_cluster,
    offset,
    stub,
)
from replica_manager_cluster import TestCluster, eventually, rows

from highwater.errors import ErrorCode
from highwater.groups.group_partition import OFFSETS_TOPIC, partition_for
from highwater.groups.records import decode as decode_record
from highwater.groups.records.keys import OffsetCommitKey
from highwater.metadata.local import LocalEtcd
from highwater.metadata.schema.keys import Keys
from highwater.metadata.store.store import Store
from highwater.model.partition import PartitionKey
from highwater.records import decode, iter_batches
from highwater.rpc.errors import from_proto
from highwater.v1 import broker_pb2, common_pb2, controller_pb2, group_pb2

GROUP = "readers"


@pytest.fixture
async def cluster(etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path) -> AsyncIterator[TestCluster]:
    async with group_cluster(etcd, store, keys, tmp_path) as cluster:
        await create_topic(cluster, "orders", 4)
        yield cluster


@pytest.fixture
async def hasty(etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path) -> AsyncIterator[TestCluster]:
    short = {"group.consumer.session.timeout.ms": "700", "group.consumer.heartbeat.interval.ms": "200"}
    async with group_cluster(etcd, store, keys, tmp_path, **short) as cluster:
        await create_topic(cluster, "orders", 4)
        yield cluster


async def test_members_share_a_topic_and_its_offsets(cluster: TestCluster) -> None:
    broker = await coordinator(cluster, GROUP)
    first, second = Member(GROUP, 1, ("orders",)), Member(GROUP, 2, ("orders",))
    await first.open(broker)
    await first.owns(range(4))
    await second.open(broker)
    await second.owns_some(2)
    await first.owns(set(range(4)) - second.owned)

    mine = min(first.owned)
    assert await commit(broker, GROUP, [offset("orders", mine, 7)], first.member_id, first.epoch) == [ErrorCode.NONE]
    theirs = min(second.owned)
    late = await commit(broker, GROUP, [offset("orders", theirs, 3)], first.member_id, first.epoch)
    assert late == [ErrorCode.STALE_MEMBER_EPOCH]
    assert await committed(broker, GROUP) == {("orders", mine): 7}
    assert await commit(broker, GROUP, [offset("orders", mine, 9)]) != [ErrorCode.NONE]  # the group has members

    await second.leave()
    await first.owns(range(4))
    await first.leave()
    assert await commit(broker, GROUP, [offset("orders", mine, 9)]) == [ErrorCode.NONE]
    assert await committed(broker, GROUP) == {("orders", mine): 9}


async def test_a_broken_stream_is_no_leave(cluster: TestCluster) -> None:
    broker = await coordinator(cluster, GROUP)
    member = Member(GROUP, 1, ("orders",))
    await member.open(broker)
    await member.owns(range(4))
    epoch = member.epoch
    await member.vanish()
    await member.open(broker)
    await member.owns(range(4))
    assert member.epoch == epoch
    (described,) = (
        await stub(broker).DescribeGroups(group_pb2.DescribeGroupsRequest(groups=[GROUP], include_offsets=True))
    ).groups
    assert [each.member_id for each in described.members] == [member.member_id]
    assert [(each.topic, list(each.partitions)) for each in described.members[0].assignment] == [
        ("orders", [0, 1, 2, 3])
    ]
    await member.vanish()


async def test_a_newer_stream_of_a_member_ends_the_older(cluster: TestCluster) -> None:
    broker = await coordinator(cluster, GROUP)
    older = Member(GROUP, 1, ("orders",))
    await older.open(broker)
    await older.owns(range(4))
    newer = Member(GROUP, 1, ("orders",), epoch=older.epoch, owned=older.owned, topic_id=older.topic_id)
    await newer.open(broker)
    assert await older.refused() is ErrorCode.FETCH_SESSION_STALE
    second = Member(GROUP, 2, ("orders",))
    await second.open(broker)
    await second.owns_some(2)
    await newer.owns_some(2)  # what is pushed comes by the newer one
    for member in (older, newer, second):
        await member.vanish()


async def test_a_member_that_is_silent_is_removed(hasty: TestCluster) -> None:
    broker = await coordinator(hasty, GROUP)
    silent = Member(GROUP, 1, ("orders",))
    await silent.open(broker)
    await silent.owns(range(4))
    await silent.vanish()
    assert await silent_is_fenced(silent, hasty)
    await silent.vanish()


async def silent_is_fenced(member: Member, cluster: TestCluster) -> bool:
    broker = await coordinator(cluster, GROUP)

    async def gone() -> bool:
        (described,) = (await stub(broker).DescribeGroups(group_pb2.DescribeGroupsRequest(groups=[GROUP]))).groups
        return not described.members

    await eventually(gone, "the silent member is removed")
    await member.open(broker)
    return await member.refused() is ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_static_member_comes_back_to_its_partitions(cluster: TestCluster) -> None:
    broker = await coordinator(cluster, GROUP)
    other, before = Member(GROUP, 1, ("orders",)), Member(GROUP, 2, ("orders",), "rack-7")
    await other.open(broker)
    await other.owns(range(4))
    await before.open(broker)
    await before.owns_some(2)
    await other.owns_some(2)
    kept = before.owned
    twin = Member(GROUP, 3, ("orders",), "rack-7")
    await twin.open(broker)
    assert await twin.refused() is ErrorCode.UNRELEASED_INSTANCE_ID
    await before.leave(-2)
    after = Member(GROUP, 4, ("orders",), "rack-7")
    await after.open(broker)
    await after.owns(kept)
    assert len(other.owned) == 2
    for member in (other, twin, after):
        await member.vanish()


async def test_a_topic_that_grows_is_shared_out(cluster: TestCluster) -> None:
    broker = await coordinator(cluster, GROUP)
    member = Member(GROUP, 1, ("orders",))
    await member.open(broker)
    await member.owns(range(4))
    grown = await controller(broker).CreatePartitions(
        controller_pb2.CreatePartitionsRequest(topics=[controller_pb2.NewPartitions(topic="orders", total=6)])
    )
    assert from_proto(grown.results[0].error) is ErrorCode.NONE
    await member.owns(range(6))
    await member.vanish()


async def test_a_shard_that_failed_is_loaded_anew(cluster: TestCluster) -> None:
    broker = await coordinator(cluster, GROUP)
    member = Member(GROUP, 1, ("orders",))
    await member.open(broker)
    await member.owns(range(4))
    assert await commit(broker, GROUP, [offset("orders", 0, 7)], member.member_id, member.epoch) == [ErrorCode.NONE]
    assert broker.replica_manager is not None
    groups = broker.replica_manager.group_coordinator
    shard = groups._shards[groups.topic.partition_of(GROUP)]
    held = [groups._context.loads.acquire() for _ in range(4)]
    for each in held:
        await each
    assert shard._serving is not None
    shard._serving.log.end(ErrorCode.STORAGE_FULL)
    assert await member.refused() is ErrorCode.COORDINATOR_NOT_AVAILABLE

    async def loads() -> bool:
        return await commit(broker, GROUP, [offset("orders", 0, 8)]) == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]

    await eventually(loads, "the shard is loaded anew")
    for _ in range(4):
        groups._context.loads.release()
    await member.back(cluster)
    await member.owns(range(4))
    assert await committed(broker, GROUP) == {("orders", 0): 7}
    assert await commit(broker, GROUP, [offset("orders", 0, 8)], member.member_id, member.epoch) == [ErrorCode.NONE]
    await member.vanish()


async def test_groups_are_listed_reset_and_deleted(cluster: TestCluster) -> None:
    broker = await coordinator(cluster, GROUP)
    member = Member(GROUP, 1, ("orders",))
    await member.open(broker)
    await member.owns(range(4))

    async def listed(*states: int) -> list[tuple[str, int, int]]:
        response = await stub(broker).ListGroups(group_pb2.ListGroupsRequest(states=states))
        assert not response.HasField("error"), response
        return [(each.group, each.state, each.members) for each in response.groups]

    assert await listed() == [(GROUP, group_pb2.GROUP_STATE_STABLE, 1)]
    assert await listed(group_pb2.GROUP_STATE_EMPTY) == []
    altered = group_pb2.AlterOffsetsRequest(group=GROUP, offsets=[offset("orders", 1, 5)])
    assert from_proto((await stub(broker).AlterOffsets(altered)).error) is ErrorCode.NON_EMPTY_GROUP
    await member.leave()
    (set_to,) = (await stub(broker).AlterOffsets(altered)).offsets
    assert from_proto(set_to.error) is ErrorCode.NONE
    assert await committed(broker, GROUP) == {("orders", 1): 5}
    deleted = await stub(broker).DeleteOffsets(
        group_pb2.DeleteOffsetsRequest(group=GROUP, partitions=[common_pb2.TopicPartition(topic="orders", partition=1)])
    )
    assert [from_proto(each.error) for each in deleted.offsets] == [ErrorCode.NONE]
    assert await committed(broker, GROUP) == {}
    await commit(broker, GROUP, [offset("orders", 2, 1)])
    gone = await stub(broker).DeleteGroups(group_pb2.DeleteGroupsRequest(groups=[GROUP, "nobody"]))
    assert [from_proto(each.error) for each in gone.groups] == [ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND]
    assert await listed() == []


async def test_the_offsets_topic_is_the_clusters_own(cluster: TestCluster) -> None:
    broker = await coordinator(cluster, GROUP)

    async def commits() -> bool:  # once the coordinator has heard of the topic
        return await commit(broker, GROUP, [offset("orders", 0, 7)]) == [ErrorCode.NONE]

    await eventually(commits, "offsets of the topic are taken")
    response = broker_pb2.MetadataResponse.FromString(
        (await broker.stub.Metadata(broker_pb2.MetadataRequest(topics=[OFFSETS_TOPIC]))).SerializeToString()
    )
    (topic,) = response.topics
    assert topic.internal
    assert topic.config["cleanup.policy"] == "compact"
    assert [len(each.replicas) for each in topic.partitions] == [1, 1, 1]

    key = PartitionKey(topic.topic_id, partition_for(GROUP, 3))
    assert from_proto((await broker.produce(key, rows(b"x"))).error) is ErrorCode.INVALID_TOPIC
    deleted = await broker.stub.DeleteRecords(
        broker_pb2.DeleteRecordsRequest(
            partitions=[
                broker_pb2.DeleteRecordsPartition(
                    partition=common_pb2.PartitionKey(topic_id=key.topic_id, partition=key.partition), offset=1
                )
            ]
        )
    )
    assert from_proto(deleted.results[0].error) is ErrorCode.INVALID_TOPIC
    dropped = await controller(broker).DeleteTopics(controller_pb2.DeleteTopicsRequest(topics=[OFFSETS_TOPIC]))
    assert from_proto(dropped.results[0].error) is ErrorCode.INVALID_TOPIC
    grown = await controller(broker).CreatePartitions(
        controller_pb2.CreatePartitionsRequest(topics=[controller_pb2.NewPartitions(topic=OFFSETS_TOPIC, total=9)])
    )
    assert from_proto(grown.results[0].error) is ErrorCode.INVALID_TOPIC
    forged = controller_pb2.CreateTopicsRequest(internal=True)
    forged.topics.add(topic="__mine", partitions=1, replication_factor=1)
    assert from_proto((await controller(broker).CreateTopics(forged)).error) is ErrorCode.INVALID_REQUEST

    fetched = await broker.fetch(key)
    found = [
        decode_record(record.key or b"", record.value)
        for position, _ in iter_batches(fetched.records)
        for record in decode(fetched.records, position).records()
    ]
    assert any(each is not None and each[0] == OffsetCommitKey(GROUP, "orders", 0) for each in found)


async def test_offsets_outlive_the_broker(cluster: TestCluster) -> None:
    broker = await coordinator(cluster, GROUP)
    member = Member(GROUP, 1, ("orders",))
    await member.open(broker)
    await member.owns(range(4))
    assert await commit(broker, GROUP, [offset("orders", 3, 11)], member.member_id, member.epoch) == [ErrorCode.NONE]
    await broker.stop_replica_manager()
    await broker.start_replica_manager()
    await member.back(cluster)
    await member.owns(range(4))
    assert await committed(await coordinator(cluster, GROUP), GROUP) == {("orders", 3): 11}
    await member.vanish()


async def test_bad_requests_are_refused(cluster: TestCluster) -> None:
    broker = await coordinator(cluster, GROUP)
    (named,) = (await stub(broker).FindCoordinator(group_pb2.FindCoordinatorRequest(groups=[""]))).coordinators
    assert from_proto(named.error) is ErrorCode.INVALID_GROUP_ID
    names = ["readers"] * 100_000
    found = (await stub(broker).FindCoordinator(group_pb2.FindCoordinatorRequest(groups=names))).coordinators
    described = (await stub(broker).DescribeGroups(group_pb2.DescribeGroupsRequest(groups=names))).groups
    deleted = (await stub(broker).DeleteGroups(group_pb2.DeleteGroupsRequest(groups=names))).groups
    assert (len(found), len(described), len(deleted)) == (1_000, 1, 1_000)
    assert {from_proto(each.error) for each in (*found, *described, *deleted)} == {ErrorCode.INVALID_REQUEST}
    lying = offset("orders", 0, 1)
    lying.error.CopyFrom(common_pb2.Error(code=common_pb2.ERROR_CODE_INVALID_REQUEST, message="not the server's"))
    assert await commit(broker, GROUP, [lying]) == [ErrorCode.NONE]
    many = [offset("orders", 0, 1)] * 5001
    assert await commit(broker, GROUP, many) == [ErrorCode.INVALID_REQUEST]
    unknown = Member(GROUP, 1, ("orders",), epoch=5)
    await unknown.open(broker)
    assert await unknown.refused() is ErrorCode.UNKNOWN_MEMBER_ID
    call = stub(broker).Session()
    first = group_pb2.SessionRequest(group=GROUP, member_id=MEMBER_ID.format(2))
    first.subscription.topics.append("orders")
    first.subscription.rebalance_timeout_ms = 1000
    await call.write(first)
    joined = await call.read()
    assert from_proto(joined.error) is ErrorCode.NONE
    await call.write(group_pb2.SessionRequest(group="another", member_epoch=joined.member_epoch))
    assert from_proto((await call.read()).error) is ErrorCode.INVALID_REQUEST
