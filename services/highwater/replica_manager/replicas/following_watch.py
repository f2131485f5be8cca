"""The fetchers that wait to hear what to follow (WatchFollowing)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

from highwater.model.partition import PartitionKey
from highwater.replica_manager.replicas.following import Followed, Following
from highwater.replica_manager.replicas.following_log import FollowingLog, FollowingReader


class FollowingWatch:
    def __init__(self) -> None:
        self.log = FollowingLog()
        self._changed = asyncio.Event()

    def publish(
        self, broker_epoch: int, log_storage_incarnation: str, changes: Mapping[PartitionKey, Followed | None]
    ) -> None:
        """As `FollowingLog.publish`; wakes those who wait where there is news."""
        before = self.log.version
        self.log.publish(broker_epoch, log_storage_incarnation, changes)
        self._wake_after(before)

    def set_throttle_rate(self, rate: float | None) -> None:
        """As `FollowingLog.set_throttle_rate`; wakes those who wait where there is news."""
        before = self.log.version
        self.log.set_throttle_rate(rate)
        self._wake_after(before)

    def _wake_after(self, version: int) -> None:
        if self.log.version != version:
            self._changed.set()
            self._changed = asyncio.Event()

    async def watch(self, *, takes_changes: bool) -> AsyncIterator[Following]:
        """Yields what is to be followed now (nothing while this broker is not registered), then each change; as one,
        where more than one has come since the last was taken."""
        reader = FollowingReader(self.log, takes_changes=takes_changes)
        while True:
            changed = self._changed
            following = reader.take()
            if following is None:
                await changed.wait()
            else:
                yield following
