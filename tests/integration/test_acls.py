"""ACLs on a real broker, over real sockets, with a real controller and etcd: who may do what, and how soon."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic
from typing import Any

import grpc
import grpc.aio
import pytest
from controller_world import new_topic, only
from replica_manager_cluster import eventually, fetch_request, rows, to_key
from secured_broker import SecuredBroker, secured_broker

from highwater.errors import ErrorCode, UserError
from highwater.metadata.local import LocalEtcd
from highwater.metadata.schema.keys import Keys
from highwater.metadata.store.store import Store
from highwater.metadata.store.transactions import Put
from highwater.model.partition import PartitionKey
from highwater.replica_manager.service import ReplicaManagerService
from highwater.rpc.errors import from_proto
from highwater.security.principal import user
from highwater.security.tokens import make_token
from highwater.v1 import broker_pb2, common_pb2, controller_pb2, group_pb2

REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
A_SECOND = 1.0


@pytest.fixture
async def secured(etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path) -> AsyncIterator[SecuredBroker]:
    async with secured_broker(etcd, store, keys, tmp_path) as made:
        yield made


async def created(secured: SecuredBroker, *names: str) -> list[PartitionKey]:
    """Topics of one partition, made by the super user."""
    found = []
    for name in names:
        request = new_topic(name, 1, 1, config={"min.insync.replicas": "1"})
        response = await secured.as_user("admin").controller.CreateTopics(request)
        assert only(response) is ErrorCode.NONE, response
        found.append(PartitionKey(response.results[0].topic_id, 0))
    return found


def produce(*keys: PartitionKey, acks: int = 1, correlation_id: int = 0) -> broker_pb2.ProduceRequest:
    return broker_pb2.ProduceRequest(
        acks=acks,
        timeout_ms=5_000,
        correlation_id=correlation_id,
        partitions=[broker_pb2.ProducePartition(partition=to_key(key), records=rows(b"v")) for key in keys],
    )


def errors(response: Any) -> list[ErrorCode]:
    assert from_proto(response.error) is ErrorCode.NONE, response
    return [from_proto(each.error) for each in response.results]


def fetched(key: PartitionKey, max_wait_ms: int = 0) -> broker_pb2.FetchRequest:
    request = fetch_request(key, 0, max_wait_ms)
    request.consumer.SetInParent()
    return request


async def fetch(caller: Any, key: PartitionKey) -> ErrorCode:
    (error,) = errors(await caller.broker.Fetch(fetched(key)))
    return error


async def test_a_partition_is_refused_beside_those_that_are_open(secured: SecuredBroker) -> None:
    opened, closed = await created(secured, "orders", "secrets")
    alice = secured.as_user("alice")
    assert errors(await alice.broker.Produce(produce(opened, closed))) == [REFUSED, REFUSED]

    await secured.allow("allow alice write topic ord*")
    response = await alice.broker.Produce(produce(closed, opened, closed))
    assert errors(response) == [REFUSED, ErrorCode.NONE, REFUSED]
    assert response.results[1].base_offset == 0  # nothing had been written before
    assert response.results[0].error.message == (
        f"User:alice may not WRITE the topic of id {closed.topic_id.hex()}: ask who runs the cluster for an ACL"
    )  # without its name
    assert not response.results[0].error.retriable
    assert await fetch(alice, opened) is REFUSED  # to write is not to read


async def test_deny_goes_before_allow_and_everybody_before_nobody(secured: SecuredBroker) -> None:
    (orders,) = await created(secured, "orders")
    await secured.allow("allow * read topic *", "deny mallory read topic orders")
    assert await fetch(secured.as_user("bob"), orders) is ErrorCode.NONE
    assert await fetch(secured.as_user(None), orders) is ErrorCode.NONE  # anonymous
    assert await fetch(secured.as_user("mallory"), orders) is REFUSED


async def test_metadata_leaves_out_what_is_not_to_be_seen(secured: SecuredBroker) -> None:
    orders, secrets = await created(secured, "orders", "secrets")
    await secured.allow("allow alice describe topic orders")
    alice = secured.as_user("alice")
    everything = await alice.broker.Metadata(broker_pb2.MetadataRequest(all_topics=True))
    assert [topic.topic for topic in everything.topics] == ["orders"]

    named = await alice.broker.Metadata(broker_pb2.MetadataRequest(topics=["secrets", "nothing", "orders"]))
    assert [(topic.topic, from_proto(topic.error)) for topic in named.topics] == [
        ("secrets", REFUSED),
        ("nothing", REFUSED),  # whether it is there is not told
        ("orders", ErrorCode.NONE),
    ]
    assert not named.topics[0].topic_id
    assert not named.topics[0].partitions

    by_id = await alice.broker.Metadata(broker_pb2.MetadataRequest(topic_ids=[secrets.topic_id, orders.topic_id]))
    assert [(topic.topic, from_proto(topic.error)) for topic in by_id.topics] == [
        ("", REFUSED),
        ("orders", ErrorCode.NONE),
    ]


@pytest.mark.parametrize("incremental", [False, True])
async def test_a_revocation_reaches_open_streams_within_a_second(secured: SecuredBroker, incremental: bool) -> None:
    """A produce stream and a fetch stream that waits for data, of an open topic and of one that is closed meanwhile:
    neither stream ends."""
    stays, goes = await created(secured, "stays", "goes")
    grants = "allow alice all topic stays", "allow alice all topic goes"
    await secured.allow(*grants)
    alice = secured.as_user("alice")
    producing = alice.broker.ProduceStream()
    fetching = alice.broker.FetchStream()

    async def produced(number: int) -> list[ErrorCode]:
        await producing.write(produce(stays, goes, correlation_id=number))
        response = await producing.read()
        assert response.correlation_id == number
        return errors(response)

    def of_both(offset: int, correlation_id: int) -> broker_pb2.FetchRequest:
        request = broker_pb2.FetchRequest(correlation_id=correlation_id, max_wait_ms=30_000, min_bytes=1 << 20)
        for key in (stays, goes):
            request.partitions.add(partition=to_key(key), leader_epoch=-1, fetch_offset=offset, max_bytes=1 << 20)
        request.accepts.append(broker_pb2.PAYLOAD_ROWS)
        request.incremental = incremental
        request.consumer.SetInParent()
        return request

    assert await produced(1) == [ErrorCode.NONE, ErrorCode.NONE]
    await fetching.write(of_both(1, 1))  # at the end: it waits, where the answer to the first is not told at once
    if incremental:
        await fetching.read()
        waiting = broker_pb2.FetchRequest(correlation_id=2, max_wait_ms=30_000, min_bytes=1 << 20, incremental=True)
        waiting.accepts.append(broker_pb2.PAYLOAD_ROWS)
        waiting.consumer.SetInParent()
        await fetching.write(waiting)
    answer = asyncio.create_task(fetching.read())

    await secured.revoke(grants[1])
    began = monotonic()
    while await produced(2) == [ErrorCode.NONE, ErrorCode.NONE]:
        assert monotonic() < began + A_SECOND
    assert await produced(3) == [ErrorCode.NONE, REFUSED]
    async with asyncio.timeout(began + A_SECOND - monotonic()):
        response = await answer
    refused = {each.partition.topic_id: from_proto(each.error) for each in response.results}
    assert refused[goes.topic_id] is REFUSED
    assert refused.get(stays.topic_id, ErrorCode.NONE) is ErrorCode.NONE

    # and both go on
    await fetching.write(of_both(0, 3))
    told = {each.partition.topic_id: each for each in (await fetching.read()).results}
    assert from_proto(told[goes.topic_id].error) is REFUSED
    assert not told[goes.topic_id].records
    await secured.allow(grants[1])
    assert await produced(4) == [ErrorCode.NONE, ErrorCode.NONE]
    producing.cancel()
    fetching.cancel()


async def test_a_member_may_join_and_is_put_out_within_a_second(secured: SecuredBroker) -> None:
    await created(secured, "orders")
    await secured.allow("allow alice read topic orders")
    alice = secured.as_user("alice")
    member = str(uuid.uuid4())

    def word(epoch: int) -> group_pb2.SessionRequest:
        request = group_pb2.SessionRequest(group="g", member_id=member, member_epoch=epoch)
        request.subscription.topics.append("orders")
        request.subscription.rebalance_timeout_ms = 10_000
        request.owned.SetInParent()
        return request

    async def joined(caller: Any) -> tuple[Any, ErrorCode]:
        session = caller.groups.Session()
        await session.write(word(0))
        response = await session.read()
        return session, from_proto(response.error)

    assert (await joined(alice))[1] is ErrorCode.GROUP_AUTHORIZATION_FAILED
    await secured.allow("allow alice read group g", "allow bob read group g")
    assert (await joined(secured.as_user("bob")))[1] is REFUSED  # the group is open to it, the topic is not

    await alice.groups.FindCoordinator(group_pb2.FindCoordinatorRequest(groups=["g"]))  # makes the topic of offsets

    async def member_of() -> Any:
        session, error = await joined(alice)
        return session if error is ErrorCode.NONE else None

    session = await eventually(member_of, "alice joins")
    await secured.revoke("allow alice read group g")
    async with asyncio.timeout(A_SECOND):
        while from_proto((response := await session.read()).error) is ErrorCode.NONE:
            pass
    assert from_proto(response.error) is ErrorCode.GROUP_AUTHORIZATION_FAILED


async def test_a_pattern_finds_nothing_that_its_member_may_not_see(secured: SecuredBroker) -> None:
    await created(secured, "orders", "secrets")
    await secured.allow("allow mallory read group g", "allow mallory describe topic orders")
    mallory, member = secured.as_user("mallory"), str(uuid.uuid4())
    await mallory.groups.FindCoordinator(group_pb2.FindCoordinatorRequest(groups=["g"]))  # makes the topic of offsets
    word = group_pb2.SessionRequest(group="g", member_id=member)
    word.subscription.pattern = ".*"
    word.subscription.rebalance_timeout_ms = 10_000
    word.owned.SetInParent()

    async def joined() -> Any:
        session = mallory.groups.Session()
        await session.write(word)
        response = await session.read()
        return (session, response) if from_proto(response.error) is ErrorCode.NONE else None

    session, response = await eventually(joined, "mallory joins")

    async def told(wanted: list[str], response: Any = None) -> None:
        """Acknowledges until its assignment is of these topics; none but those that it may see are ever in it."""
        async with asyncio.timeout(10):
            while True:
                response = await session.read() if response is None else response
                assert from_proto(response.error) is ErrorCode.NONE, response
                if response.HasField("assignment"):
                    topics = {each.topic for each in response.assignment.topics}
                    assert topics <= seen, topics
                    await session.write(
                        group_pb2.SessionRequest(
                            member_epoch=response.member_epoch,
                            seen_assignment=response.assignment_number,
                            owned=response.assignment,
                        )
                    )
                    if topics == set(wanted):
                        return
                response = None

    async def described() -> Any:
        (group,) = (await mallory.groups.DescribeGroups(group_pb2.DescribeGroupsRequest(groups=["g"]))).groups
        (found,) = group.members
        return found

    seen = {"orders"}
    await told(["orders"], response)
    assert b"secrets" not in (await described()).SerializeToString()
    await secured.allow("allow mallory describe topic secrets")
    seen = {"orders", "secrets"}
    await told(["orders", "secrets"])
    assert {each.topic for each in (await described()).target} == {"orders", "secrets"}
    await secured.revoke("allow mallory describe topic orders")
    await told(["secrets"])
    session.cancel()


async def test_offsets_are_refused_by_group_and_by_topic(secured: SecuredBroker) -> None:
    await created(secured, "orders", "secrets")
    await secured.allow("allow alice read group g", "allow alice read topic orders", "allow bob describe group g")
    alice, bob = secured.as_user("alice"), secured.as_user("bob")
    offsets = [
        group_pb2.CommittedOffset(
            partition=common_pb2.TopicPartition(topic=topic, partition=0), offset=5, leader_epoch=-1
        )
        for topic in ("secrets", "orders")
    ]
    commit = group_pb2.CommitOffsetsRequest(group="g", member_epoch=-1, offsets=offsets)
    await alice.groups.FindCoordinator(group_pb2.FindCoordinatorRequest(groups=["g"]))

    async def committed() -> Any:
        response = await alice.groups.CommitOffsets(commit)
        taken = from_proto(response.error) is ErrorCode.NONE
        # The coordinator hears of topics in its own time.
        known = taken and from_proto(response.offsets[1].error) is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return response if known else None

    response = await eventually(committed, "the coordinator takes the commit")
    assert [(each.partition.topic, from_proto(each.error)) for each in response.offsets] == [
        ("secrets", REFUSED),
        ("orders", ErrorCode.NONE),
    ]
    refused = await bob.groups.CommitOffsets(commit)
    assert from_proto(refused.error) is ErrorCode.GROUP_AUTHORIZATION_FAILED

    asked = group_pb2.FetchOffsetsRequest(group="g", member_epoch=-1, partitions=[each.partition for each in offsets])
    response = await alice.groups.FetchOffsets(asked)
    assert [(each.offset, from_proto(each.error)) for each in response.offsets] == [
        (-1, REFUSED),
        (5, ErrorCode.NONE),
    ]
    everything = await bob.groups.FetchOffsets(group_pb2.FetchOffsetsRequest(group="g", member_epoch=-1))
    assert from_proto(everything.error) is ErrorCode.NONE
    assert not everything.offsets  # it may see the group, and no topic
    listed = await secured.as_user("mallory").groups.ListGroups(group_pb2.ListGroupsRequest())
    assert not listed.groups
    listed = await bob.groups.ListGroups(group_pb2.ListGroupsRequest())
    assert [each.group for each in listed.groups] == ["g"]


async def test_administration_is_refused_topic_by_topic(secured: SecuredBroker) -> None:
    await created(secured, "orders", "secrets")
    await secured.allow(
        "allow alice create topic a*", "allow alice delete topic orders", "allow alice describe-configs topic orders"
    )
    alice = secured.as_user("alice")
    request = controller_pb2.CreateTopicsRequest(
        topics=[
            controller_pb2.NewTopic(topic=name, partitions=1, replication_factor=1) for name in ("b", "a1", "c", "a2")
        ],
        timeout_ms=10_000,
    )
    response = await alice.controller.CreateTopics(request)
    assert [(each.topic, from_proto(each.error)) for each in response.results] == [
        ("b", REFUSED),
        ("a1", ErrorCode.NONE),
        ("c", REFUSED),
        ("a2", ErrorCode.NONE),
    ]
    configs = await alice.controller.DescribeConfigs(
        controller_pb2.DescribeConfigsRequest(
            resources=[
                controller_pb2.ConfigResource(type=controller_pb2.CONFIG_RESOURCE_TYPE_TOPIC, name=name)
                for name in ("secrets", "orders", "nothing")
            ]
        )
    )
    assert [(from_proto(each.error), bool(each.entries)) for each in configs.configs] == [
        (REFUSED, False),
        (ErrorCode.NONE, True),
        (REFUSED, False),
    ]
    user = controller_pb2.ConfigResource(type=controller_pb2.CONFIG_RESOURCE_TYPE_USER, name="bob")
    quota = controller_pb2.AlterConfigsRequest(resource=user, set={"producer_byte_rate": "1000000"})
    assert from_proto((await alice.controller.AlterConfigs(quota)).error) is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert from_proto((await secured.as_user("admin").controller.AlterConfigs(quota)).error) is ErrorCode.NONE
    everyone = controller_pb2.DescribeConfigsRequest(resources=[user], all_of_kind=True)
    (known,) = (await secured.as_user("admin").controller.DescribeConfigs(everyone)).configs
    assert known.resource == user
    told = await alice.controller.DescribeConfigs(everyone)
    assert from_proto(told.error) is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert not told.configs  # nor who has a quota
    deleted = await alice.controller.DeleteTopics(
        controller_pb2.DeleteTopicsRequest(topics=["secrets", "orders"], timeout_ms=10_000)
    )
    assert errors(deleted) == [REFUSED, ErrorCode.NONE]
    for refused in (
        await alice.controller.DescribeCluster(controller_pb2.DescribeClusterRequest()),
        await alice.controller.ElectLeaders(controller_pb2.ElectLeadersRequest()),
        await alice.controller.DescribeAcls(controller_pb2.DescribeAclsRequest()),
        await alice.controller.CreateAcls(controller_pb2.CreateAclsRequest()),
        await alice.controller.DeleteAcls(controller_pb2.DeleteAclsRequest(filters=[controller_pb2.AclFilter()])),
    ):
        assert from_proto(refused.error) is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    # the controller's own topics are nobody's to make
    assert (await secured.as_user("admin").controller.DescribeAcls(controller_pb2.DescribeAclsRequest())).acls


async def test_acls_are_listed_removed_and_refused_with_a_sentence(secured: SecuredBroker) -> None:
    await secured.allow("allow alice read topic orders", "deny bob write topic or*", "allow alice read group g")
    admin = secured.as_user("admin").controller
    asked = controller_pb2.AclFilter(
        resource_type=controller_pb2.ACL_RESOURCE_TYPE_TOPIC,
        pattern_type=controller_pb2.ACL_PATTERN_TYPE_MATCH,
        name="orders",
    )
    found = await admin.DescribeAcls(controller_pb2.DescribeAclsRequest(filter=asked))
    assert {(each.name, each.principal) for each in found.acls} == {("orders", "User:alice"), ("or", "User:bob")}
    wrong = controller_pb2.Acl(
        resource_type=controller_pb2.ACL_RESOURCE_TYPE_GROUP,
        pattern_type=controller_pb2.ACL_PATTERN_TYPE_LITERAL,
        name="g",
        principal="User:alice",
        operation=controller_pb2.ACL_OPERATION_WRITE,
        permission=controller_pb2.ACL_PERMISSION_ALLOW,
    )
    response = await admin.CreateAcls(controller_pb2.CreateAclsRequest(acls=[wrong, found.acls[0]]))
    assert errors(response) == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE]
    assert "WRITE is no operation of a GROUP" in response.results[0].error.message
    gone = await admin.DeleteAcls(controller_pb2.DeleteAclsRequest(filters=[asked, controller_pb2.AclFilter()]))
    assert [len(each.acls) for each in gone.results] == [2, 3]
    assert not (await admin.DescribeAcls(controller_pb2.DescribeAclsRequest())).acls


async def test_a_wrong_token_is_unauthenticated_with_a_sentence(secured: SecuredBroker) -> None:
    stub = secured.as_user(None).broker._stub
    good = secured.tokens["alice"]
    for value, said in (
        (f"Bearer {good}x", "none that this broker knows"),
        ("Bearer nonsense", "none that this broker knows"),
        (f"Basic {good}", "is not `Bearer <token>`"),
        ("Bearer ", "is not `Bearer <token>`"),
        ("Bearer " + "x" * 6_500, "more than"),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Metadata(broker_pb2.MetadataRequest(), metadata=(("authorization", value),), timeout=5)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert said in (refused.value.details() or "")
    stream = stub.ProduceStream(metadata=(("authorization", "Bearer nonsense"),))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stream.read()
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_tokens_come_and_go_with_the_file(secured: SecuredBroker) -> None:
    token, line = make_token(user("carol"))
    replaced = secured.tokens_file.with_name("replaced")
    await asyncio.to_thread(replaced.write_text, f"# new\n{line}\nnonsense\n")
    await asyncio.to_thread(replaced.replace, secured.tokens_file)
    stub = secured.as_user(None).broker._stub
    await stub.Metadata(broker_pb2.MetadataRequest(), metadata=(("authorization", f"Bearer {token}"),), timeout=5)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await secured.as_user("alice").broker.Metadata(broker_pb2.MetadataRequest())
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"authorizer.class.name": ""}, "set authorizer.class.name=acls"),
        ({"listeners": "CLIENT://127.0.0.1:0", "inter.broker.listener.name": ""}, "a listener of their own"),
        (
            {"listeners": "CLIENT://127.0.0.1:0,INTERNAL://127.0.0.1:0", "inter.broker.listener.name": "INTERNAL"},
            "tokens.allow.plaintext",
        ),
        ({"tokens.file": "/nowhere/tokens"}, "cannot read the tokens.file"),
    ],
)
async def test_half_of_security_is_refused_at_the_start(
    etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path, settings: dict[str, str], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        async with secured_broker(etcd, store, keys, tmp_path, settings):
            pass


async def test_an_acl_that_cannot_be_read_lets_nobody_in(secured: SecuredBroker) -> None:
    """It may have been a DENY. It is listed as what it is taken for, counted, and removed as that."""
    orders, others = await created(secured, "orders", "others")
    await secured.allow("allow alice read topic *")
    alice, admin = secured.as_user("alice"), secured.as_user("admin")
    manager = secured.trio.replica_manager
    assert manager is not None
    stored = secured.world
    for name, of_others in (("topic/literal/orders/User:alice/rea", ErrorCode.NONE), ("t\u00f6pic/garbage", REFUSED)):
        key = stored.keys.acls + name
        await stored.store.txn((), (Put(key, b"{}"),))
        await secured.decided()
        assert await fetch(alice, orders) is REFUSED, name
        assert await fetch(alice, others) is of_others, name
        assert await fetch(admin, orders) is ErrorCode.NONE, name
        assert gauge(manager, "unreadable_acls") == 1
        described = await admin.controller.DescribeAcls(controller_pb2.DescribeAclsRequest())
        denied = [each for each in described.acls if each.unreadable]
        assert {each.unreadable for each in denied} == {key}
        assert {(each.operation, each.permission, each.principal) for each in denied} == {
            (controller_pb2.ACL_OPERATION_ALL, controller_pb2.ACL_PERMISSION_DENY, "User:*")
        }
        wanted = controller_pb2.AclFilter(
            resource_type=controller_pb2.ACL_RESOURCE_TYPE_TOPIC,
            pattern_type=controller_pb2.ACL_PATTERN_TYPE_LITERAL,
            principal="User:*",
            permission=controller_pb2.ACL_PERMISSION_DENY,
        )
        request = controller_pb2.DeleteAclsRequest(filters=[wanted])
        (deleted,) = (await admin.controller.DeleteAcls(request)).results
        assert [each.unreadable for each in deleted.acls] == [key]
        await secured.decided()
        assert await fetch(alice, orders) is ErrorCode.NONE
        assert gauge(manager, "unreadable_acls") == 0


async def test_an_acl_that_a_hand_has_written_otherwise_is_removed_by_its_own_key(secured: SecuredBroker) -> None:
    (orders,) = await created(secured, "orders")
    stored = secured.world
    await stored.store.txn((), (Put(stored.keys.acls + "TOPIC/Literal/orders/User:alice/READ/Allow", b"{}"),))
    await secured.decided()
    assert await fetch(secured.as_user("alice"), orders) is ErrorCode.NONE
    await secured.revoke("allow alice read topic orders")
    await secured.decided()
    assert await fetch(secured.as_user("alice"), orders) is REFUSED


def gauge(manager: ReplicaManagerService, name: str) -> float:
    value: float | None = manager._metrics.registry.get_sample_value(f"highwater_replica_manager_{name}")
    assert value is not None
    return value
