"""Commits of a member: whose they are when they get through at last (docs/sdk.md, "Consumer groups")."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from highwater.client import CommitFailedError, TopicPartition
from highwater.client.exceptions import error_for
from highwater.client.groups import committed_offsets
from highwater.client.groups.committed_offsets import CommittedOffsets
from highwater.errors import ErrorCode
from highwater.v1 import group_pb2

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Asked:
    """A coordinator that keeps all that it is asked to, after what is in `before` has happened."""

    group = "reports"

    def __init__(self) -> None:
        self.before: list[Callable[[], None]] = []
        self.kept: list[dict[int, int]] = []

    async def call(self, method: object, request: group_pb2.CommitOffsetsRequest, timeout_s: float) -> Any:
        if self.before:
            self.before.pop(0)()
            raise error_for(ErrorCode.COORDINATOR_NOT_AVAILABLE, "it moves")
        self.kept.append({one.partition.partition: one.offset for one in request.offsets})
        return group_pb2.CommitOffsetsResponse(offsets=[group_pb2.CommittedOffset() for _ in request.offsets])


@pytest.fixture
def coordinator() -> Asked:
    return Asked()


@pytest.fixture
def tenures() -> dict[TopicPartition, object]:
    return {FIRST: object(), SECOND: object()}


@pytest.fixture
def committed(coordinator: Asked, tenures: dict[TopicPartition, object]) -> CommittedOffsets:
    cluster: Any = SimpleNamespace(request_timeout_s=5.0)
    of_group: Any = coordinator
    return CommittedOffsets(cluster, of_group, "member", lambda: 7, lambda _: b"o" * 16, tenures.get)


async def test_a_group_with_a_long_id_commits_some_at_a_time(
    committed: CommittedOffsets, coordinator: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committed_offsets, "MAX_ID_BYTES", len(Asked.group))
    await committed.commit({FIRST: 10, SECOND: 20})
    assert coordinator.kept == [{0: 10}, {1: 20}]


async def test_an_offset_of_another_topic_of_the_name_counts_as_none(
    committed: CommittedOffsets, coordinator: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator may not know which of the two is the newer one, and tells what is kept."""
    kept = [
        group_pb2.CommittedOffset(offset=number, topic_id=each) for number, each in enumerate((b"o" * 16, b"p" * 16))
    ]

    async def call(*_: object) -> group_pb2.FetchOffsetsResponse:
        return group_pb2.FetchOffsetsResponse(offsets=kept)

    monkeypatch.setattr(coordinator, "call", call)
    assert await committed.fetch([FIRST, SECOND]) == {FIRST: 0, SECOND: -1}


async def test_what_is_held_is_committed_when_the_coordinator_is_back(
    committed: CommittedOffsets, coordinator: Asked
) -> None:
    coordinator.before = [lambda: None]
    await committed.commit({FIRST: 10, SECOND: 20})
    assert coordinator.kept == [{0: 10, 1: 20}]


async def test_a_retry_does_not_put_back_what_was_lost_and_taken_up_anew(
    committed: CommittedOffsets, coordinator: Asked, tenures: dict[TopicPartition, object]
) -> None:
    """Between the attempts another member had the partition and has committed more of it."""
    coordinator.before = [lambda: tenures.update({FIRST: object()})]
    with pytest.raises(CommitFailedError) as failed:
        await committed.commit({FIRST: 10, SECOND: 20})
    assert failed.value.partitions == {FIRST}
    assert coordinator.kept == [{1: 20}]


async def test_what_is_not_held_is_not_committed(
    committed: CommittedOffsets, coordinator: Asked, tenures: dict[TopicPartition, object]
) -> None:
    """Lost, and joined anew beside the application, which does not know of it before its next poll."""
    tenures.clear()
    with pytest.raises(CommitFailedError) as failed:
        await committed.commit({FIRST: 10})
    assert failed.value.partitions == {FIRST}
    assert coordinator.kept == []
