"""Metadata as each listener's clients get it: the addresses of the listener that they came in by."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from highwater.errors import ErrorCode
from highwater.metadata.schema.models import PartitionState
from highwater.replica_manager.replicas.metadata_cache import CachedPartition, CachedTopic, Endpoint, MetadataCache
from highwater.replica_manager.server.broker_servicer import BrokerServicer
from highwater.rpc.errors import from_proto
from highwater.rpc.listeners import Listener
from highwater.v1 import broker_pb2

BOTH = Endpoint(1, 11, "in:1", "", {"INTERNAL": "in:1", "CLIENT": "out:1"})
INTERNAL_ONLY = Endpoint(2, 12, "in:2", "", {"INTERNAL": "in:2"})
OLDER = Endpoint(3, 13, "all:3", "")  # from before there were listeners


async def metadata(listener: str, *brokers: Endpoint) -> broker_pb2.MetadataResponse:
    """Of a topic whose partition n is led by broker n + 1."""
    cache = MetadataCache()
    cache.set_brokers(brokers)
    partitions = {
        number: CachedPartition(
            PartitionState(leader=number + 1, leader_epoch=5, leader_broker_epoch=11, isr=(1, 2, 3)), 7, (1, 2, 3)
        )
        for number in range(4)
    }
    cache.update([CachedTopic("t", b"t" * 16, {}, partitions)], full=True)
    nothing, broker = cast(Any, None), cast(Any, SimpleNamespace(metadata=cache, broker_id=1))
    creation = cast(Any, SimpleNamespace(enabled=False))
    servicer = BrokerServicer(
        broker,
        nothing,
        nothing,
        nothing,
        nothing,
        nothing,
        creation,
        cluster_id=lambda: "c",
        listener=Listener(listener, "INTERNAL"),
    )
    return await servicer.Metadata(broker_pb2.MetadataRequest(topics=["t"]), nothing)


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
