"""The topic-level configuration that the replica-manager itself looks at. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from highwater.configuration.topic_keys import ANY_PAYLOAD, TIMESTAMP_AFTER_MAX_MS, TIMESTAMP_BEFORE_MAX_MS
from highwater.quotas.throttled_replicas import NONE_THROTTLED, ThrottledReplicas, parse_throttled_replicas


@dataclass(frozen=True, slots=True)
class TopicConfig:
    min_insync_replicas: int
    max_message_bytes: int
    rows_only: bool  # payload.format=rows (RULES 10.1)
    compacted: bool  # cleanup.policy holds compact (RULES 10.3)
    # How far from the broker's clock a record's time may be; None: the broker gives it its own (LogAppendTime).
    timestamp_before_max_ms: int | None = TIMESTAMP_BEFORE_MAX_MS
    timestamp_after_max_ms: int | None = TIMESTAMP_AFTER_MAX_MS
    leader_throttled: ThrottledReplicas = NONE_THROTTLED  # whose traffic their leader bounds (RULES 4.14)
    follower_throttled: ThrottledReplicas = NONE_THROTTLED  # whose traffic they bound themselves


def parse(
    config: Mapping[str, str], *, min_insync_replicas: int, message_max_bytes: int, cleanup_policy: str
) -> TopicConfig:
    """Kafka's keys over the broker's defaults. A number that is none counts as not set: the controller refuses it
    when a topic is made, and a broker must go on serving whatever it finds."""
    append_time = config.get("message.timestamp.type") == "LogAppendTime"
    before, after = "message.timestamp.before.max.ms", "message.timestamp.after.max.ms"
    return TopicConfig(
        min_insync_replicas=_number(config.get("min.insync.replicas"), min_insync_replicas),
        max_message_bytes=_number(config.get("max.message.bytes"), message_max_bytes),
        rows_only=config.get("payload.format", ANY_PAYLOAD) == "rows",
        compacted="compact" in (policy.strip() for policy in config.get("cleanup.policy", cleanup_policy).split(",")),
        timestamp_before_max_ms=None if append_time else _number(config.get(before), TIMESTAMP_BEFORE_MAX_MS, 0),
        timestamp_after_max_ms=None if append_time else _number(config.get(after), TIMESTAMP_AFTER_MAX_MS, 0),
        leader_throttled=parse_throttled_replicas(config.get("leader.replication.throttled.replicas")),
        follower_throttled=parse_throttled_replicas(config.get("follower.replication.throttled.replicas")),
    )


def _number(text: str | None, default: int, lowest: int = 1) -> int:
    try:
        return default if text is None else max(lowest, int(text))
    except ValueError:
        return default
