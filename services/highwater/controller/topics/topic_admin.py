"""The creation of topics: may one be, and what does it look like then? Pure.

Every refusal is a code and one sentence for the user.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from highwater.controller.topics.assignment import assign_replicas, least_leading
from highwater.controller.topics.topic_config import problem_with
from highwater.errors import ErrorCode
from highwater.metadata.schema.models import TopicAssignment
from highwater.model.topic_name import is_internal_topic, is_legal_topic_name

MAX_PARTITIONS = 10_000  # of a topic; a limit of this implementation, so that a typo is refused
MAX_ASSIGNMENT_BYTES = 1 << 20

DEFAULT = -1


class Refusal(NamedTuple):
    error: ErrorCode
    message: str


@dataclass(frozen=True, slots=True)
class NewTopic:
    """The topic that a client asked for. `partitions` and `replication_factor` may be `DEFAULT`; with an assignment
    they must be, or agree with it."""

    topic: str
    partitions: int = DEFAULT
    replication_factor: int = DEFAULT
    config: Mapping[str, str] = field(default_factory=dict)
    assignment: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    internal: bool = False  # the cluster's own, which a broker asks for


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The cluster that a new topic is measured against."""

    brokers: Sequence[int]  # live and not shutting down, ascending
    topics: Collection[str]  # that exist, or are being deleted
    preferred_leaders: Sequence[int]  # one for each partition there is
    num_partitions: int
    default_replication_factor: int
    away: int = 0  # brokers that the cluster knows besides: they are down, cut off or shutting down


def plan_topic(new: NewTopic, around: Surroundings, *, shift: int) -> tuple[tuple[int, ...], ...] | Refusal:
    """The new topic's assignment, preferred leaders first, or why there is none."""
    refusal = _refuse_name(new, around.topics)
    if refusal is not None:
        return refusal
    problem = problem_with(new.config)
    if problem is not None:
        return Refusal(ErrorCode.INVALID_CONFIG, f"topic {new.topic!r}: {problem}")
    if new.assignment:
        return _checked_assignment(new, around.brokers)
    partitions = around.num_partitions if new.partitions == DEFAULT else new.partitions
    if not 1 <= partitions <= MAX_PARTITIONS:
        return Refusal(
            ErrorCode.INVALID_PARTITIONS, f"topic {new.topic!r}: {partitions} partitions, must be 1 to {MAX_PARTITIONS}"
        )
    factor = around.default_replication_factor if new.replication_factor == DEFAULT else new.replication_factor
    if new.internal:
        factor = min(factor, len(around.brokers) + around.away)
    if factor < 1:
        return Refusal(
            ErrorCode.INVALID_REPLICATION_FACTOR, f"topic {new.topic!r}: replication factor {factor}, must be 1 or more"
        )
    if len(around.brokers) < factor <= len(around.brokers) + around.away:
        return brokers_away(new.topic, factor, len(around.brokers))
    if factor > len(around.brokers):  # RULES 9.1
        return Refusal(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"topic {new.topic!r}: replication factor {factor} is more than the {len(around.brokers)} live brokers: "
            "lower it or start more brokers",
        )
    start = least_leading(around.brokers, around.preferred_leaders)
    return assign_replicas(around.brokers, partitions, factor, start_index=start, shift=shift)


def brokers_away(topic: str, factor: int, registered: int) -> Refusal:
    """It is only that a broker is not there: the same request succeeds later."""
    return Refusal(
        ErrorCode.REPLICA_NOT_AVAILABLE,
        f"topic {topic!r}: replication factor {factor} asks for {factor} brokers, and {registered} are registered now: "
        "try again when those that are away are back",
    )


def refuse_internal(topic: str) -> Refusal | None:
    """The reason why a client may neither delete nor grow it."""
    if not is_internal_topic(topic):
        return None
    return Refusal(
        ErrorCode.INVALID_TOPIC,
        f"topic {topic!r} is internal: names that begin with two underscores are for the cluster's own records",
    )


def refuse_size(assignment: TopicAssignment) -> Refusal | None:
    """The reason why etcd would not take it: a request of it has 1.5 MiB."""
    size = len(assignment.to_json())
    if size <= MAX_ASSIGNMENT_BYTES:
        return None
    return Refusal(
        ErrorCode.INVALID_PARTITIONS,
        f"topic {assignment.topic!r}: the replicas of {len(assignment.replicas)} partitions take {size} bytes, and "
        f"{MAX_ASSIGNMENT_BYTES} are the most: ask for fewer",
    )


def _refuse_name(new: NewTopic, existing: Collection[str]) -> Refusal | None:
    topic = new.topic
    if not is_legal_topic_name(topic):
        return Refusal(
            ErrorCode.INVALID_TOPIC,
            f"illegal topic name {topic!r}: use 1 to 249 letters, digits, '.', '_' and '-', and not '.' or '..' alone",
        )
    if is_internal_topic(topic) and not new.internal:
        return Refusal(
            ErrorCode.INVALID_TOPIC,
            f"topic name {topic!r} is reserved: names that begin with two underscores are for the cluster's own topics",
        )
    if topic in existing:
        return Refusal(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {topic!r} already exists")
    # Kafka's rule: metric names turn dots into underscores.
    twin = next((name for name in existing if name.replace(".", "_") == topic.replace(".", "_")), None)
    if twin is not None:
        return Refusal(
            ErrorCode.INVALID_TOPIC,
            f"topic name {topic!r} collides with {twin!r}: names must differ in more than '.' and '_'",
        )
    return None


def _checked_assignment(new: NewTopic, brokers: Sequence[int]) -> tuple[tuple[int, ...], ...] | Refusal:
    assigned = tuple(replicas for _, replicas in sorted(new.assignment.items()))
    if sorted(new.assignment) != list(range(len(assigned))) or new.partitions not in (DEFAULT, len(assigned)):
        return Refusal(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {new.topic!r}: an assignment must name partitions 0 to {len(assigned) - 1}, each once",
        )
    if len(assigned) > MAX_PARTITIONS:
        return Refusal(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {new.topic!r}: {len(assigned)} partitions, must be 1 to {MAX_PARTITIONS}",
        )
    factors = {len(replicas) for replicas in assigned} | ({new.replication_factor} - {DEFAULT})
    if len(factors) != 1 or 0 in factors:
        return Refusal(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"topic {new.topic!r}: all partitions of an assignment must have equally many replicas, one at least",
        )
    live = set(brokers)
    for number, replicas in enumerate(assigned):
        if len(replicas) > len(brokers):
            return Refusal(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"topic {new.topic!r}, partition {number}: {len(replicas)} replicas are more than the {len(brokers)} "
                "live brokers",
            )
        if len(set(replicas)) != len(replicas) or not live.issuperset(replicas):
            return Refusal(
                ErrorCode.INVALID_REQUEST,
                f"topic {new.topic!r}, partition {number}: replicas {list(replicas)} must be distinct live brokers "
                f"(live: {list(brokers)})",
            )
    return assigned
