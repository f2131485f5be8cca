"""A client's view of the cluster (RULES 5.7): leader epochs rise only, whoever says otherwise."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.client.cluster.cluster import Cluster
from highwater.client.cluster.metadata import (
    NO_LEADER,
    BrokerInfo,
    Metadata,
    MetadataAnswer,
    PartitionInfo,
    TopicError,
    TopicInfo,
)
from highwater.client.exceptions import RequestTimedOutError, UnknownTopicError
from highwater.errors import ErrorCode
from highwater.v1 import broker_pb2


def answer(
    leader: int, leader_epoch: int, *, topic_id: bytes = b"A" * 16, partitions: int = 1, missing: bool = False
) -> MetadataAnswer:
    brokers = tuple(BrokerInfo(broker_id, 1, f"host:{broker_id}") for broker_id in (1, 2, 3))
    found = TopicInfo("t", topic_id, tuple(PartitionInfo(index, leader, leader_epoch) for index in range(partitions)))
    error = TopicError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return MetadataAnswer("c", brokers, () if missing else (found,), {"t": error} if missing else {}, 1, "host:1")


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 9), st.booleans()), min_size=1))
def test_the_leader_of_the_highest_epoch_stays(seen: list[tuple[int, int, bool]]) -> None:
    metadata = Metadata()
    highest = -1
    for leader, leader_epoch, missing in seen:
        metadata.merge(answer(leader, leader_epoch, missing=missing), 1.0)
        if missing:
            assert metadata.topic("t") is None
            continue
        highest = max(highest, leader_epoch)
        info = metadata.partition("t", 0)
        assert info is not None
        assert info.leader_epoch == highest


def test_an_epoch_seen_in_a_batch_or_a_hint_counts_too() -> None:
    metadata = Metadata()
    metadata.merge(answer(1, 5), 1.0)
    assert metadata.learn_leader("t", b"A" * 16, 0, NO_LEADER, 7)
    assert metadata.leader_address("t", 0) is None
    assert metadata.stale(["t"])
    metadata.merge(answer(1, 6), 1.0)
    assert metadata.leader_address("t", 0) is None
    metadata.merge(answer(2, 7), 1.0)
    assert metadata.leader_address("t", 0) == "host:2"
    assert not metadata.learn_leader("t", b"A" * 16, 0, 1, 6)
    assert not metadata.learn_leader("t", b"B" * 16, 0, 1, 9)


def test_a_topic_made_again_begins_anew_and_its_dead_twin_is_not_believed() -> None:
    metadata = Metadata()
    metadata.merge(answer(1, 5), 1.0)
    metadata.merge(answer(2, 0, topic_id=b"B" * 16), 1.0)
    assert metadata.leader_address("t", 0) == "host:2"
    metadata.merge(answer(1, 5), 1.0)
    known = metadata.topic("t")
    assert known is not None
    assert known.topic_id == b"B" * 16


def test_partitions_that_were_added_are_not_lost_to_a_broker_that_lags() -> None:
    metadata = Metadata()
    metadata.merge(answer(1, 5, partitions=3), 1.0)
    metadata.merge(answer(1, 5, partitions=2), 1.0)
    known = metadata.topic("t")
    assert known is not None
    assert len(known.partitions) == 3
    assert metadata.partition("t", 3) is None


def brokers(*epochs: int) -> MetadataAnswer:
    found = (BrokerInfo(number, epoch, f"host:{epoch}") for number, epoch in enumerate(epochs) if epoch)
    return MetadataAnswer("c", tuple(found), (), {}, 1, "host:1")


def test_broker_epochs_that_begin_anew_are_believed() -> None:
    """RULES 7.9: in an etcd that was made again revisions are small."""
    metadata = Metadata()
    metadata.merge(brokers(700, 800, 900), 1.0)
    metadata.merge(brokers(500, 800, 900), 1.0)  # of a broker that lags
    assert not metadata.began_anew
    assert metadata.brokers[0].address == "host:700"
    metadata.merge(brokers(30, 40, 0), 1.0)  # one is not registered yet
    assert metadata.began_anew
    metadata.merge(brokers(30, 40, 50), 1.0)
    assert [metadata.brokers[number].address for number in range(3)] == ["host:30", "host:40", "host:50"]
    metadata.merge(brokers(60, 40, 50), 1.0)
    metadata.merge(brokers(30, 40, 50), 1.0)
    assert metadata.brokers[0].address == "host:60"


def test_broker_epochs_begin_anew_while_some_are_missing() -> None:
    """A broker that was away before, beside one that is not back yet: what is old must not stay beside what is new."""
    metadata = Metadata()
    metadata.merge(brokers(700, 800, 0), 1.0)
    metadata.merge(brokers(30, 0, 40), 1.0)
    metadata.merge(brokers(30, 50, 40), 1.0)
    assert [metadata.brokers[number].address for number in range(3)] == ["host:30", "host:50", "host:40"]


def test_who_believed_a_broker_that_lags_does_not_for_long() -> None:
    metadata = Metadata()
    metadata.merge(brokers(700, 0, 0), 1.0)
    metadata.merge(brokers(500, 600, 0), 1.0)  # as if in an etcd that was made again
    metadata.merge(brokers(700, 0, 0), 1.0)
    assert metadata.brokers[0].address == "host:700"
    metadata.merge(brokers(500, 600, 0), 1.0)
    metadata.merge(brokers(700, 600, 0), 1.0)
    assert metadata.brokers[0].address == "host:700"


async def test_a_late_answer_takes_a_topic_from_nobody_who_looks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("highwater.client.cluster.cluster.UNKNOWN_TOPIC_PATIENCE_S", 0.0)
    cluster = Cluster("host:1", client_id="test", request_timeout_ms=5_000)
    asked, late = asyncio.Event(), asyncio.Event()

    async def ask(address: str, request: broker_pb2.MetadataRequest | None = None) -> MetadataAnswer:
        if request is None:  # of `confirm`
            return answer(1, 5)
        if "t" in request.topics:
            asked.set()
            await late.wait()
        return answer(1, 5, missing=True)

    monkeypatch.setattr(cluster, "_ask", ask)
    await cluster.start()
    try:
        found = asyncio.create_task(cluster.topic("t", 5.0))
        await asked.wait()
        await cluster.confirm()
        late.set()
        assert (await found).topic == "t"
        assert cluster.metadata.topic("t") is None
    finally:
        await cluster.close()


async def test_what_was_found_answers_nobody_who_looks_after_the_topic_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look-ups of a deleted topic that follow one another without a pause are refused all the same."""
    monkeypatch.setattr("highwater.client.cluster.cluster.UNKNOWN_TOPIC_PATIENCE_S", 0.0)
    cluster = Cluster("host:1", client_id="test", request_timeout_ms=5_000)
    asked, late = asyncio.Event(), asyncio.Event()
    deleted = False

    async def ask(address: str, request: broker_pb2.MetadataRequest | None = None) -> MetadataAnswer:
        if request is None:  # of `confirm`
            return answer(1, 5, missing=deleted)
        if "t" in request.topics:
            asked.set()
            await late.wait()
        return answer(1, 5, missing=True)

    monkeypatch.setattr(cluster, "_ask", ask)
    await cluster.start()
    try:
        first = asyncio.create_task(cluster.topic("t", 5.0))
        await asked.wait()
        await cluster.confirm()
        deleted = True
        await cluster.confirm()
        second = asyncio.create_task(cluster.topic("t", 5.0))
        await asyncio.sleep(0)
        late.set()
        assert (await first).topic == "t"
        with pytest.raises(UnknownTopicError):
            await second
        assert not cluster._searches
    finally:
        await cluster.close()


async def test_a_broker_that_this_process_was_too_late_to_give_up_is_asked_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was asked first again, and waited for as long, each time."""
    monkeypatch.setattr("highwater.client.cluster.cluster.METADATA_PATIENCE_S", 0.02)
    cluster = Cluster(["gone:1", "there:1"], client_id="test", request_timeout_ms=5_000)
    asked: list[str] = []

    async def ask(address: str, request: broker_pb2.MetadataRequest | None = None) -> MetadataAnswer:
        asked.append(address)
        if address == "gone:1":
            await asyncio.sleep(0.2)
            raise RequestTimedOutError("not within 0.2 s")
        return answer(1, 1)

    async def late() -> None:
        while True:
            time.sleep(0.06)  # noqa: ASYNC251  (what the loop does meanwhile)
            await asyncio.sleep(0)

    monkeypatch.setattr(cluster, "_ask", ask)
    load = asyncio.create_task(late())
    await cluster._ask_in_turn(broker_pb2.MetadataRequest())
    load.cancel()
    assert asked == ["gone:1", "there:1"]
    asked.clear()
    await cluster._ask_in_turn(broker_pb2.MetadataRequest())
    assert asked == ["there:1"]
