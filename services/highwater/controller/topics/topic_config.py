"""The configuration that a topic may have: Kafka's keys, and `payload.format`. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

Check = Callable[[str], str | None]
"""What is wrong with a value, as the end of a sentence; None where it is good."""

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
_INTEGER = re.compile(r"-?[0-9]{1,19}")


def problem_with(config: Mapping[str, str]) -> str | None:
    """One sentence about the first bad key; None where all are known and good."""
    for key, value in sorted(config.items()):
        check = TOPIC_CONFIG.get(key)
        if check is None:
            return f"unknown topic configuration {key!r}: the known keys are {', '.join(TOPIC_CONFIG)}"
        problem = check(value)
        if problem is not None:
            return f"{key}={value!r} {problem}"
    return None


def _integer(lowest: int, highest: int) -> Check:
    def check(value: str) -> str | None:
        if _INTEGER.fullmatch(value) is None:  # `int` takes more than others read as the same number
            return "is not an integer"
        return None if lowest <= int(value) <= highest else f"is not between {lowest} and {highest}"

    return check


def _fraction(value: str) -> str | None:
    try:
        number = float(value)
    except ValueError:
        return "is not a number"
    return None if 0 <= number <= 1 else "is not between 0 and 1"


def _one_of(*choices: str) -> Check:
    return lambda value: None if value in choices else f"is not one of {', '.join(choices)}"


def _policies(value: str) -> str | None:
    given = [policy.strip() for policy in value.split(",")]
    good = all(policy in ("compact", "delete") for policy in given) and len(set(given)) == len(given)
    return None if good else "is not delete, compact, or both with a comma between"


_boolean = _one_of("true", "false")

TOPIC_CONFIG: Mapping[str, Check] = {
    "cleanup.policy": _policies,
    "compression.type": _one_of("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
    "delete.retention.ms": _integer(0, LONG_MAX),
    "file.delete.delay.ms": _integer(0, LONG_MAX),
    "flush.messages": _integer(1, LONG_MAX),
    "flush.ms": _integer(0, LONG_MAX),
    "follower.replication.throttled.replicas": lambda value: None,
    "index.interval.bytes": _integer(0, INT_MAX),
    "leader.replication.throttled.replicas": lambda value: None,
    "max.compaction.lag.ms": _integer(1, LONG_MAX),
    "max.message.bytes": _integer(1, INT_MAX),
    "message.timestamp.after.max.ms": _integer(0, LONG_MAX),
    "message.timestamp.before.max.ms": _integer(0, LONG_MAX),
    "message.timestamp.difference.max.ms": _integer(0, LONG_MAX),
    "message.timestamp.type": _one_of("CreateTime", "LogAppendTime"),
    "min.cleanable.dirty.ratio": _fraction,
    "min.compaction.lag.ms": _integer(0, LONG_MAX),
    "min.insync.replicas": _integer(1, INT_MAX),
    "payload.format": _one_of("any", "rows"),  # RULES 10.1
    "preallocate": _boolean,
    "retention.bytes": _integer(-1, LONG_MAX),
    "retention.ms": _integer(-1, LONG_MAX),
    "segment.bytes": _integer(1024, INT_MAX),
    "segment.index.bytes": _integer(12, INT_MAX),
    "segment.jitter.ms": _integer(0, LONG_MAX),
    "segment.ms": _integer(1, LONG_MAX),
    "unclean.leader.election.enable": _boolean,
}
