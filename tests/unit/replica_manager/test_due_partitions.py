"""A tick, and a session that opens or closes, look at the partitions that it concerns, and at no other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from highwater.errors import ErrorCode
from highwater.metadata.schema.models import PartitionState, VersionedState
from highwater.model.fence_role import Role
from highwater.model.partition import PartitionKey
from highwater.replica_manager.partition.actions import (
    FAR_MS,
    FenceAnswer,
    FollowerFetch,
    Instruction,
    LiveBrokers,
    PartitionSettings,
)
from highwater.replica_manager.partition.fetch_sessions import FetchSessions
from highwater.replica_manager.partition.partition import Partition
from highwater.replica_manager.replicas.due_partitions import DuePartitions

LAG_MS = 10_000


def key(number: int) -> PartitionKey:
    return PartitionKey(bytes(16), number)


def hosted(number: int, due_ms: int = FAR_MS) -> Any:
    """What stands where a `HostedPartition` does, whose partition is to be ticked from then on."""
    return SimpleNamespace(
        key=key(number), due_ms=FAR_MS, partition=SimpleNamespace(leadership=None, tick_from_ms=due_ms)
    )


def leading(number: int) -> Any:
    """A partition led by broker 1, with broker 2 in the ISR, that never has fetched."""
    made = hosted(number)
    partition = made.partition = Partition(key(number), "T", 1, PartitionSettings(replica_lag_time_max_ms=LAG_MS))
    partition.brokers_changed(LiveBrokers({1: 101, 2: 102}), 0)
    partition.instruct(Instruction(VersionedState(PartitionState(1, 5, 101, (1, 2)), 10), (1, 2)), 0)
    partition.fenced(FenceAnswer(Role.LEADER, 5, incarnation="storage-1"), 0)
    return made


def test_what_waits_for_no_time_is_never_due() -> None:
    due = DuePartitions()
    due.note(hosted(0))
    assert due.take(FAR_MS) == []


def test_partitions_are_due_by_time_and_once() -> None:
    due = DuePartitions()
    late, early, never = hosted(0, 300), hosted(1, 100), hosted(2)
    for each in (late, early, never):
        due.note(each)
        due.note(each)
    assert due.take(99) == []
    assert due.take(300) == [early, late]
    assert due.take(1_000) == []


def test_a_nearer_time_counts_and_a_farther_one_is_asked_for_when_it_is_due() -> None:
    due = DuePartitions()
    each = hosted(0, 300)
    due.note(each)
    each.partition.tick_from_ms = 100
    due.note(each)
    each.partition.tick_from_ms = 500
    due.note(each)
    assert due.take(100) == [each]
    due.note(each)
    assert due.take(400) == []
    assert due.take(500) == [each]


def test_void_entries_do_not_pile_up() -> None:
    due = DuePartitions()
    each = hosted(0)
    for round_number in range(1_000):
        each.partition.tick_from_ms = 1_000_000 - round_number
        due.note(each)
    assert len(due._entries) <= 70
    assert due.take(1_000_000) == [each]


@pytest.mark.parametrize("partitions", [30, 300])
def test_idle_partitions_are_looked_at_once_in_a_lag(partitions: int) -> None:
    """Of partitions that are fetched and stay caught up a minute of ticks costs six looks each, whatever comes."""
    due, looks = DuePartitions(), 0
    all_of_them = [leading(number) for number in range(partitions)]
    session = FetchSessions().open(2, 102, 0)
    for each in all_of_them:
        due.note(each)
    for now_ms in range(0, 60_000, 100):
        for each in all_of_them if now_ms % 500 == 0 else ():
            assert each.partition.fetched(FollowerFetch(session, 5, 0, 0, -1), now_ms).error is ErrorCode.NONE
            due.note(each)
        for each in due.take(now_ms):
            looks += 1
            assert not each.partition.tick(now_ms)
            due.note(each)
    assert looks <= 6 * partitions


def test_a_follower_that_is_out_of_the_isr_for_good_is_not_looked_at() -> None:
    each = leading(0)
    (write,) = each.partition.tick(LAG_MS + 1)
    each.partition.isr_written(write.proposal_id, 11, LAG_MS + 2)
    assert each.partition.committed.state.isr == (1,)
    assert each.partition.tick_from_ms == FAR_MS


def test_a_session_takes_over_those_of_the_same_fetcher_and_of_older_registrations() -> None:
    sessions = FetchSessions()
    for number, name in enumerate([(2, 102, 0), (2, 102, 1), (2, 101, 0), (3, 102, 0)]):
        sessions.open(*name).partitions[key(number)] = None
    closed = sessions.open(2, 100, 3)
    closed.partitions[key(9)] = None
    sessions.close(closed)
    assert set(sessions.open(2, 102, 0).partitions) == {key(0), key(2), key(9)}


def test_a_session_that_opens_after_the_one_before_has_closed_takes_it_over() -> None:
    sessions = FetchSessions()
    before = sessions.open(2, 102, 0)
    before.partitions[key(0)] = None
    sessions.close(before)
    after = sessions.open(2, 102, 0)
    assert list(after.partitions) == [key(0)]
    sessions.evicted(key(0))
    assert not after.partitions
