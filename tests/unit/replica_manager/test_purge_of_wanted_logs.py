"""A log is not deleted by a decision that is older than what wants it again (RULES 9.3)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from leading_broker import EPOCH, Leader, key

from highwater.errors import ErrorCode
from highwater.log_storage_client.values import StorageError
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import PartitionState, TopicAssignment, VersionedTopic
from highwater.metadata.state.topics import TopicsRead
from highwater.metadata.store.transactions import Entry
from highwater.model.partition import PartitionKey
from highwater.replica_manager.membership import purge
from highwater.replica_manager.membership.purge import KEPT, Purge

KEY = key(0)
KEYS = Keys("c")
NOTHING: Any = None


class LogStorage:
    def __init__(self) -> None:
        self.deleted: list[tuple[PartitionKey, int]] = []

    async def delete_log(self, deleted: PartitionKey, leader_epoch: int) -> StorageError:
        self.deleted.append((deleted, leader_epoch))
        return StorageError(ErrorCode.NONE)


@pytest.mark.parametrize("known_epoch", [EPOCH - 1, EPOCH, -1])
async def test_a_replica_instructed_since_it_was_judged_stays(
    known_epoch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was moved away, and back while the deletion of its log was under way."""
    replica_manager, storage = Leader(1).replica_manager, LogStorage()
    deleting = Purge(1, storage, NOTHING, NOTHING, cluster_id=lambda: "c", evict=replica_manager.evict_up_to)  # type: ignore[arg-type]

    async def judge(wanted: list[PartitionKey]) -> tuple[list[purge._Doom], list[PartitionKey]]:
        return [purge._Doom(KEY, known_epoch)], []

    monkeypatch.setattr(deleting, "_judge", judge)
    outcomes = await deleting.delete([KEY])
    if known_epoch == EPOCH - 1:
        assert outcomes == {KEY: KEPT}
        assert storage.deleted == []
        assert KEY in replica_manager.hosted
    else:
        assert storage.deleted == [(KEY, known_epoch)]
        assert not replica_manager.hosted


class Etcd:
    """Holds one topic of one partition, as it is once the topics have been listed."""

    def __init__(self, assignment: TopicAssignment, leader_epoch: int) -> None:
        state = PartitionState(2, leader_epoch, 9, (2, 3))
        values = {KEYS.topic("t"): assignment.to_json(), KEYS.state("t", 0): state.to_json()}
        self._entries = {name: Entry(name, value, 1, 2) for name, value in values.items()}

    async def get_many(self, names: Iterable[str], **_: Any) -> tuple[dict[str, Entry], int]:
        return {name: self._entries[name] for name in names if name in self._entries}, 2


@pytest.mark.parametrize(
    ("since", "deleted"),
    [
        (TopicAssignment("t", KEY.topic_id, ((2, 3),)), [(KEY, EPOCH)]),
        (TopicAssignment("t", KEY.topic_id, ((2, 3, 1),)), []),
        (TopicAssignment("t", b"another of 16 b.", ((2, 3),)), [(KEY, -1)]),
    ],
    ids=["nothing", "assigned here", "deleted and made again"],
)
async def test_the_leader_epoch_of_a_deletion_is_of_the_assignment_that_it_is_judged_by(
    since: TopicAssignment, deleted: list[tuple[PartitionKey, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the log of a replica that came back would be deleted, as its fence is not above that leader epoch."""
    listed = VersionedTopic(TopicAssignment("t", KEY.topic_id, ((2, 3),)), 1, 1)

    async def read_topics(*_: Any) -> TopicsRead:
        return TopicsRead("c", {KEY.topic_id: listed}, frozenset(), 1)

    monkeypatch.setattr(purge, "read_topics", read_topics)
    storage, etcd = LogStorage(), Etcd(since, EPOCH)
    deleting = Purge(1, storage, etcd, KEYS, cluster_id=lambda: "c", evict=lambda _, __: True)  # type: ignore[arg-type]
    outcomes = await deleting.delete([KEY])
    assert storage.deleted == deleted
    assert outcomes == {KEY: StorageError(ErrorCode.NONE) if deleted else KEPT}


async def test_a_log_of_a_topic_that_was_made_again_with_fewer_partitions_is_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listed = VersionedTopic(TopicAssignment("t", KEY.topic_id, ((2, 3), (2, 3))), 1, 1)

    async def read_topics(*_: Any) -> TopicsRead:
        return TopicsRead("c", {KEY.topic_id: listed}, frozenset(), 1)

    monkeypatch.setattr(purge, "read_topics", read_topics)
    storage, etcd = LogStorage(), Etcd(TopicAssignment("t", b"another of 16 b.", ((2, 3),)), EPOCH)
    deleting = Purge(1, storage, etcd, KEYS, cluster_id=lambda: "c", evict=lambda _, __: True)  # type: ignore[arg-type]
    assert await deleting.delete([key(1)]) == {key(1): StorageError(ErrorCode.NONE)}
    assert storage.deleted == [(key(1), -1)]


async def test_a_topic_s_assignment_is_read_once_for_all_its_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It names every partition: were it read for each log, thousands of them would take a broker minutes."""
    assignment = TopicAssignment("t", KEY.topic_id, ((2, 3),) * 50)
    listed = VersionedTopic(assignment, 1, 1)

    async def read_topics(*_: Any) -> TopicsRead:
        return TopicsRead("c", {KEY.topic_id: listed}, frozenset(), 1)

    class ManyPartitions(Etcd):
        def __init__(self) -> None:
            self.assignments_read = 0
            state = PartitionState(2, EPOCH, 9, (2, 3)).to_json()
            values = {KEYS.state("t", partition): state for partition in range(49)}  # the last one has none
            values |= {KEYS.topic("t"): assignment.to_json(), KEYS.state("t", 7): b"not to be read"}
            self._entries = {name: Entry(name, value, 1, 2) for name, value in values.items()}

        async def get_many(self, names: Iterable[str], **_: Any) -> tuple[dict[str, Entry], int]:
            found, revision = await super().get_many(names)
            self.assignments_read += KEYS.topic("t") in found
            return found, revision

    monkeypatch.setattr(purge, "read_topics", read_topics)
    storage, etcd = LogStorage(), ManyPartitions()
    deleting = Purge(1, storage, etcd, KEYS, cluster_id=lambda: "c", evict=lambda _, __: True)  # type: ignore[arg-type]
    outcomes = await deleting.delete([key(partition) for partition in range(50)])
    assert etcd.assignments_read == 1
    assert {log for log, error in outcomes.items() if error == KEPT} == {key(7), key(49)}
    assert len(storage.deleted) == 48
