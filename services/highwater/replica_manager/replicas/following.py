"""The partitions that this broker's fetcher should be following, and the fetchers that wait to hear of it
(WatchFollowing).

Level-triggered: each watcher gets the whole of it, and where it changes faster than a watcher reads, only the latest.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from highwater.model.partition import PartitionKey


@dataclass(frozen=True, slots=True)
class Followed:
    """One partition to fetch, already fenced with role FOLLOWER (RULES 3.3)."""

    topic: str
    leader: int
    leader_address: str
    leader_broker_epoch: int  # of the registration that has this address (RULES 4.9)
    leader_epoch: int
    unclean_epoch: int  # RULES 4.4


@dataclass(frozen=True, slots=True)
class Following:
    broker_epoch: int
    log_storage_incarnation: str
    partitions: Mapping[PartitionKey, Followed]


class FollowingWatch:
    def __init__(self) -> None:
        self._current: Following | None = None
        self._changed = asyncio.Event()

    @property
    def current(self) -> Following | None:
        return self._current

    def publish(self, following: Following) -> None:
        if following != self._current:
            self._current = following
            self._changed.set()
            self._changed = asyncio.Event()

    async def watch(self) -> AsyncIterator[Following]:
        """Yields what is to be followed now (nothing while this broker is not registered), then each change."""
        seen: Following | None = None
        while True:
            changed = self._changed
            if self._current is not None and self._current is not seen:
                seen = self._current
                yield seen
                continue
            await changed.wait()
