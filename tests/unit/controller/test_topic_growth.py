"""How a topic may grow, and the sentence that says why not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.controller.topics.assignment import assign_replicas
from highwater.controller.topics.topic_admin import MAX_PARTITIONS, Refusal
from highwater.controller.topics.topic_growth import NewPartitions, plan_growth
from highwater.errors import ErrorCode
from highwater.metadata.schema.models import TopicAssignment

BROKERS = [1, 2, 3]
CURRENT = TopicAssignment("t", bytes(16), ((1, 2), (2, 3)))


def grown(new: NewPartitions, brokers: list[int] = BROKERS) -> tuple[tuple[int, ...], ...]:
    found = plan_growth(new, CURRENT, brokers)
    assert isinstance(found, TopicAssignment)
    assert (found.topic, found.topic_id) == ("t", CURRENT.topic_id)
    assert found.replicas[:2] == CURRENT.replicas, "partitions that exist stay where they are"
    return found.replicas[2:]


def refused(new: NewPartitions, brokers: list[int] = BROKERS) -> Refusal:
    found = plan_growth(new, CURRENT, brokers)
    assert isinstance(found, Refusal)
    assert "'t'" in found.message
    return found


@pytest.mark.parametrize("total", [-1, 0, 1, 2, MAX_PARTITIONS + 1])
def test_partitions_are_only_added(total: int) -> None:
    assert refused(NewPartitions("t", total)).error is ErrorCode.INVALID_PARTITIONS


def test_the_replication_factor_needs_its_brokers() -> None:
    found = refused(NewPartitions("t", 3), [2])
    assert found.error is ErrorCode.REPLICA_NOT_AVAILABLE
    assert "asks for 2 brokers, and 1 are registered now" in found.message


@given(
    st.integers(1, 8).flatmap(
        lambda brokers: st.tuples(
            st.lists(st.integers(0, 99), min_size=brokers, max_size=brokers, unique=True).map(sorted),
            st.integers(1, 20),
            st.integers(1, 20),
            st.integers(1, brokers),
            st.integers(0, brokers - 1),
            st.integers(0, 50),
        )
    )
)
def test_a_grown_topic_is_what_one_made_larger_would_be(case: tuple[list[int], int, int, int, int, int]) -> None:
    brokers, present, more, factor, start, shift = case
    whole = assign_replicas(brokers, present + more, factor, start_index=start, shift=shift)
    current = TopicAssignment("t", bytes(16), whole[:present])
    found = plan_growth(NewPartitions("t", present + more), current, brokers)
    assert isinstance(found, TopicAssignment)
    assert found.replicas == whole


@given(st.integers(1, 20), st.sets(st.integers(4, 9), min_size=2).map(sorted))
def test_where_the_first_brokers_are_gone_the_others_take_turns(more: int, brokers: list[int]) -> None:
    added = grown(NewPartitions("t", 2 + more), brokers)
    leaders = [replicas[0] for replicas in added]
    assert leaders[: len(brokers)] == brokers[:more]
    assert all(len(set(replicas)) == 2 and set(replicas) <= set(brokers) for replicas in added)


def test_a_given_assignment_is_taken_as_it_is() -> None:
    assert grown(NewPartitions("t", 4, {3: (3, 1), 2: (2, 1)})) == ((2, 1), (3, 1))


@pytest.mark.parametrize(
    ("assignment", "error"),
    [
        ({1: (1, 2), 2: (1, 2)}, ErrorCode.INVALID_PARTITIONS),
        ({2: (1, 2)}, ErrorCode.INVALID_PARTITIONS),
        ({2: (1, 2), 3: (1, 2, 3)}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({2: (1, 2), 3: (1, 1)}, ErrorCode.INVALID_REQUEST),
        ({2: (1, 2), 3: (1, 9)}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_assignments_that_cannot_be(assignment: dict[int, tuple[int, ...]], error: ErrorCode) -> None:
    assert refused(NewPartitions("t", 4, assignment)).error is error
