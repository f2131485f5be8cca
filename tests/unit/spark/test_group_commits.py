"""Offsets that a streaming query tells a group: they fail no query, and hold it up seldom."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from highwater.client import HighwaterError, NetworkError, TopicPartition
from highwater.spark.source import group_commits
from highwater.spark.source.group_commits import GroupCommits

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


class Answering:
    """In place of an `Admin`."""

    def __init__(self) -> None:
        self.committed: list[Mapping[TopicPartition, int]] = []
        self.error: Exception | None = None
        self.outcome: HighwaterError | None = None
        self.options: dict[str, Any] = {}
        self.stopped = False

    def alter_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, HighwaterError | None]:
        self.committed.append(offsets)
        if self.error is not None:
            raise self.error
        return dict.fromkeys(offsets, self.outcome)

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Answering:
    made = Answering()

    def make(bootstrap: tuple[str, ...], **options: Any) -> Answering:
        made.options = options
        return made

    monkeypatch.setattr(group_commits, "Admin", make)
    return made


def test_the_same_offsets_are_told_once(admin: Answering) -> None:
    commits = GroupCommits(("a:1",), "g", {})
    commits.commit({A: 1})
    commits.commit({A: 1})
    commits.commit({A: 1, B: 4})
    assert admin.committed == [{A: 1}, {A: 1, B: 4}]
    commits.close()
    assert admin.stopped


@pytest.mark.parametrize("error", [NetworkError("nobody answers"), OSError("no file descriptor is left")])
def test_what_fails_is_logged_and_tried_again_much_later(
    admin: Answering, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = 1_000.0
    commits = GroupCommits(("a:1",), "g", {}, lambda: now_s)
    admin.error = error
    commits.commit({A: 1})
    commits.commit({A: 2})
    assert admin.committed == [{A: 1}]
    assert caplog.messages == [f"offsets were not committed to group g: {error}"]
    admin.error = None
    now_s += 60
    commits.commit({A: 2})
    commits.commit({A: 3})
    assert admin.committed == [{A: 1}, {A: 2}, {A: 3}]


def test_a_partition_that_is_refused(admin: Answering, caplog: pytest.LogCaptureFixture) -> None:
    """A refusal takes no time: it is tried again at once, and said again a minute later."""
    now_s = 1_000.0
    admin.outcome = HighwaterError("t-0: no such partition")
    commits = GroupCommits(("a:1",), "g", {}, lambda: now_s)
    commits.commit({A: 1})
    commits.commit({A: 1})
    assert admin.committed == [{A: 1}, {A: 1}]
    assert caplog.messages == ["offsets were not committed to group g: t-0: no such partition"]
    now_s += 60
    commits.commit({A: 1})
    assert len(caplog.messages) == 2
    admin.outcome = None
    commits.commit({A: 1})
    commits.commit({A: 1})
    assert len(admin.committed) == 4


def test_nobody_waits_for_long(admin: Answering) -> None:
    GroupCommits(("a:1",), "g", {"request_timeout_ms": 90_000, "client_id": "c"})
    assert admin.options == {"client_id": "c", "request_timeout_ms": 5_000, "max_block_ms": 5_000}
    GroupCommits(("a:1",), "g", {"request_timeout_ms": 100})
    assert admin.options == {"request_timeout_ms": 100, "max_block_ms": 100}
