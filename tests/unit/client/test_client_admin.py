"""Administration against the cluster double."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from cluster_double import ClusterDouble

from highwater.client import (
    EARLIEST_TIMESTAMP,
    Admin,
    ClientClosedError,
    ConfigValue,
    HighwaterError,
    InvalidRequestError,
    LeaderNotAvailableError,
    NewTopic,
    Producer,
    TopicAlreadyExistsError,
    TopicPartition,
    UnknownTopicError,
)
from highwater.errors import ErrorCode
from highwater.v1 import broker_pb2


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that nobody knows is not looked for as long as in earnest."""
    monkeypatch.setattr("highwater.client.cluster.cluster.UNKNOWN_TOPIC_PATIENCE_S", 0.3)


@pytest.fixture
async def cluster() -> AsyncIterator[ClusterDouble]:
    async with ClusterDouble(brokers=2) as running:
        yield running


async def test_topics_are_made_described_and_deleted(cluster: ClusterDouble) -> None:
    async with Admin(cluster.bootstrap) as admin:
        made = await admin.create_topic("t", 3, 1, {"payload.format": "rows"})
        assert (made.topic, made.partitions, made.error) == ("t", 3, None)
        results = await admin.create_topics([NewTopic("t"), NewTopic("u")])
        assert [type(result.error) for result in results] == [TopicAlreadyExistsError, type(None)]
        with pytest.raises(TopicAlreadyExistsError, match="topic t exists"):
            await admin.create_topic("t")
        assert await admin.list_topics() == ["t", "u"]
        (described,) = await admin.describe_topics(["t"])
        assert described.config == {"payload.format": "rows"}
        assert [partition.leader for partition in described.partitions] == [1, 2, 1]
        assert [topic.topic for topic in await admin.describe_topics()] == ["t", "u"]
        await admin.delete_topic("u")
        assert await admin.list_topics() == ["t"]
        with pytest.raises(UnknownTopicError, match="u does not exist"):
            await admin.delete_topic("u")
        with pytest.raises(UnknownTopicError, match="'u' does not exist"):
            await admin.describe_topics(["u"])
    with pytest.raises(ClientClosedError):
        await admin.list_topics()


async def test_partitions_are_added(cluster: ClusterDouble) -> None:
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topic("t", 2)
        checked = await admin.create_partitions("t", 4, validate_only=True)
        assert (checked.partitions, len(cluster.topics["t"].partitions)) == (4, 2)
        grown = await admin.create_partitions("t", 4, [[1], [2]])
        assert (grown.topic, grown.partitions, grown.error) == ("t", 4, None)
        asked = cluster.growth_requests[-1].assignment
        assert [(each.partition, list(each.replicas)) for each in asked] == [(2, [1]), (3, [2])]
        (described,) = await admin.describe_topics(["t"])
        assert len(described.partitions) == 4
        with pytest.raises(InvalidRequestError, match="has 4"):
            await admin.create_partitions("t", 4)
        with pytest.raises(UnknownTopicError):
            await admin.create_partitions("absent", 4)


async def test_an_answer_that_was_lost_does_not_make_a_success_a_failure(cluster: ClusterDouble) -> None:
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topic("t", 2)
        cluster.lose_answers = 1
        grown = await admin.create_partitions("t", 3)
        assert (grown.partitions, grown.error) == (3, None)
        assert len(cluster.growth_requests) == 2
        cluster.lose_answers = 1
        with pytest.raises(InvalidRequestError, match="has 3"):
            await admin.create_partitions("t", 2)


async def test_a_topics_configuration_is_changed_and_described(cluster: ClusterDouble) -> None:
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topic("t", config={"retention.ms": "1", "flush.ms": "5"})
        await admin.alter_topic_config("t", {"retention.ms": "2"}, ["flush.ms"])
        await admin.alter_topic_config("t", {"retention.ms": "3"}, validate_only=True)
        assert await admin.describe_topic_config("t") == {
            "retention.ms": ConfigValue("2", "topic"),
            "min.insync.replicas": ConfigValue("2", "controller"),
            "segment.ms": ConfigValue(None, "brokers"),
        }
        assert ConfigValue("2", "controller").is_default
        with pytest.raises(InvalidRequestError, match="'bad'"):
            await admin.alter_topic_config("t", {"bad": "1"})
        with pytest.raises(UnknownTopicError):
            await admin.describe_topic_config("absent")
    async with Admin(cluster.bootstrap, request_timeout_ms=200) as admin:
        with pytest.raises(UnknownTopicError, match="no topic absent"):
            await admin.alter_topic_config("absent", {})


async def test_leaderships_go_back_to_the_preferred_leaders(cluster: ClusterDouble) -> None:
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topic("t", 4)
        partitions = cluster.topics["t"].partitions
        for number, leader in enumerate((2, 2, 1, 2)):
            partitions[number].leader = leader
        assert await admin.elect_leaders([]) == {}
        outcomes = await admin.elect_leaders([("t", 1), ("t", 2)])
        assert list(outcomes) == [TopicPartition("t", 1)]
        error = outcomes["t", 1]
        assert isinstance(error, HighwaterError)
        assert (error.code, str(error)) == (ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "broker 1 is not in the ISR")
        outcomes = await admin.elect_leaders()
        assert {number: error is None for (_, number), error in outcomes.items()} == {0: True, 1: False, 3: False}
        assert [partition.leader for partition in partitions] == [1, 2, 1, 2]


async def test_administration_goes_by_a_broker_that_has_a_way_to_the_controller(cluster: ClusterDouble) -> None:
    async with Admin(cluster.bootstrap) as admin:
        assert cluster.metadata(broker_pb2.MetadataRequest()).controller_address == ""  # it needs none
        for broker in cluster.brokers.values():
            cluster.controller = broker.broker_id
            others = [other for other in cluster.brokers.values() if other is not broker]
            for other in others:
                other.way_to_controller = False
            described = await admin.describe_cluster()
            assert described.controller_id == broker.broker_id
            assert [each.broker_id for each in described.brokers] == [1, 2]
            for other in others:
                other.way_to_controller = True


@pytest.fixture
async def older() -> AsyncIterator[ClusterDouble]:
    async with ClusterDouble(brokers=2, forwards=False) as running:
        yield running


async def test_by_older_brokers_the_acting_controller_is_found_through_one_that_is_not(older: ClusterDouble) -> None:
    older.controller = 2  # metadata still name controller 1
    async with Admin(older.bootstrap) as admin:
        described = await admin.describe_cluster()
        assert described.controller_id == 2
        assert [broker.broker_id for broker in described.brokers] == [1, 2]
        await admin.create_topic("t")
        older.controller = 1
        await admin.create_topic("u")
    assert sorted(older.topics) == ["t", "u"]


async def test_what_an_older_broker_does_not_forward_was_not_done(older: ClusterDouble) -> None:
    """So that a refusal is not taken for the answer to something done before."""
    async with Admin(older.bootstrap) as admin:
        await admin.create_topic("t", 2)
        with pytest.raises(InvalidRequestError, match="has 2"):
            await admin.create_partitions("t", 2)


async def test_without_a_controller_the_error_says_so(older: ClusterDouble) -> None:
    def nobody(response: broker_pb2.MetadataResponse) -> None:
        response.controller_id, response.controller_address = -1, ""

    for broker in older.brokers.values():
        broker.metadata_view = nobody
    async with Admin(older.bootstrap, request_timeout_ms=200) as admin:
        with pytest.raises(LeaderNotAvailableError, match="no controller is known"):
            await admin.describe_cluster()


async def test_offsets(cluster: ClusterDouble) -> None:
    cluster.create("t", 2)
    async with Producer(cluster.bootstrap) as producer:
        for number in range(10):
            await producer.send("t", b"v", partition=0, timestamp_ms=number)
    first, second = TopicPartition("t", 0), TopicPartition("t", 1)
    async with Admin(cluster.bootstrap) as admin:
        latest = await admin.list_offsets([first, second])
        assert {partition: found.offset for partition, found in latest.items()} == {first: 10, second: 0}
        found = await admin.list_offsets({first: 5, second: EARLIEST_TIMESTAMP})
        assert (found[first].offset, found[first].timestamp_ms, found[second].offset) == (5, 5, 0)


def test_every_code_has_one_exception_that_knows_whether_a_retry_helps() -> None:
    from highwater.client.exceptions import error_for

    for code in ErrorCode:
        error = error_for(code, "")
        assert isinstance(error, HighwaterError)
        assert error.code is code
        assert error.retriable == code.retriable, code
        assert str(error)


async def test_a_call_that_waits_to_try_again_ends_when_the_admin_is_stopped() -> None:
    async with ClusterDouble() as double:
        (broker,) = double.brokers.values()
        admin = await Admin(double.bootstrap, retry_backoff_ms=500).start()
        await broker.stop()
        failed = asyncio.Event()
        refresh = admin._cluster.refresh

        async def refreshed() -> None:
            try:
                await refresh()
            finally:
                failed.set()

        admin._cluster.refresh = refreshed  # type: ignore[method-assign]
        describing = asyncio.create_task(admin.describe_topics(["t"]))
        await failed.wait()
        await asyncio.sleep(0.1)  # into the pause
        await admin.stop()
        async with asyncio.timeout(5):
            with pytest.raises(ClientClosedError, match="was stopped"):
                await describing
