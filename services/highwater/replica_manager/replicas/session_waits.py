"""The incremental sessions of replicas' fetchers, by the partitions that they ask for (RULES 4.10).

Pure. A session asks for a partition until it is answered or forgets it, over as many requests as that takes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from highwater.model.partition import PartitionKey


class SessionWait(Protocol):
    """One session, told by the partitions that it asks for what has moved."""

    def grown(self, key: PartitionKey, end_offset: int, size_bytes: int) -> None:
        """The log grew by about so many bytes, to `end_offset`."""

    def marks_moved(self, key: PartitionKey) -> None:
        """The high watermark advanced."""

    def changed(self, key: PartitionKey) -> None:
        """It is led here from now on, or no more."""

    def log_start_raised(self, key: PartitionKey) -> None:
        """Followers are told at once, that they may follow it."""


_NOBODY: tuple[SessionWait, ...] = ()


class SessionWaits:
    def __init__(self) -> None:
        self._by_key: dict[PartitionKey, dict[SessionWait, None]] = {}
        self.waiting = 0  # sessions with a request that waits

    def add(self, key: PartitionKey, session: SessionWait) -> None:
        self._by_key.setdefault(key, {})[session] = None

    def discard(self, key: PartitionKey, session: SessionWait) -> None:
        sessions = self._by_key.get(key)
        if sessions is not None:
            sessions.pop(session, None)
            if not sessions:
                del self._by_key[key]

    def of(self, key: PartitionKey) -> Iterable[SessionWait]:
        """Those that ask for it now; what they are told may change that."""
        sessions = self._by_key.get(key)
        return _NOBODY if sessions is None else tuple(sessions)
