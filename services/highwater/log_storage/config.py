"""The settings of one log: the broker's, with the topic's own in their place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from highwater.errors import ErrorCode
from highwater.log_storage.errors import LogError
from highwater.log_storage.producers.producer_states import NO_LIMITS, ProducerLimits

_LONG_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class LogConfig:
    segment_bytes: int = 1 << 30
    index_interval_bytes: int = 4096
    index_max_bytes: int = 10 << 20
    roll_ms: int = 7 * 24 * 3600 * 1000
    producer_limits: ProducerLimits = NO_LIMITS
    roll_jitter_ms: int = 0  # at most so much earlier, each segment by a share of its own
    message_max_bytes: int = 1_048_588
    flush_messages: int = _LONG_MAX  # records after which an append waits for the disk
    flush_ms: int = _LONG_MAX  # after which what has been appended is written to disk in the background
    log_append_time: bool = False
    retention_ms: int = 7 * 24 * 3600 * 1000  # -1: unlimited
    retention_bytes: int = -1  # -1: unlimited
    file_delete_delay_ms: int = 60_000  # from a segment's renaming to `.deleted` to its removal
    deletes: bool = True  # cleanup.policy holds delete: the two above count
    compacts: bool = False  # cleanup.policy holds compact: the four below count
    min_cleanable_ratio: float = 0.5  # the dirty share of a log from which on it is compacted
    min_compaction_lag_ms: int = 0  # how long a record stays at least
    max_compaction_lag_ms: int = _LONG_MAX  # how long a record may wait for compaction
    delete_retention_ms: int = 24 * 3600 * 1000  # how long a tombstone stays after compaction has passed over it

    @property
    def roll_after_ms(self) -> int:
        """The age at which a segment is rolled: the active one cannot be compacted."""
        return min(self.roll_ms, self.max_compaction_lag_ms) if self.compacts else self.roll_ms

    def with_topic(self, config: Mapping[str, str]) -> LogConfig:
        """With a topic's keys over these. Keys that are not of this service (`min.insync.replicas`, ...) are left to
        others. Raises `LogError` (INVALID_CONFIG)."""
        changes: dict[str, float] = {}
        for key, (field, lowest, highest) in _TOPIC_KEYS.items():
            if key in config:
                changes[field] = _number(key, config[key], lowest, highest)
        timestamp_type = config.get("message.timestamp.type")
        if timestamp_type is not None:
            if timestamp_type not in ("CreateTime", "LogAppendTime"):
                raise LogError(
                    ErrorCode.INVALID_CONFIG,
                    f"message.timestamp.type={timestamp_type}: it is CreateTime or LogAppendTime",
                )
            changes["log_append_time"] = timestamp_type == "LogAppendTime"
        policies = config.get("cleanup.policy")
        if policies is not None:
            deletes, compacts = cleanup_policies(policies)
            changes |= {"deletes": deletes, "compacts": compacts}
        ratio = config.get("min.cleanable.dirty.ratio")
        if ratio is not None:
            changes["min_cleanable_ratio"] = _fraction("min.cleanable.dirty.ratio", ratio)
        return replace(self, **changes) if changes else self  # type: ignore[arg-type]


def cleanup_policies(policies: str) -> tuple[bool, bool]:
    """Tells whether a list of policies holds delete, and compact."""
    given = {policy.strip() for policy in policies.split(",")}
    return "delete" in given, "compact" in given


_TOPIC_KEYS = {
    "segment.bytes": ("segment_bytes", 1024, 2**31 - 1),
    "index.interval.bytes": ("index_interval_bytes", 0, 2**31 - 1),
    "segment.index.bytes": ("index_max_bytes", 12, 2**31 - 1),
    "segment.ms": ("roll_ms", 1, _LONG_MAX),
    "segment.jitter.ms": ("roll_jitter_ms", 0, _LONG_MAX),
    "max.message.bytes": ("message_max_bytes", 1, 2**31 - 1),
    "retention.ms": ("retention_ms", -1, _LONG_MAX),
    "retention.bytes": ("retention_bytes", -1, _LONG_MAX),
    "flush.ms": ("flush_ms", 0, _LONG_MAX),
    "file.delete.delay.ms": ("file_delete_delay_ms", 0, _LONG_MAX),
    "flush.messages": ("flush_messages", 1, _LONG_MAX),
    "min.compaction.lag.ms": ("min_compaction_lag_ms", 0, _LONG_MAX),
    "max.compaction.lag.ms": ("max_compaction_lag_ms", 1, _LONG_MAX),
    "delete.retention.ms": ("delete_retention_ms", 0, _LONG_MAX),
}


def _number(key: str, text: str, lowest: int, highest: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise LogError(ErrorCode.INVALID_CONFIG, f"{key}={text}: it is not a number") from None
    if not lowest <= value <= highest:
        raise LogError(ErrorCode.INVALID_CONFIG, f"{key}={text}: it is a number from {lowest} to {highest}")
    return value


def _fraction(key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise LogError(ErrorCode.INVALID_CONFIG, f"{key}={text}: it is not a number") from None
    if not 0 <= value <= 1:
        raise LogError(ErrorCode.INVALID_CONFIG, f"{key}={text}: it is a number from 0 to 1")
    return value
