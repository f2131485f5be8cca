"""An answer about thousands of partitions is read once, however often it comes, and by however many clients."""

from __future__ import annotations

import gc
import weakref

from highwater.client.cluster.metadata import Metadata, TopicInfo
from highwater.client.cluster.metadata_response import read_metadata_answer
from highwater.v1 import broker_pb2


def response(leader_epoch: int = 5, name: str = "t", retention: str = "1000") -> broker_pb2.MetadataResponse:
    made = broker_pb2.MetadataResponse(cluster_id="c")
    topic = made.topics.add(topic=name, topic_id=b"t" * 16, config={"retention.ms": retention, "a": "b"})
    for partition in (2, 0, 1):
        topic.partitions.add(partition=partition, leader=1, leader_epoch=leader_epoch, replicas=[1, 2], isr=[1])
    return broker_pb2.MetadataResponse.FromString(made.SerializeToString())


def read(leader_epoch: int = 5, name: str = "t", retention: str = "1000") -> TopicInfo:
    (topic,) = read_metadata_answer(response(leader_epoch, name, retention)).topics
    return topic


def test_the_same_bytes_are_the_same_topic() -> None:
    first = read()
    assert [partition.partition for partition in first.partitions] == [0, 1, 2]
    assert read() is first
    others = (read(leader_epoch=6), read(name="u"), read(retention="2000"))
    assert all(other is not first for other in others)
    assert [other.partitions[0].leader_epoch for other in others] == [6, 5, 5]
    assert read() is first


def test_clients_share_it_until_they_know_better() -> None:
    one, other = Metadata(), Metadata()
    for _ in range(2):
        for metadata in (one, other):
            metadata.merge(read_metadata_answer(response()), 1.0)
    assert one.topic("t") is other.topic("t") is not None
    assert one.learn_leader("t", b"t" * 16, 1, 2, 7)
    for metadata in (one, other):
        metadata.merge(read_metadata_answer(response()), 2.0)
    known, unknown = one.partition("t", 1), other.partition("t", 1)
    assert known is not None
    assert unknown is not None
    assert (known.leader, known.leader_epoch, unknown.leader, unknown.leader_epoch) == (2, 7, 1, 5)


def test_nothing_is_kept_that_nobody_has() -> None:
    gone = weakref.ref(read(leader_epoch=99))
    gc.collect()
    assert gone() is None
