"""The steps of a topic's deletion (RULES 9.2). Pure.

STOPPING (replicas are told) -> REMOVING_STATES -> REMOVING_TOPIC -> gone
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

STOP_TIMEOUT_MS = 5_000


class DeletionStage(Enum):
    STOPPING = "stopping"
    REMOVING_STATES = "removing states"
    REMOVING_TOPIC = "removing topic"


class TopicDeletion:
    """Waits for the live replicas, and for none longer than `STOP_TIMEOUT_MS`: whoever missed it purges by topic id
    when it returns."""

    def __init__(self, brokers: Iterable[int], now_ms: int) -> None:
        self.stage = DeletionStage.STOPPING
        self._awaited = set(brokers)
        self._deadline_ms = now_ms + STOP_TIMEOUT_MS

    def stopped(self, broker_id: int) -> None:
        """The broker has stopped every replica of the topic, or is gone."""
        self._awaited.discard(broker_id)

    def advance(self, now_ms: int) -> bool:
        """Tells whether the states are to be removed now. True once."""
        if self.stage is DeletionStage.STOPPING and (not self._awaited or now_ms >= self._deadline_ms):
            self.stage = DeletionStage.REMOVING_STATES
            return True
        return False

    def states_removed(self) -> bool:
        """Tells whether the topic is to be removed now. True once."""
        if self.stage is DeletionStage.REMOVING_STATES:
            self.stage = DeletionStage.REMOVING_TOPIC
            return True
        return False
