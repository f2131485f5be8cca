"""The names that a topic may have. Pure."""

from __future__ import annotations

import re

LONGEST_TOPIC_NAME = 249
_TOPIC = re.compile(rf"[a-zA-Z0-9._-]{{1,{LONGEST_TOPIC_NAME}}}")


def is_legal_topic_name(topic: str) -> bool:
    """Kafka's rule: 1 to 249 of letters, digits, `.`, `_` and `-`, and neither `.` nor `..`."""
    return _TOPIC.fullmatch(topic) is not None and topic not in (".", "..")


def is_internal_topic(topic: str) -> bool:
    """Names that begin with two underscores are the cluster's own, as Kafka's `__consumer_offsets` is: clients neither
    create nor write them."""
    return topic.startswith("__")
