"""A mistake of ours about one partition is loud and its own: what the answer says to the others is carried out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from highwater.fetcher.fetcher_metrics import FetcherMetrics
from highwater.fetcher.follower.actions import Append, FetchPosition
from highwater.fetcher.follower.follower import FollowerState
from highwater.fetcher.follower.following import FetcherId, LeaderEndpoint
from highwater.fetcher.log_storage import LogStorage
from highwater.fetcher.replica_fetcher import ReplicaFetcher
from highwater.fetcher.settings import FetcherSettings
from highwater.model.partition import PartitionKey
from highwater.rpc.settings import load
from highwater.telemetry.metrics import Metrics
from highwater.v1 import broker_pb2, common_pb2, log_storage_pb2

FIRST, MISTAKEN, LAST = (PartitionKey(letter * 16, 0) for letter in (b"a", b"b", b"c"))


class FakeFollower:
    topic = "t"
    state = FollowerState.FETCHING
    leader_has_more = marks_are_behind = False
    retry_at_ms = None

    def __init__(self, key: PartitionKey) -> None:
        self.key = key

    def fetched(self, answer: Any, now_ms: int) -> list[Any]:
        assert self.key != MISTAKEN, "a mistake of ours"
        return ["fetched"]

    def position(self) -> FetchPosition:
        return FetchPosition(7, 1, 0, 0, -1, 0)

    appended = fenced = fetched

    def outcome_unknown(self, generation: int, message: str, now_ms: int) -> list[Any]:
        return [f"unknown {generation}"]


class FakeLogStorage:
    """Answers whatever it is asked, at once."""

    def append(self, appends: Sequence[Any], answered: Callable[[Sequence[Any] | None, str], None]) -> None:
        answered([None for _ in appends], "")

    async def fence(self, fences: Sequence[Any]) -> list[Any]:
        return [None for _ in fences]


@pytest.mark.parametrize("what", ["fetch", "append", "fence"])
async def test_an_answer_that_one_follower_cannot_take_reaches_the_others(
    what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else the first has taken it, and nobody does what it wants: it waits for the answer to an append for ever."""
    settings = load(
        FetcherSettings,
        {"broker.id": "1", "listen": "unix:/f", "replica.manager": "unix:/rm", "log.storage": "unix:/ls"},
    )
    storage: Any = FakeLogStorage()
    metrics = FetcherMetrics(Metrics("fetcher"))
    fetcher = ReplicaFetcher(FetcherId(2, 0), LeaderEndpoint("127.0.0.1:1", 3), settings, storage, metrics, lambda: 0)
    followers: dict[PartitionKey, Any] = {key: FakeFollower(key) for key in (FIRST, MISTAKEN, LAST)}
    steps: list[Any] = []
    monkeypatch.setattr(fetcher, "_followers", followers)
    monkeypatch.setattr(fetcher, "perform", steps.extend)
    append = Append(7, 1, 0, b"records", 0, 0)
    if what == "fetch":
        fetcher._places.open(followers)
        assert fetcher._next_request(3) is not None
        response = broker_pb2.FetchResponse(correlation_id=1)
        for key in followers:
            response.results.add(partition=common_pb2.PartitionKey(topic_id=key.topic_id, partition=0))
        fetcher._received(response)
    elif what == "append":
        fetcher._append([(follower, append) for follower in followers.values()])
    else:
        await fetcher._fence([(follower, append) for follower in followers.values()])  # type: ignore[misc]
    assert steps == [
        (followers[FIRST], "fetched"),
        (followers[MISTAKEN], "unknown 7"),
        (followers[LAST], "fetched"),
    ]
    assert any(record.levelno == logging.ERROR and record.exc_info for record in caplog.records)
    await fetcher.stop()


async def test_every_append_of_a_broken_stream_is_settled() -> None:
    storage = LogStorage("unix:/nobody")
    settled = []

    def mistaken(answers: Any, reason: str) -> None:
        raise KeyError("a mistake of ours")

    storage.append([], mistaken)
    storage.append([], lambda answers, reason: settled.append(answers))
    storage._stream._settle("broken")
    assert settled == [None]
    await storage.stop()


async def test_an_answer_that_cannot_be_read_leaves_its_append_to_be_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = LogStorage("unix:/nobody")
    settled = []
    storage.append(
        [(FIRST, Append(7, 1, 0, b"records", 0, 0))], lambda answers, reason: settled.append((answers, reason))
    )
    await anext(storage._stream._requests())

    def unreadable(*_: Any) -> None:
        raise KeyError("a mistake of ours")

    monkeypatch.setattr("highwater.log_storage_client.append_stream.append_answer", unreadable)
    response = log_storage_pb2.AppendResponse(correlation_id=1, results=[log_storage_pb2.AppendResult()])
    with pytest.raises(KeyError):
        storage._stream._received(response)
    storage._stream._settle("broken")
    assert settled == [(None, "the append stream to log-storage at unix:/nobody broke: broken")]
    await storage.stop()
