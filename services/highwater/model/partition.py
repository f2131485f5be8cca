"""A partition's name below the client API."""

from __future__ import annotations

import base64
from typing import NamedTuple
from uuid import UUID

TOPIC_ID_BYTES = 16


class PartitionKey(NamedTuple):
    """Names a partition below the client API (RULES 1.1)."""

    topic_id: bytes  # 16 bytes
    partition: int

    def __str__(self) -> str:
        # A peer may name a topic id of any length, and the sentence that refuses it says which.
        topic_id = UUID(bytes=self.topic_id) if len(self.topic_id) == TOPIC_ID_BYTES else self.topic_id.hex() or "''"
        return f"{topic_id}-{self.partition}"


def format_topic_id(topic_id: bytes) -> str:
    """As Kafka prints a UUID: base64 for URLs, without padding."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()
