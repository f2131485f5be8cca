"""What brokers are told of topics: what changed, and all there is in pieces; serialised once for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

import pytest

from highwater.controller.sending.metadata_messages import MetadataMessages
from highwater.controller.sending.metadata_outbox import MAX_PARTITIONS, MetadataBatch, MetadataOutbox
from highwater.controller.state_machines.actions import SendMetadata
from highwater.controller.state_machines.replica_state_machine import ReplicaStatus
from highwater.controller.state_machines.topic_deletion import TopicDeletion
from highwater.controller.state_machines.topic_table import TopicTable
from highwater.metadata.schema.models import PartitionState, TopicAssignment, VersionedState, VersionedTopic
from highwater.model.partition import PartitionKey
from highwater.replica_manager.replicas.metadata_cache import MetadataCache
from highwater.replica_manager.server.control_servicer import cached_topics
from highwater.v1 import replica_control_pb2

A, B, C = (PartitionKey(b"t" * 16, number) for number in range(3))


def send(keys: Sequence[PartitionKey] = (), *, full: bool = False, deleted: Sequence[bytes] = ()) -> SendMetadata:
    return SendMetadata(1, 10, full=full, keys=tuple(keys), deleted_topic_ids=frozenset(deleted))


class Topics:
    """A controller's table, and what happens to it."""

    def __init__(self) -> None:
        self.table = TopicTable()
        self.revision = 100

    def add(self, name: str, partitions: int, config: dict[str, str] | None = None) -> list[PartitionKey]:
        known = self.table.named(name)
        topic_id = known.topic_id if known is not None else name.encode().ljust(16) + b""
        assignment = TopicAssignment(name, topic_id, ((1, 2),) * partitions)
        topic = self.table.add(VersionedTopic(assignment, self.revision, self.revision), config or {})
        for partition in topic.partitions:
            if partition.versioned is None:
                self.change(partition.key)
        return [partition.key for partition in topic.partitions]

    def change(self, key: PartitionKey) -> None:
        self.revision += 1
        partition = self.table.partition(key)
        assert partition is not None
        epoch = 0 if partition.versioned is None else partition.versioned.state.leader_epoch + 1
        state = PartitionState(leader=1, leader_epoch=epoch, leader_broker_epoch=5, isr=(1, 2))
        self.table.seen(partition, VersionedState(state, self.revision))

    def delete(self, name: str) -> bytes:
        topic = self.table.named(name)
        assert topic is not None
        self.table.begin_deletion(topic, TopicDeletion((), 0))
        return topic.topic_id


def request_of(messages: MetadataMessages, batch: MetadataBatch, topics: Topics) -> bytes:
    """As a sender makes it."""
    head = replica_control_pb2.UpdateMetadataRequest(
        controller_id=1, full=batch.full, deleted_topic_ids=sorted(batch.deleted)
    )
    return messages.request(head, batch, topics.table)


def told(cache: MetadataCache, request: bytes) -> replica_control_pb2.UpdateMetadataRequest:
    """A broker that takes the request."""
    message = replica_control_pb2.UpdateMetadataRequest.FromString(request)
    if cache.in_order(message.controller_epoch, message.sequence):
        topics = asyncio.run(cached_topics(message.topics))
        cache.update(topics, full=message.full, deleted=list(message.deleted_topic_ids))
    return message


def partitions_in(request: bytes) -> int:
    message = replica_control_pb2.UpdateMetadataRequest.FromString(request)
    return sum(len(topic.partitions) for topic in message.topics)


def test_what_changed_is_told_once_and_survives_failures() -> None:
    box, table = MetadataOutbox(), TopicTable()
    assert box.told
    assert box.next(0, table) is None
    box.add(send([A]))
    box.add(send([B, A], deleted=[b"c"]))
    batch = box.next(0, table)
    assert batch == MetadataBatch((A, B), (), frozenset({b"c"}))
    assert not box.told
    assert box.due_ms() is None
    box.add(send([C]))
    box.failed(batch, 0)
    assert box.next(0, table) is None
    due_ms = box.due_ms()
    assert due_ms is not None
    assert box.next(due_ms, table) == MetadataBatch((C, A, B), (), frozenset({b"c"}))
    box.answered()
    assert box.told


def test_brokers_that_come_and_go_are_told_of_without_any_topic() -> None:
    box = MetadataOutbox()
    box.add(send())
    assert box.next(0, TopicTable()) == MetadataBatch()


def test_an_empty_cluster_is_told_of_as_well() -> None:
    """The broker knows then that there are no topics (RULES 9.4)."""
    box = MetadataOutbox()
    box.add(send(full=True))
    assert box.next(0, TopicTable()) == MetadataBatch(full=True)


def test_no_request_is_larger_than_the_bound() -> None:
    topics = Topics()
    for name, size in (("a", 3), ("b", 2 * MAX_PARTITIONS + 7), ("c", 5), ("d", MAX_PARTITIONS), ("e", 1)):
        topics.add(name, size)
    total = 3 * MAX_PARTITIONS + 16
    box, cache, messages = MetadataOutbox(), MetadataCache(), MetadataMessages()
    box.add(send(full=True))
    sizes = []
    while (batch := box.next(0, topics.table)) is not None:
        request = request_of(messages, batch, topics)
        assert not cache.complete
        told(cache, request)
        sizes.append(partitions_in(request))
        box.answered()
    assert cache.complete
    assert max(sizes) == MAX_PARTITIONS
    assert sum(sizes) == total
    assert sum(len(topic.partitions) for topic in cache.topics()) == total
    box.add(send([partition.key for partition in topics.table.partitions()]))
    batch = box.next(0, topics.table)
    assert batch is not None
    assert len(batch.keys) == MAX_PARTITIONS
    assert not box.told


def test_a_hundred_brokers_are_told_of_what_is_serialised_once() -> None:
    topics = Topics()
    for number in range(20):
        topics.add(f"t{number}", 100)
    messages = MetadataMessages()
    boxes = [MetadataOutbox() for _ in range(100)]

    def tell_all() -> set[bytes]:
        sent = []
        for box in boxes:
            while (batch := box.next(0, topics.table)) is not None:
                request = replica_control_pb2.UpdateMetadataRequest.FromString(request_of(messages, batch, topics))
                request.sequence = 0  # all that is each one's own
                sent.append(request.SerializeToString(deterministic=True))
                box.answered()
        return set(sent)

    for box in boxes:
        box.add(send(full=True))
    tell_all()
    assert messages.serialised == 2_000
    changed = PartitionKey(b"t7".ljust(16), 3)
    topics.change(changed)
    for box in boxes:
        box.add(send([changed]))
    (request,) = tell_all()
    assert messages.serialised == 2_001
    assert partitions_in(request) == 1
    for box in boxes:  # a new controller's brokers register again: its topic alone is serialised anew
        box.add(send(full=True))
    tell_all()
    assert messages.serialised == 2_101


def test_a_log_that_is_offline_is_news() -> None:
    topics, messages, box = Topics(), MetadataMessages(), MetadataOutbox()
    (key,) = topics.add("t", 1)
    partition = topics.table.partition(key)
    assert partition is not None
    for offline in (False, True):
        box.add(send([key], full=True))
        batch = box.next(0, topics.table)
        assert batch is not None
        box.answered()
        message = replica_control_pb2.UpdateMetadataRequest.FromString(request_of(messages, batch, topics))
        assert [list(each.partitions[0].state.offline_replicas) for each in message.topics if each.partitions] == [
            [2] if offline else []
        ]
        partition.replica_states[2].status = ReplicaStatus.LOG_OFFLINE
        topics.table.offline_changed(partition)


@pytest.mark.parametrize("seed", range(60))
def test_whatever_is_lost_on_the_way_everybody_knows_everything_in_the_end(
    seed: int,
) -> None:
    """RULES 8.10: topics are made, changed and deleted while requests fail, and while all there is goes out."""
    random = Random(seed)
    topics, messages = Topics(), MetadataMessages()
    brokers = [(MetadataOutbox(max_partitions=5), MetadataCache()) for _ in range(3)]
    now_ms = 0

    def everybody(what: SendMetadata) -> None:
        for box, _ in brokers:
            box.add(what)

    def deliver(box: MetadataOutbox, cache: MetadataCache, lost: float) -> bool:
        batch = box.next(now_ms, topics.table)
        if batch is None:
            return False
        request = request_of(messages, batch, topics)
        arrives, answered = random.random() >= lost / 2, random.random() >= lost
        if arrives:
            told(cache, request)
        if not arrives or not answered:
            box.failed(batch, now_ms)
        else:
            box.answered()
        return True

    everybody(send(full=True))
    for step in range(80):
        names = [topic.name for topic in topics.table if topic.deletion is None]
        match random.randrange(6):
            case 0:
                everybody(send(topics.add(f"n{step}", random.randint(1, 12))))
            case 1 if names:
                name = random.choice(names)
                topic = topics.table.named(name)
                assert topic is not None
                grown = len(topic.partitions) + random.randint(0, 3)
                everybody(send(topics.add(name, grown, {"retention.ms": str(step)})))
            case 2 | 3 if names:
                key = random.choice(topics.table.partitions()).key
                changed = topics.table.identified(key.topic_id)
                if changed is not None and changed.deletion is None:
                    topics.change(key)
                    everybody(send([key]))
            case 4 if len(names) > 2:
                everybody(send(deleted=[topics.delete(random.choice(names))]))
            case 5 if random.random() < 0.2:
                random.choice(brokers)[0].add(send(full=True))
        now_ms += random.choice((0, 40, 1_000))
        for box, cache in brokers:
            deliver(box, cache, lost=0.4)
    now_ms += 10_000
    for box, cache in brokers:
        while deliver(box, cache, lost=0):
            pass
        assert box.told
        assert cache.complete
        there = {topic.topic_id: topic for topic in topics.table if topic.deletion is None}
        assert {topic.topic_id for topic in cache.topics()} == set(there)
        for topic in cache.topics():
            known = there[topic.topic_id]
            assert topic.config == known.config
            assert {number: (each.state, each.revision) for number, each in topic.partitions.items()} == {
                each.key.partition: (each.versioned.state, each.versioned.revision)
                for each in known.partitions
                if each.versioned is not None
            }


def test_a_request_that_comes_after_a_later_one_is_not_taken() -> None:
    """RULES 8.10: what it does not name was made since, and what it names may be gone."""
    topics, messages, cache = Topics(), MetadataMessages(), MetadataCache()
    outbox = MetadataOutbox()
    outbox.add(send(full=True))
    topics.add("gone", 1)
    late = request_of(messages, next_of(outbox, topics), topics)
    outbox = MetadataOutbox()  # of the broker's next registration
    deleted = topics.delete("gone")
    topics.add("made", 1)
    outbox.add(send(full=True, deleted=[deleted]))
    told(cache, request_of(messages, next_of(outbox, topics), topics))
    told(cache, late)
    assert [topic.topic for topic in cache.topics()] == ["made"]
    assert cache.by_id(deleted) is None


def test_the_order_is_of_one_controllers_term() -> None:
    cache = MetadataCache()
    assert [cache.in_order(*each) for each in ((3, 7), (3, 7), (3, 6), (3, 9), (4, 1), (3, 10))] == [
        True,
        False,
        False,
        True,
        True,
        False,
    ]
    assert cache.in_order(4, 0)  # of a controller from before there was an order
    assert not cache.in_order(4, 1)


def next_of(outbox: MetadataOutbox, topics: Topics) -> MetadataBatch:
    batch = outbox.next(0, topics.table)
    assert batch is not None
    assert batch.full
    return batch
