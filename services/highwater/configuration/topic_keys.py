"""The value that counts where a topic does not set a key itself: of the cluster's or the brokers' key behind it, or one
that the code has. Each of a topic's keys is in one of the two tables (`tests/unit/configuration`). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from highwater.configuration.value_checks import LONG_MAX

TIMESTAMP_BEFORE_MAX_MS = LONG_MAX
TIMESTAMP_AFTER_MAX_MS = 3_600_000
"""Kafka's defaults, of `message.timestamp.before.max.ms` and `message.timestamp.after.max.ms`."""
ANY_PAYLOAD = "any"
"""Of `payload.format`: bytes that nobody looks at."""

KEYS_BEHIND: Mapping[str, str] = {
    "cleanup.policy": "log.cleanup.policy",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "file.delete.delay.ms": "file.delete.delay.ms",
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms",
    "index.interval.bytes": "log.index.interval.bytes",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "max.message.bytes": "message.max.bytes",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "min.insync.replicas": "min.insync.replicas",
    "retention.bytes": "log.retention.bytes",
    "retention.ms": "log.retention.ms",
    "segment.bytes": "log.segment.bytes",
    "segment.index.bytes": "log.index.size.max.bytes",
    "segment.jitter.ms": "log.roll.jitter.ms",
    "segment.ms": "log.roll.ms",
    "unclean.leader.election.enable": "unclean.leader.election.enable",
}
"""By topic's key the key of the cluster, or of brokers, whose value is its default."""

FIXED_DEFAULTS: Mapping[str, str] = {
    "compression.type": "producer",
    "follower.replication.throttled.replicas": "",
    "leader.replication.throttled.replicas": "",
    "message.timestamp.after.max.ms": str(TIMESTAMP_AFTER_MAX_MS),
    "message.timestamp.before.max.ms": str(TIMESTAMP_BEFORE_MAX_MS),
    "message.timestamp.difference.max.ms": str(LONG_MAX),
    "message.timestamp.type": "CreateTime",
    "payload.format": ANY_PAYLOAD,
    "preallocate": "false",
}
"""By topic's key the default that no setting changes."""
