"""The outcome of an ISR proposal is not that of another one which has its number: a replica that was moved away and
came back begins to count anew (RULES 2.4)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from leading_broker import EPOCH, Leader, key

from highwater.metadata.state.partition_states import Outcome, StateWriteResult
from highwater.replica_manager.partition.actions import FetchSession, FollowerFetch, WriteIsr


class IsrChanges:
    """etcd has not answered yet."""

    def __init__(self) -> None:
        self.written: list[tuple[WriteIsr, Any]] = []

    def write(self, each: Any, topic: str, action: WriteIsr, settled: Any) -> None:
        self.written.append((action, settled))


def proposed(leader: Leader, epoch: int) -> tuple[WriteIsr, Any]:
    """Its follower has copied everything: it is to join."""
    changes = IsrChanges()
    leader.replica_manager._isr_changes = changes  # type: ignore[assignment]
    hosted = leader.hosted(0)
    session = FetchSession(2, 102, 0, 1)
    fetch = FollowerFetch(session, epoch, 0, 0, -1, 0, repeated=False)
    leader.replica_manager.perform(hosted, hosted.partition.fetched(fetch, 0).actions)
    ((action, settled),) = changes.written
    assert action.state.isr == (1, 2)
    return action, settled


@pytest.mark.parametrize("outcome", [Outcome.REFUSED, Outcome.UNAVAILABLE, Outcome.WRITTEN])
async def test_an_outcome_of_a_replica_that_was_evicted(outcome: Outcome) -> None:
    leader = Leader(0)

    def takes_in(epoch: int) -> tuple[WriteIsr, Any]:
        leader.replica_manager.host(key(0), "t", {})
        leader.lead(0, epoch, isr=(1,), replicas=(1, 2))
        return proposed(leader, epoch)

    before, settled = takes_in(EPOCH)
    leader.replica_manager.evict(key(0))
    present, _ = takes_in(EPOCH + 2)
    assert present.proposal_id == before.proposal_id
    settled(key(0), before.proposal_id, StateWriteResult(outcome, 99))
    await asyncio.sleep(0)
    leadership = leader.hosted(0).partition.leadership
    assert leadership is not None
    assert leadership.proposals.in_flight is present
    assert not leadership.proposals.refused
    assert leadership.proposals.outcome_awaited
