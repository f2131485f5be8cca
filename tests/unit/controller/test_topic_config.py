"""How large a topic's configuration may be, and what may stand in it."""

from __future__ import annotations

import pytest

from highwater.controller.topics.topic_admin import MAX_ASSIGNMENT_BYTES, refuse_size
from highwater.controller.topics.topic_config import TOPIC_CONFIG, problem_with, too_large
from highwater.errors import ErrorCode
from highwater.metadata.schema.models import TopicAssignment

THROTTLED = ("follower.replication.throttled.replicas", "leader.replication.throttled.replicas")


@pytest.mark.parametrize("value", ["", "*", "none", "0:1", "0:1,12:3"])
def test_throttled_replicas(value: str) -> None:
    assert problem_with(dict.fromkeys(THROTTLED, value)) is None


@pytest.mark.parametrize("key", TOPIC_CONFIG)
@pytest.mark.parametrize("value", ["\x1b[2J", "1\n", "delete\n", "\u202e1", "\x1f0.5", "[/nope]", "1:1," * 400_000])
def test_no_value_is_long_or_holds_what_a_terminal_would_obey(key: str, value: str) -> None:
    problem = problem_with({key: value})
    assert problem is not None
    assert problem.startswith(key)
    assert len(problem) < 500
    assert problem.isprintable()


def test_an_unknown_key_is_quoted_in_part() -> None:
    problem = problem_with({"x" * 1_000_000: "1"})
    assert problem is not None
    assert len(problem) < 2_000


def test_all_of_a_configuration_together() -> None:
    half = ",".join(["1000:1"] * 580)
    assert problem_with({THROTTLED[0]: half}) is None
    problem = problem_with(dict.fromkeys(THROTTLED, half))
    assert problem is not None
    assert "8192 are the most" in problem
    assert too_large({"retention.ms": "1"}) is None


def test_an_assignment_that_etcd_would_not_take() -> None:
    """A request of etcd has 1.5 MiB."""
    assert refuse_size(TopicAssignment("t", b"\1" * 16, ((10_001, 10_002, 10_003),) * 10_000)) is None
    wide = TopicAssignment("t", b"\1" * 16, (tuple(range(10_000, 10_020)),) * 10_000)
    refusal = refuse_size(wide)
    assert refusal is not None
    assert refusal.error is ErrorCode.INVALID_PARTITIONS
    assert str(MAX_ASSIGNMENT_BYTES) in refusal.message
