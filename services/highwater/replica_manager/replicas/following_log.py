"""The partitions that are followed, in the order in which they changed, and a watcher's place in it (RULES 4.12). Pure.

Every change goes to the end, and a partition is there once, with the latest of it. A watcher keeps the version that it
has been told: what lies behind it is news to it, merged already, however long it has not read. So nothing is kept for a
watcher, and what a message costs is what has changed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

from highwater.model.partition import PartitionKey
from highwater.replica_manager.replicas.following import Followed, Following

FEW = 64  # removals that are remembered at least

_NOTHING = -1  # the version of those who have been told nothing


class _Change(NamedTuple):
    followed: Followed | None  # None: followed no more
    version: int  # that brought it
    removed_in: int  # the latest version in which it was followed no more; _NOTHING: none that is remembered


class FollowingLog:
    """Invariant: the versions of `_changes` never fall, and none is above `_version`."""

    def __init__(self) -> None:
        self._changes: OrderedDict[PartitionKey, _Change] = OrderedDict()
        self._removals = 0  # of `_changes`, those that are followed no more
        self._version = 0
        self._whole_since = 0  # who has been told of an earlier version is told everything
        self._registration: tuple[int, str] | None = None  # broker epoch, log-storage incarnation
        self._throttle_rate: float | None = None

    @property
    def version(self) -> int:
        """Grows whenever there is news."""
        return self._version

    def __len__(self) -> int:
        """The partitions that are followed, and the removals that are remembered."""
        return len(self._changes)

    def publish(
        self, broker_epoch: int, log_storage_incarnation: str, changes: Mapping[PartitionKey, Followed | None]
    ) -> None:
        """Takes the latest of each partition that may have changed; None: it is followed no more."""
        if self._removals > max(FEW, len(self._changes) // 2):
            self._forget_removals()
        version = self._version + 1
        for key, followed in changes.items():
            self._take(key, followed, version)
        if self._registration != (broker_epoch, log_storage_incarnation):
            self._registration = (broker_epoch, log_storage_incarnation)
            self._version = version
            self._forget_removals()

    def set_throttle_rate(self, rate: float | None) -> None:
        """It is in every message, and a change of it is one."""
        if rate != self._throttle_rate:
            self._throttle_rate = rate
            self._version += 1

    def _take(self, key: PartitionKey, followed: Followed | None, version: int) -> None:
        before = self._changes.get(key)
        if followed == (None if before is None else before.followed):
            return
        removed_in = _NOTHING if before is None else before.removed_in
        if followed is None:
            removed_in = version
            self._removals += 1
        elif before is not None and before.followed is None:
            self._removals -= 1
        self._changes[key] = _Change(followed, version, removed_in)
        self._changes.move_to_end(key)
        self._version = version

    def _forget_removals(self) -> None:
        """Whoever has not been told of them yet is told everything. Their number has doubled since the last time."""
        for key in [key for key, change in self._changes.items() if change.followed is None]:
            del self._changes[key]
        self._removals = 0
        self._whole_since = self._version

    def since(self, version: int, *, whole: bool = False) -> Following | None:
        """Returns what is new to whoever was told everything up to `version`; None where nothing is, and while the
        broker has not been registered yet. `whole`: everything, if anything is new."""
        if self._registration is None or version == self._version:
            return None
        broker_epoch, incarnation = self._registration
        if whole or version < self._whole_since:
            return Following(broker_epoch, incarnation, self.followed(), throttle_rate=self._throttle_rate)
        partitions, removed = {}, []
        for key, change in reversed(self._changes.items()):
            if change.version <= version:
                break
            if change.removed_in > version:
                removed.append(key)
            if change.followed is not None:
                partitions[key] = change.followed
        return Following(broker_epoch, incarnation, partitions, True, tuple(removed), self._throttle_rate)

    def followed(self) -> dict[PartitionKey, Followed]:
        """Everything that is followed."""
        return {key: change.followed for key, change in self._changes.items() if change.followed is not None}


class FollowingReader:
    """One watcher's place. A new stream has a new one: its first message is the whole."""

    def __init__(self, log: FollowingLog, *, takes_changes: bool) -> None:
        self._log = log
        self._takes_changes = takes_changes
        self._told = _NOTHING

    def take(self) -> Following | None:
        """Returns the next message, which counts as told from here on; None: nothing is new."""
        following = self._log.since(self._told, whole=not self._takes_changes)
        if following is not None:
            self._told = self._log.version
        return following
