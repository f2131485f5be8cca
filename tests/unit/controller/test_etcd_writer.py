"""What the controller takes for the state of a partition after a write of unknown outcome (RULES 2.4)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, cast

import pytest

from highwater.controller.state_machines.actions import Action, WriteState
from highwater.controller.state_machines.cluster import Cluster
from highwater.controller.state_machines.election import ElectionPolicy
from highwater.controller.term import etcd_writer
from highwater.controller.term.etcd_writer import EtcdWriter
from highwater.metadata.schema.controller_term import ControllerTerm
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import PartitionState, TopicAssignment, VersionedState, VersionedTopic
from highwater.metadata.store.etcd_errors import OutcomeUnknown
from highwater.metadata.store.transactions import Entry, TxnResult

KEYS = Keys("test")
TOPIC_ID, OTHER_ID = bytes(15) + b"\1", bytes(15) + b"\2"
LED = PartitionState(1, 4, 11, (1, 2))


class SilentStore:
    """It never says what became of a transaction; the topic and its state are read as given."""

    def __init__(self, topic_id: bytes, state: PartitionState, revision: int) -> None:
        assignment = TopicAssignment("t", topic_id, ((1, 2),))
        self._entries = {
            key: Entry(key, value, revision, revision)
            for key, value in ((KEYS.topic("t"), assignment.to_json()), (KEYS.state("t", 0), state.to_json()))
        }

    async def txn(self, *_: object, **__: object) -> TxnResult:
        raise OutcomeUnknown("no answer")

    async def get_many(self, keys: Iterable[str], **_: object) -> tuple[dict[str, Entry], int]:
        return {key: self._entries[key] for key in keys if key in self._entries}, 100


async def known_after(store: Any, monkeypatch: pytest.MonkeyPatch) -> VersionedState | None:
    """What a controller that knows `LED` knows once it has settled a write of unknown outcome."""
    monkeypatch.setattr(etcd_writer, "RETRY_PAUSE_S", 0.0)
    cluster = Cluster(0, 1, ElectionPolicy())
    cluster.topic_seen(VersionedTopic(TopicAssignment("t", TOPIC_ID, ((1, 2),)), 10, 10), {})
    (partition,) = cluster.topics.partitions()
    assert partition.pending is not None  # its first state
    cluster.refused([(partition.pending, VersionedState(LED, 20))])
    write = partition.pending or WriteState("t", partition.key, LED.with_(leader=2, leader_epoch=5), 20)
    asked: list[Action] = []

    def perform(actions: Sequence[Action]) -> None:
        asked.extend(actions)

    await EtcdWriter(store, KEYS, ControllerTerm(0, 1, 5), cluster, perform).carry_out([write])
    return partition.versioned


async def test_a_topic_of_the_same_name_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller that was deposed and does not know it may read it: its leader epochs begin anew (RULES 1.1)."""
    store = SilentStore(OTHER_ID, PartitionState(-1, 0, 0, (1, 2)), 60)
    assert await known_after(store, monkeypatch) == VersionedState(LED, 20)


async def test_what_is_read_of_the_topic_itself_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    later = LED.with_(leader=2, leader_epoch=5, isr=(2,))
    assert await known_after(SilentStore(TOPIC_ID, later, 60), monkeypatch) == VersionedState(later, 60)


class WrittenStore:
    """It does every transaction, and keeps how many states were concluded when it came."""

    def __init__(self) -> None:
        self.concluded = 0
        self.at_transaction: list[int] = []

    async def txn(self, *_: object, **__: object) -> TxnResult:
        self.at_transaction.append(self.concluded)
        await asyncio.sleep(0)
        return TxnResult(True, 100 + len(self.at_transaction), ())


async def test_thousands_of_states_are_written_and_concluded_in_pieces() -> None:
    cluster, store = Cluster(0, 1, ElectionPolicy()), WrittenStore()
    count = 3 * etcd_writer.AT_ONCE
    cluster.topic_seen(VersionedTopic(TopicAssignment("t", TOPIC_ID, ((1, 2),) * count), 10, 10), {})
    writes = [partition.pending for partition in cluster.topics.partitions() if partition.pending is not None]
    assert len(writes) == count

    def perform(actions: Sequence[Action]) -> None:
        store.concluded = sum(partition.versioned is not None for partition in cluster.topics.partitions())

    await EtcdWriter(cast(Any, store), KEYS, ControllerTerm(0, 1, 5), cluster, perform).carry_out(writes)
    assert store.concluded == count
    assert sorted(set(store.at_transaction)) == [0, etcd_writer.AT_ONCE, 2 * etcd_writer.AT_ONCE]
