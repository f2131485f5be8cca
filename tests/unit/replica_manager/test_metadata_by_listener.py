"""Metadata as each listener's clients get it: the addresses of the listener that they came in by."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from highwater.errors import ErrorCode
from highwater.metadata.schema.models import PartitionState
from highwater.replica_manager.replicas.metadata_cache import CachedPartition, CachedTopic, Endpoint, MetadataCache
from highwater.replica_manager.server.metadata_answers import MIN_KEPT, MetadataAnswers
from highwater.rpc.errors import from_proto
from highwater.rpc.listeners import Listener
from highwater.v1 import broker_pb2

BOTH = Endpoint(1, 11, "in:1", "", {"INTERNAL": "in:1", "CLIENT": "out:1"})
INTERNAL_ONLY = Endpoint(2, 12, "in:2", "", {"INTERNAL": "in:2"})
OLDER = Endpoint(3, 13, "all:3", "")  # from before there were listeners


def cache_of(*brokers: Endpoint) -> MetadataCache:
    """A topic whose partition n is led by broker n + 1."""
    cache = MetadataCache()
    cache.set_brokers(brokers)
    cache.update([topic(range(4))], full=True)
    return cache


def topic(partitions: range, *, epoch: int = 5, name: str = "t") -> CachedTopic:
    return CachedTopic(
        name,
        name.encode().ljust(16),
        {},
        {
            number: CachedPartition(
                PartitionState(leader=number + 1, leader_epoch=epoch, leader_broker_epoch=11, isr=(1, 2, 3)),
                7,
                (1, 2, 3),
            )
            for number in partitions
        },
    )


def answers_of(cache: MetadataCache, listener: str = "CLIENT") -> MetadataAnswers:
    broker, creation = (
        cast(Any, SimpleNamespace(metadata=cache, broker_id=1)),
        cast(Any, SimpleNamespace(enabled=False)),
    )
    return MetadataAnswers(broker, creation, lambda: "c", Listener(listener, "INTERNAL"))


async def asked(answers: MetadataAnswers, **what: Any) -> broker_pb2.MetadataResponse:
    return broker_pb2.MetadataResponse.FromString(
        await answers.answer(broker_pb2.MetadataRequest(**what), cast(Any, None))
    )


async def metadata(listener: str, *brokers: Endpoint) -> broker_pb2.MetadataResponse:
    return await asked(answers_of(cache_of(*brokers), listener), topics=["t"])


def addresses(response: broker_pb2.MetadataResponse) -> dict[int, str]:
    return {broker.broker_id: broker.address for broker in response.brokers}


async def test_a_client_gets_the_addresses_of_the_listener_that_it_came_in_by() -> None:
    assert addresses(await metadata("CLIENT", BOTH, INTERNAL_ONLY, OLDER)) == {1: "out:1", 3: "all:3"}
    assert addresses(await metadata("INTERNAL", BOTH, INTERNAL_ONLY, OLDER)) == {1: "in:1", 2: "in:2", 3: "all:3"}


async def test_an_answer_has_one_address_a_broker() -> None:
    """So that it does not grow with the number of listeners."""
    response = await metadata("CLIENT", BOTH, OLDER)
    assert not any(broker.listeners for broker in response.brokers)


async def test_a_leader_without_the_listener_is_told_from_one_that_is_not_registered() -> None:
    (topic,) = (await metadata("CLIENT", BOTH, INTERNAL_ONLY, OLDER)).topics
    assert [from_proto(partition.error) for partition in topic.partitions] == [
        ErrorCode.NONE,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.NONE,
        ErrorCode.LEADER_NOT_AVAILABLE,
    ]
    assert [list(partition.offline_replicas) for partition in topic.partitions] == [[2]] * 4


def test_what_is_known_of_listeners_follows_the_registrations() -> None:
    cache = MetadataCache()
    cache.set_brokers([BOTH])
    assert cache.reached_by("CLIENT")[1].address == "out:1"
    cache.add_brokers([Endpoint(1, 21, "in:9", "", {"INTERNAL": "in:9", "CLIENT": "out:9"})])
    assert cache.reached_by("CLIENT")[1].address == "out:9"
    cache.set_brokers([])
    assert cache.reached_by("CLIENT") == {}


async def test_a_topic_is_serialised_once_until_it_changes() -> None:
    cache = cache_of(BOTH, OLDER)
    cache.update([topic(range(3), name="u")], full=False)
    answers = answers_of(cache)
    for _ in range(100):
        assert len((await asked(answers, all_topics=True)).topics) == 2
        assert len((await asked(answers, topics=["t"], topic_ids=[b"u".ljust(16)])).topics) == 2
    assert answers.serialised == 2
    cache.update([topic(range(1), epoch=6)], full=False)
    (told,) = (await asked(answers, topics=["t"])).topics
    assert [partition.leader_epoch for partition in told.partitions] == [6, 5, 5, 5]
    assert answers.serialised == 3
    await asked(answers, all_topics=True)
    assert answers.serialised == 3


async def test_what_is_kept_is_made_anew_where_a_broker_comes_or_goes() -> None:
    cache = cache_of(BOTH)
    answers = answers_of(cache)

    async def known() -> tuple[set[int], list[ErrorCode]]:
        response = await asked(answers, topics=["t"])
        return set(addresses(response)), [from_proto(partition.error) for partition in response.topics[0].partitions]

    gone = ErrorCode.LEADER_NOT_AVAILABLE
    assert await known() == ({1}, [ErrorCode.NONE, gone, gone, gone])
    cache.add_brokers([OLDER])
    assert await known() == ({1, 3}, [ErrorCode.NONE, gone, ErrorCode.NONE, gone])
    cache.set_brokers([OLDER])
    assert await known() == ({3}, [gone, gone, ErrorCode.NONE, gone])


async def test_topics_that_are_gone_are_not_kept_for_ever() -> None:
    cache = cache_of(BOTH)
    answers = answers_of(cache)
    for number in range(3 * MIN_KEPT):
        cache.update([topic(range(1), name=f"n{number}")], full=False)
        await asked(answers, topics=[f"n{number}"])
        cache.update([], full=False, deleted=[f"n{number}".encode().ljust(16)])
    assert len(answers._kept) <= MIN_KEPT
    (unknown,) = (await asked(answers, topics=["n1"])).topics
    assert from_proto(unknown.error) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
