"""The configuration that a topic may have: Kafka's keys, and `payload.format`. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from highwater.configuration.alteration import nearest
from highwater.configuration.value_checks import (
    INT_MAX,
    LONG_MAX,
    Check,
    boolean,
    fraction,
    integer,
    one_of,
    policies,
    shown,
)
from highwater.metadata.schema.models import MAX_CONFIG_BYTES, MAX_CONFIG_VALUE_BYTES, config_to_json

_THROTTLED = re.compile(r"\*|none|([0-9]+:[0-9]+(,[0-9]+:[0-9]+)*)?")


def problem_with(config: Mapping[str, str]) -> str | None:
    """One sentence about the first bad key; None where all are known and good."""
    for key, value in sorted(config.items()):
        check = TOPIC_CONFIG.get(key)
        if check is None:
            hint = nearest(key, TOPIC_CONFIG) or f": the known keys are {', '.join(TOPIC_CONFIG)}"
            return f"unknown topic configuration {shown(key)}{hint}"
        if len(value) > MAX_CONFIG_VALUE_BYTES:
            return f"{key} has {len(value)} characters: {MAX_CONFIG_VALUE_BYTES} are the most"
        problem = check(value) if value.isascii() and value.isprintable() else "has a character that is not printable"
        if problem is not None:
            return f"{key}={shown(value)} {problem}"
    return too_large(config)


def too_large(config: Mapping[str, str]) -> str | None:
    """One sentence where all of it together is too large."""
    size = len(config_to_json(config))
    if size <= MAX_CONFIG_BYTES:
        return None
    largest = max(config, key=lambda key: len(config[key]))
    return f"its configuration has {size} bytes, most of them in {largest}: {MAX_CONFIG_BYTES} are the most"


def _replicas(value: str) -> str | None:
    good = _THROTTLED.fullmatch(value) is not None
    return None if good else "is not partition:broker pairs with commas between, *, none or empty"


TOPIC_CONFIG: Mapping[str, Check] = {
    "cleanup.policy": policies,
    "compression.type": one_of("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
    "delete.retention.ms": integer(0, LONG_MAX),
    "file.delete.delay.ms": integer(0, LONG_MAX),
    "flush.messages": integer(1, LONG_MAX),
    "flush.ms": integer(0, LONG_MAX),
    "follower.replication.throttled.replicas": _replicas,
    "index.interval.bytes": integer(0, INT_MAX),
    "leader.replication.throttled.replicas": _replicas,
    "max.compaction.lag.ms": integer(1, LONG_MAX),
    "max.message.bytes": integer(1, INT_MAX),
    "message.timestamp.after.max.ms": integer(0, LONG_MAX),
    "message.timestamp.before.max.ms": integer(0, LONG_MAX),
    "message.timestamp.difference.max.ms": integer(0, LONG_MAX),
    "message.timestamp.type": one_of("CreateTime", "LogAppendTime"),
    "min.cleanable.dirty.ratio": fraction,
    "min.compaction.lag.ms": integer(0, LONG_MAX),
    "min.insync.replicas": integer(1, INT_MAX),
    "payload.format": one_of("any", "rows"),  # RULES 10.1
    "preallocate": boolean,
    "retention.bytes": integer(-1, LONG_MAX),
    "retention.ms": integer(-1, LONG_MAX),
    "segment.bytes": integer(1024, INT_MAX),
    "segment.index.bytes": integer(12, INT_MAX),
    "segment.jitter.ms": integer(0, LONG_MAX),
    "segment.ms": integer(1, LONG_MAX),
    "unclean.leader.election.enable": boolean,
}
