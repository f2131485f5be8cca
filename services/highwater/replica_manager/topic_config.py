"""The topic-level configuration that the replica-manager itself looks at. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TopicConfig:
    min_insync_replicas: int
    max_message_bytes: int
    rows_only: bool  # payload.format=rows (RULES 10.1)
    compacted: bool  # cleanup.policy holds compact (RULES 10.3)


def parse(
    config: Mapping[str, str], *, min_insync_replicas: int, message_max_bytes: int, cleanup_policy: str
) -> TopicConfig:
    """Kafka's keys over the broker's defaults. A number that is none counts as not set: the controller refuses it
    when a topic is made, and a broker must go on serving whatever it finds."""
    return TopicConfig(
        min_insync_replicas=_number(config.get("min.insync.replicas"), min_insync_replicas),
        max_message_bytes=_number(config.get("max.message.bytes"), message_max_bytes),
        rows_only=config.get("payload.format", "any") == "rows",
        compacted="compact" in (policy.strip() for policy in config.get("cleanup.policy", cleanup_policy).split(",")),
    )


def _number(text: str | None, default: int) -> int:
    try:
        return default if text is None else max(1, int(text))
    except ValueError:
        return default
