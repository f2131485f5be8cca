"""The incremental sessions of fetchers and consumers, by the partitions that they ask for (RULES 4.10).

Pure. A session asks for a partition until it is answered or forgets it, over as many requests as that takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from highwater.model.partition import PartitionKey
from highwater.telemetry.politely import politely


class SessionWait(Protocol):
    """One session, told by the partitions that it asks for what has moved."""

    def grown(self, key: PartitionKey, end_offset: int, size_bytes: int) -> None:
        """The log grew by about so many bytes, to `end_offset`."""

    def high_watermark_advanced(self, key: PartitionKey, offset: int) -> None:
        """To `offset`."""

    def changed(self, key: PartitionKey) -> None:
        """It is led here from now on, or no more."""

    def log_start_raised(self, key: PartitionKey) -> None:
        """Followers are told at once, that they may follow it, and consumers whose offset is gone."""

    def held_back(self) -> Iterable[PartitionKey]:
        """Those of which it gets nothing now for a throttle (RULES 4.14)."""


_NOBODY: tuple[SessionWait, ...] = ()


class SessionWaits:
    """Replicas' sessions are bounded by the brokers' fetchers, consumers' by `max_consumers`."""

    def __init__(self, max_consumers: int) -> None:
        self._by_key: dict[PartitionKey, dict[SessionWait, None]] = {}
        self.waiting = 0  # sessions with a request that waits
        self._max_consumers = max_consumers
        self._consumers = 0

    def open_consumers(self) -> bool:
        """Counts a consumer's session; False: there are as many as may be."""
        if self._consumers >= self._max_consumers:
            return False
        self._consumers += 1
        return True

    def close_consumers(self) -> None:
        """A session that was counted is over."""
        self._consumers -= 1

    def add(self, key: PartitionKey, session: SessionWait) -> None:
        self._by_key.setdefault(key, {})[session] = None

    def discard(self, key: PartitionKey, session: SessionWait) -> None:
        sessions = self._by_key.get(key)
        if sessions is not None:
            sessions.pop(session, None)
            if not sessions:
                del self._by_key[key]

    def held_back(self) -> Iterator[PartitionKey]:
        """Of all sessions; may be called from another thread."""
        sessions = {session for each in politely(list(self._by_key.values())) for session in list(each)}
        for session in sessions:
            yield from session.held_back()

    def of(self, key: PartitionKey) -> Iterable[SessionWait]:
        """Those that ask for it now; what they are told may change that."""
        sessions = self._by_key.get(key)
        return _NOBODY if sessions is None else tuple(sessions)
