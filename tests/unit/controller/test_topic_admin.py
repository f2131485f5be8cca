"""What may be created, and the sentence that says why not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from highwater.controller.topics.topic_admin import (
    DEFAULT,
    MAX_PARTITIONS,
    NewTopic,
    Refusal,
    Surroundings,
    plan_topic,
    refuse_internal,
)
from highwater.controller.topics.topic_config import TOPIC_CONFIG, problem_with
from highwater.errors import ErrorCode
from highwater.log_storage.config import LogConfig

AROUND = Surroundings(
    brokers=[1, 2, 3], topics=["taken", "a.b"], preferred_leaders=[], num_partitions=4, default_replication_factor=2
)


def refused(new: NewTopic) -> Refusal:
    found = plan_topic(new, AROUND, shift=0)
    assert isinstance(found, Refusal)
    assert new.topic in found.message
    return found


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ü", "x" * 250, "a\n"])
def test_illegal_names(name: str) -> None:
    found = plan_topic(NewTopic(name), AROUND, shift=0)
    assert isinstance(found, Refusal)
    assert found.error is ErrorCode.INVALID_TOPIC


@pytest.mark.parametrize("name", ["a", "A-Z_0.9", "x" * 249, "..."])
def test_legal_names(name: str) -> None:
    assert len(plan_topic(NewTopic(name), AROUND, shift=0)) == AROUND.num_partitions


def test_names_that_exist_or_look_alike() -> None:
    assert refused(NewTopic("taken")).error is ErrorCode.TOPIC_ALREADY_EXISTS
    assert refused(NewTopic("a_b")).error is ErrorCode.INVALID_TOPIC


@pytest.mark.parametrize("partitions", [0, -2, MAX_PARTITIONS + 1])
def test_partition_counts(partitions: int) -> None:
    assert refused(NewTopic("t", partitions)).error is ErrorCode.INVALID_PARTITIONS


@pytest.mark.parametrize("factor", [0, -2, 4])
def test_replication_factors(factor: int) -> None:
    assert refused(NewTopic("t", 1, factor)).error is ErrorCode.INVALID_REPLICATION_FACTOR


def test_a_broker_that_is_only_away_is_waited_for() -> None:
    around = replace(AROUND, away=1)
    found = plan_topic(NewTopic("t", 1, 4), around, shift=0)
    assert isinstance(found, Refusal)
    assert (found.error, found.error.retriable) == (ErrorCode.REPLICA_NOT_AVAILABLE, True)
    assert "asks for 4 brokers, and 3 are registered now" in found.message
    found = plan_topic(NewTopic("t", 1, 5), around, shift=0)
    assert isinstance(found, Refusal)
    assert found.error is ErrorCode.INVALID_REPLICATION_FACTOR


def test_names_of_the_clusters_own_topics_are_reserved() -> None:
    found = refused(NewTopic("__consumer_offsets"))
    assert found.error is ErrorCode.INVALID_TOPIC
    assert "reserved" in found.message


def test_a_broker_makes_them_with_as_many_replicas_as_the_cluster_has_brokers() -> None:
    planned = plan_topic(NewTopic("__consumer_offsets", 2, 5, internal=True), AROUND, shift=0)
    assert [len(replicas) for replicas in planned] == [3, 3]
    # One that is away has a replica as well: it is waited for.
    found = plan_topic(NewTopic("__consumer_offsets", 2, 5, internal=True), replace(AROUND, away=1), shift=0)
    assert isinstance(found, Refusal)
    assert found.error is ErrorCode.REPLICA_NOT_AVAILABLE


def test_clients_leave_them_alone() -> None:
    found = refuse_internal("__consumer_offsets")
    assert found is not None
    assert found.error is ErrorCode.INVALID_TOPIC
    assert refuse_internal("orders") is None


def test_defaults() -> None:
    planned = plan_topic(NewTopic("t", DEFAULT, DEFAULT), AROUND, shift=0)
    assert [len(replicas) for replicas in planned] == [2, 2, 2, 2]


@pytest.mark.parametrize(
    ("assignment", "error"),
    [
        ({1: (1,)}, ErrorCode.INVALID_PARTITIONS),
        ({0: (1,), 1: (1, 2)}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({0: ()}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({0: (1, 1)}, ErrorCode.INVALID_REQUEST),
        ({0: (1, 9)}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_assignments_that_cannot_be(assignment: dict[int, tuple[int, ...]], error: ErrorCode) -> None:
    assert refused(NewTopic("t", assignment=assignment)).error is error


def test_a_given_assignment_is_taken_as_it_is() -> None:
    new = NewTopic("t", 2, 2, assignment={1: (3, 1), 0: (2, 3)})
    assert plan_topic(new, AROUND, shift=0) == ((2, 3), (3, 1))
    assert refused(NewTopic("t", 3, assignment=new.assignment)).error is ErrorCode.INVALID_PARTITIONS
    assert refused(NewTopic("t", 2, 1, assignment=new.assignment)).error is ErrorCode.INVALID_REPLICATION_FACTOR


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("retention.msec", "1"),
        ("segment.bytes", "1023"),
        ("segment.bytes", "1k"),
        ("min.insync.replicas", "0"),
        ("min.cleanable.dirty.ratio", "1.1"),
        ("cleanup.policy", "compact,compact"),
        ("cleanup.policy", ""),
        ("payload.format", "columns"),
        ("unclean.leader.election.enable", "yes"),
    ],
)
def test_bad_configuration_is_named(key: str, value: str) -> None:
    found = refused(NewTopic("t", config={key: value}))
    assert found.error is ErrorCode.INVALID_CONFIG
    assert key in found.message


def test_good_configuration() -> None:
    good = {
        "cleanup.policy": "compact, delete",
        "retention.ms": "-1",
        "min.insync.replicas": "2",
        "payload.format": "rows",
        "min.cleanable.dirty.ratio": "0.5",
        "preallocate": "false",
    }
    assert good.keys() <= TOPIC_CONFIG.keys()
    assert problem_with(good) is None


@pytest.mark.parametrize("value", ["+2", " 2", "2 ", "1_000", "\u0662"])
def test_a_number_is_its_digits(value: str) -> None:
    """RULES 5.2: the minimum is the same everywhere, so there is one way to write it."""
    assert problem_with({"min.insync.replicas": value}) is not None


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("segment.bytes", (1024, 2**31 - 1)),
        ("index.interval.bytes", (0, 2**31 - 1)),
        ("segment.index.bytes", (12, 2**31 - 1)),
        ("segment.ms", (1, 2**63 - 1)),
        ("max.message.bytes", (1, 2**31 - 1)),
        ("flush.messages", (1, 2**63 - 1)),
    ],
)
def test_what_a_topic_may_have_its_logs_take(key: str, values: tuple[int, int]) -> None:
    """Else a topic would be created whose partitions nobody can host."""
    for value in values:
        assert problem_with({key: str(value)}) is None
        LogConfig().with_topic({key: str(value)})
    lowest, highest = values
    assert problem_with({key: str(lowest - 1)}) is not None
    assert problem_with({key: str(highest + 1)}) is not None
