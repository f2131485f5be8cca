"""The configuration that a topic may have: Kafka's keys, and `payload.format`. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from highwater.metadata.schema.models import MAX_CONFIG_BYTES, MAX_CONFIG_VALUE_BYTES, config_to_json

Check = Callable[[str], str | None]
"""What is wrong with a value, as the end of a sentence; None where it is good."""

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
MAX_SHOWN = 100  # characters of what was given, in what is said of it
_INTEGER = re.compile(r"-?[0-9]{1,19}")
_THROTTLED = re.compile(r"\*|none|([0-9]+:[0-9]+(,[0-9]+:[0-9]+)*)?")


def problem_with(config: Mapping[str, str]) -> str | None:
    """One sentence about the first bad key; None where all are known and good."""
    for key, value in sorted(config.items()):
        check = TOPIC_CONFIG.get(key)
        if check is None:
            return f"unknown topic configuration {_shown(key)}: the known keys are {', '.join(TOPIC_CONFIG)}"
        if len(value) > MAX_CONFIG_VALUE_BYTES:
            return f"{key} has {len(value)} characters: {MAX_CONFIG_VALUE_BYTES} are the most"
        problem = check(value) if value.isascii() and value.isprintable() else "has a character that is not printable"
        if problem is not None:
            return f"{key}={_shown(value)} {problem}"
    return too_large(config)


def too_large(config: Mapping[str, str]) -> str | None:
    """One sentence where all of it together is too large."""
    size = len(config_to_json(config))
    if size <= MAX_CONFIG_BYTES:
        return None
    largest = max(config, key=lambda key: len(config[key]))
    return f"its configuration has {size} bytes, most of them in {largest}: {MAX_CONFIG_BYTES} are the most"


def _shown(text: str) -> str:
    """As much of it as a sentence can have."""
    return repr(text) if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]!r}…"


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


def _replicas(value: str) -> str | None:
    good = _THROTTLED.fullmatch(value) is not None
    return None if good else "is not partition:broker pairs with commas between, *, none or empty"


_boolean = _one_of("true", "false")

TOPIC_CONFIG: Mapping[str, Check] = {
    "cleanup.policy": _policies,
    "compression.type": _one_of("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
    "delete.retention.ms": _integer(0, LONG_MAX),
    "file.delete.delay.ms": _integer(0, LONG_MAX),
    "flush.messages": _integer(1, LONG_MAX),
    "flush.ms": _integer(0, LONG_MAX),
    "follower.replication.throttled.replicas": _replicas,
    "index.interval.bytes": _integer(0, INT_MAX),
    "leader.replication.throttled.replicas": _replicas,
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
