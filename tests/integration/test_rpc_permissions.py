"""Every RPC that clients can reach, asked by somebody who may nothing: none lets it in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from controller_world import new_topic, only
from google.protobuf.message import Message
from replica_manager_cluster import fetch_request, rows, to_key
from secured_broker import Caller, SecuredBroker, secured_broker

from highwater.errors import ErrorCode
from highwater.metadata.local import LocalEtcd
from highwater.metadata.schema.keys import Keys
from highwater.metadata.store.store import Store
from highwater.model.partition import PartitionKey
from highwater.rpc.connections.channel import open_channel
from highwater.rpc.errors import from_proto
from highwater.v1 import (
    broker_pb2,
    broker_pb2_grpc,
    common_pb2,
    controller_pb2,
    group_pb2,
    replica_control_pb2,
    replica_control_pb2_grpc,
)

REFUSALS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
}
TOPIC, GROUP = "secrets", "g"
NOT_FORWARDED = {"ControlledShutdown", "DescribeReadiness"}
LEAVES_OUT = {"ListGroups"}  # answers with what the caller may see, which is nothing
NO_ANSWER = {"ReassignPartitions"}  # UNIMPLEMENTED where it is let through


def requests(key: PartitionKey) -> dict[str, Message]:
    """A request of each RPC, about a topic and a group that there are."""
    partition, named = to_key(key), common_pb2.TopicPartition(topic=TOPIC, partition=0)
    fetch = fetch_request(key, 0)
    fetch.consumer.SetInParent()
    produce = broker_pb2.ProduceRequest(
        acks=1, timeout_ms=1, partitions=[broker_pb2.ProducePartition(partition=partition, records=rows(b"v"))]
    )
    resource = controller_pb2.ConfigResource(type=controller_pb2.CONFIG_RESOURCE_TYPE_TOPIC, name=TOPIC)
    offset = group_pb2.CommittedOffset(partition=named, offset=1, leader_epoch=-1)
    subscription = group_pb2.Subscription(topics=[TOPIC], rebalance_timeout_ms=1_000)
    return {
        "Produce": produce,
        "ProduceStream": produce,
        "Fetch": fetch,
        "FetchStream": fetch,
        "ListOffsets": broker_pb2.ListOffsetsRequest(
            replica_id=-1,
            partitions=[broker_pb2.ListOffsetsPartition(partition=partition, leader_epoch=-1, timestamp=-1)],
        ),
        "ListBatches": broker_pb2.ListBatchesRequest(partition=partition, max_batches=1),
        "OffsetForLeaderEpoch": broker_pb2.OffsetForLeaderEpochRequest(
            partitions=[broker_pb2.EpochPartition(partition=partition, current_leader_epoch=-1, leader_epoch=0)]
        ),
        "DeleteRecords": broker_pb2.DeleteRecordsRequest(
            timeout_ms=1_000, partitions=[broker_pb2.DeleteRecordsPartition(partition=partition, offset=0)]
        ),
        "Metadata": broker_pb2.MetadataRequest(topics=[TOPIC], topic_ids=[key.topic_id], all_topics=True),
        "InitProducerId": broker_pb2.InitProducerIdRequest(),
        "DescribeLogDirs": broker_pb2.DescribeLogDirsRequest(),
        "AlterReplicaLogDirs": broker_pb2.AlterReplicaLogDirsRequest(),
        "FindCoordinator": group_pb2.FindCoordinatorRequest(groups=[GROUP]),
        "Session": group_pb2.SessionRequest(
            group=GROUP,
            member_id="3d6f0d9e-7a38-4c0e-9a53-6c9a3f0f7d11",
            subscription=subscription,
            owned=group_pb2.PartitionList(),
        ),
        "CommitOffsets": group_pb2.CommitOffsetsRequest(group=GROUP, member_epoch=-1, offsets=[offset]),
        "FetchOffsets": group_pb2.FetchOffsetsRequest(group=GROUP, member_epoch=-1, partitions=[named]),
        "ListGroups": group_pb2.ListGroupsRequest(),
        "DescribeGroups": group_pb2.DescribeGroupsRequest(groups=[GROUP], include_offsets=True),
        "DeleteGroups": group_pb2.DeleteGroupsRequest(groups=[GROUP]),
        "DeleteOffsets": group_pb2.DeleteOffsetsRequest(group=GROUP, partitions=[named]),
        "AlterOffsets": group_pb2.AlterOffsetsRequest(group=GROUP, offsets=[offset]),
        "CreateTopics": controller_pb2.CreateTopicsRequest(
            topics=[controller_pb2.NewTopic(topic="another", partitions=1, replication_factor=1)]
        ),
        "DeleteTopics": controller_pb2.DeleteTopicsRequest(topics=[TOPIC]),
        "CreatePartitions": controller_pb2.CreatePartitionsRequest(
            topics=[controller_pb2.NewPartitions(topic=TOPIC, total=2)]
        ),
        "DescribeCluster": controller_pb2.DescribeClusterRequest(),
        "AlterConfigs": controller_pb2.AlterConfigsRequest(resource=resource, set={"retention.ms": "1"}),
        "DescribeConfigs": controller_pb2.DescribeConfigsRequest(resources=[resource]),
        "ReassignPartitions": controller_pb2.ReassignPartitionsRequest(),
        "ElectLeaders": controller_pb2.ElectLeadersRequest(
            type=controller_pb2.ELECTION_TYPE_PREFERRED, partitions=[named]
        ),
        "CreateAcls": controller_pb2.CreateAclsRequest(acls=[controller_pb2.Acl()]),
        "DescribeAcls": controller_pb2.DescribeAclsRequest(),
        "DeleteAcls": controller_pb2.DeleteAclsRequest(filters=[controller_pb2.AclFilter()]),
        "ControlledShutdown": controller_pb2.ControlledShutdownRequest(),
        "DescribeReadiness": controller_pb2.DescribeReadinessRequest(),
    }


SERVICES = {
    "broker": broker_pb2.DESCRIPTOR.services_by_name["Broker"],
    "groups": group_pb2.DESCRIPTOR.services_by_name["GroupCoordinator"],
    "controller": controller_pb2.DESCRIPTOR.services_by_name["Controller"],
}
# What changes what the others are about comes last.
RPCS = [(part, method) for part, service in SERVICES.items() for method in service.methods]


@pytest.fixture
async def secured(etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path) -> AsyncIterator[SecuredBroker]:
    async with secured_broker(etcd, store, keys, tmp_path) as made:
        yield made


async def ask(caller: Caller, part: str, method: Any, request: Message) -> Any:
    call = getattr(getattr(caller, part), method.name)
    if not method.client_streaming:
        return await call(request)
    stream = call()
    await stream.write(request)
    answer = await stream.read()
    stream.cancel()
    return answer


def said(message: Message) -> Iterator[ErrorCode]:
    """Every error in an answer that is none of success."""
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for each in value if field.is_repeated else [value]:
            if isinstance(each, common_pb2.Error):
                if from_proto(each) is not ErrorCode.NONE:
                    yield from_proto(each)
            else:
                yield from said(each)


async def test_whoever_may_nothing_is_let_in_by_no_rpc(secured: SecuredBroker) -> None:
    admin, mallory = secured.as_user("admin"), secured.as_user("mallory")
    created = await admin.controller.CreateTopics(new_topic(TOPIC, 1, 1, config={"min.insync.replicas": "1"}))
    assert only(created) is ErrorCode.NONE
    key = PartitionKey(created.results[0].topic_id, 0)
    asked = requests(key)
    assert asked.keys() == {method.name for _, method in RPCS}, "an RPC that nobody has tried"
    let_in = []
    for part, method in RPCS:
        if method.name in NOT_FORWARDED:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await ask(mallory, part, method, asked[method.name])
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
            continue
        answer = await ask(mallory, part, method, asked[method.name])
        async with asyncio.timeout(30):  # a coordinator that is loading says so to everybody, and no more
            while set(said(answer)) == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}:
                await asyncio.sleep(0.05)
                answer = await ask(mallory, part, method, asked[method.name])
        if method.name in LEAVES_OUT:
            assert not answer.ListFields(), answer
        elif not (errors := set(said(answer))) or not errors <= REFUSALS:
            let_in.append((method.name, str(answer)[:300]))
    assert not let_in
    assert secured.trio.replica_manager is not None
    hosted = secured.trio.replica_manager.replica_manager.hosted[key]
    assert hosted.partition.log_end_offset == 0  # nothing was written

    # and each of these requests is one that is taken from who may
    kept_out = []
    for part, method in RPCS:
        if method.name in NOT_FORWARDED | NO_ANSWER:
            continue
        answer = await ask(admin, part, method, asked[method.name])
        if set(said(answer)) & REFUSALS:
            kept_out.append(method.name)
        if method.name == "DeleteTopics":
            assert only(await admin.controller.CreateTopics(new_topic(TOPIC, 1, 1))) is ErrorCode.NONE
    assert not kept_out


async def test_what_is_internal_is_not_there_for_clients(secured: SecuredBroker) -> None:
    stub: Any = replica_control_pb2_grpc.ReplicaControlStub(secured.channel)
    metadata = secured.as_user("admin").metadata
    for method in replica_control_pb2.DESCRIPTOR.services_by_name["ReplicaControl"].methods:
        request = getattr(replica_control_pb2, method.input_type.name)()
        call = getattr(stub, method.name)(request, metadata=metadata, timeout=5)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await (call.read() if method.server_streaming else call)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_the_debug_role_lists_offsets_of_nobody_who_may_not_alter_the_cluster(secured: SecuredBroker) -> None:
    manager = secured.trio.replica_manager
    assert manager is not None
    part = broker_pb2.ListOffsetsPartition(partition=to_key(PartitionKey(bytes(16), 0)), leader_epoch=-1)
    request = broker_pb2.ListOffsetsRequest(replica_id=-2, partitions=[part])
    refused = {}
    async with open_channel(manager.addresses["INTERNAL"]) as channel:
        stub: Any = broker_pb2_grpc.BrokerStub(channel)
        for name in ("mallory", "admin"):
            listed = await stub.ListOffsets(request, metadata=secured.as_user(name).metadata, timeout=10)
            refused[name] = from_proto(listed.results[0].error) is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert refused == {"mallory": True, "admin": False}


async def test_an_unknown_caller_is_anonymous_and_may_nothing(secured: SecuredBroker) -> None:
    response = await secured.as_user(None).broker.DescribeLogDirs(broker_pb2.DescribeLogDirsRequest())
    assert from_proto(response.error) is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert "User:ANONYMOUS" in response.error.message
