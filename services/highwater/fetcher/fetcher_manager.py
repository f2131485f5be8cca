"""All fetchers of this broker, brought into line with what it should be following. A message costs what it names, which
is what has changed (RULES 4.12), and a little for each fetcher; no change goes over all partitions.

One fetcher for each (leader, fetcher id). It is reused only while the leader's address and broker epoch are the same; a
change replaces it, and the partitions keep their offsets (RULES 4.9).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Generic, Protocol, TypeVar

from highwater.fetcher.follower.actions import Action
from highwater.fetcher.follower.follower import Follower
from highwater.fetcher.follower.following import (
    FetcherId,
    Following,
    LeaderEndpoint,
    Registration,
    fetcher_id_of,
)
from highwater.fetcher.follower_throttle import FollowerThrottle
from highwater.model.partition import PartitionKey


class PartitionFetcher(Protocol):
    """The manager's view of a fetcher; `ReplicaFetcher` is the one there is."""

    @property
    def leader(self) -> LeaderEndpoint: ...
    def open_session(self, broker_epoch: int) -> None: ...
    def add(self, follower: Follower) -> None: ...
    def changed(self, follower: Follower) -> None: ...
    def remove(self, key: PartitionKey) -> None: ...
    def perform(self, steps: Sequence[tuple[Follower, Action]]) -> None: ...
    async def stop(self) -> None: ...


Fetcher = TypeVar("Fetcher", bound=PartitionFetcher)

_Steps = defaultdict[FetcherId, list[tuple[Follower, Action]]]


class ChangesOfAnotherError(Exception):
    """The message names changes of what was never told here. Another stream begins with the whole."""


class FetcherManager(Generic[Fetcher]):
    """`open_fetcher` makes a fetcher for a leader's endpoint; `fetchers` is `num.replica.fetchers`, `retry_ms`
    `replica.fetch.backoff.ms`, `now_ms` the monotonic clock.

    Invariant: `_members` are the keys of `_homes` by their home, and a fetcher has the followers of its members."""

    def __init__(
        self,
        open_fetcher: Callable[[FetcherId, LeaderEndpoint], Fetcher],
        fetchers: int,
        retry_ms: int,
        now_ms: Callable[[], int],
        throttle: FollowerThrottle | None = None,
    ) -> None:
        self._open_fetcher = open_fetcher
        self._count = fetchers
        self._retry_ms = retry_ms
        self._now_ms = now_ms
        self.throttle = throttle or FollowerThrottle(now_ms)
        self._registration = Registration(-1, "")
        self._fetchers: dict[FetcherId, Fetcher] = {}
        self._followers: dict[PartitionKey, Follower] = {}
        self._homes: dict[PartitionKey, FetcherId] = {}
        self._members: defaultdict[FetcherId, dict[PartitionKey, None]] = defaultdict(dict)

    @property
    def broker_epoch(self) -> int:
        """-1 before the first Following message."""
        return self._registration.broker_epoch

    @property
    def fetchers(self) -> Mapping[FetcherId, Fetcher]:
        return MappingProxyType(self._fetchers)

    @property
    def followers(self) -> Mapping[PartitionKey, Follower]:
        return MappingProxyType(self._followers)

    async def apply(self, following: Following) -> None:
        """As `take`. Returns when what was stopped has stopped."""
        await asyncio.gather(*(fetcher.stop() for fetcher in self.take(following)))

    def take(self, following: Following) -> list[Fetcher]:
        """Level-triggered: saying something again only ends back-offs. Returns the fetchers that are to be stopped.

        Raises `ChangesOfAnotherError` where nothing, or another registration, was told before."""
        if not following.changes:
            self._drop([key for key in self._followers if key not in following.partitions])
        elif following.registration != self._registration:
            raise ChangesOfAnotherError(f"changes to {following.registration}, known is {self._registration}")
        self._drop(following.removed)
        self.throttle.configure(following.throttle_rate)
        for key, partition in following.partitions.items():
            self.throttle.list(key, partition.throttled)
        stopped, moved = self._take_replaced(following)
        reopen = following.registration.broker_epoch != self.broker_epoch
        self._registration = following.registration
        if reopen:
            self.reopen_sessions()  # RULES 4.1
        self._place(following, moved, registered_anew=reopen)
        return stopped + self._take_idle()

    def reopen_sessions(self) -> None:
        """Under another broker epoch, or where log-storage is out of reach."""
        for fetcher in self._fetchers.values():
            fetcher.open_session(self.broker_epoch)

    def configure(self, fetchers: int, retry_ms: int) -> list[Fetcher]:
        """Takes another number of fetchers for each leader, and pause after errors. Partitions go to the fetchers that
        are theirs from now on, and every session is opened anew: a leader knows a partition under one of them. Returns
        the fetchers that are to be stopped."""
        self._retry_ms = retry_ms
        for follower in self._followers.values():
            follower.retry_ms = retry_ms
        if fetchers == self._count:
            return []
        self._count = fetchers
        steps: _Steps = defaultdict(list)
        for key, follower in self._followers.items():
            before = self._homes[key]
            home = fetcher_id_of(key, before.leader, fetchers)
            if home != before:
                leader = self._fetchers[before].leader
                self._leave_home(key)
                self._fetchers[before].remove(key)
                steps[home] += [(follower, action) for action in follower.moved()]
                self._move_in(follower, home, leader)
        idle = self._take_idle()
        self.reopen_sessions()
        for home, its_steps in steps.items():
            self._fetchers[home].perform(its_steps)
        return idle

    async def stop(self) -> None:
        fetchers = list(self._fetchers.values())
        self._fetchers.clear()
        self._followers.clear()
        self._homes.clear()
        self._members.clear()
        await asyncio.gather(*(fetcher.stop() for fetcher in fetchers))

    def _drop(self, keys: Iterable[PartitionKey]) -> None:
        for key in keys:
            if self._followers.pop(key, None) is not None:
                self._fetchers[self._leave_home(key)].remove(key)
                self.throttle.list(key, listed=False)

    def _leave_home(self, key: PartitionKey) -> FetcherId:
        home = self._homes.pop(key)
        members = self._members[home]
        del members[key]
        if not members:
            del self._members[home]
        return home

    def _take_replaced(self, following: Following) -> tuple[list[Fetcher], dict[PartitionKey, LeaderEndpoint]]:
        """RULES 4.9: the fetchers whose leader registered anew, and the partitions that lost theirs by it, with where
        that leader is now."""
        leaders = {
            fetcher_id_of(key, partition.followed.leader, self._count): partition.leader
            for key, partition in following.partitions.items()
        }
        replaced, moved = [], {}
        for identity, leader in leaders.items():
            fetcher = self._fetchers.get(identity)
            if fetcher is not None and fetcher.leader != leader:
                replaced.append(self._fetchers.pop(identity))
                for key in self._members[identity]:
                    fetcher.remove(key)
                    moved[key] = leader
        return replaced, moved

    def _place(
        self, following: Following, moved: Mapping[PartitionKey, LeaderEndpoint], *, registered_anew: bool
    ) -> None:
        steps: _Steps = defaultdict(list)
        for key, partition in following.partitions.items():
            home = fetcher_id_of(key, partition.followed.leader, self._count)
            follower = self._followers.get(key)
            if follower is None:
                follower = self._followers[key] = Follower(key, partition.topic, self._retry_ms)
            actions = follower.follow(partition.followed, self._now_ms())
            if registered_anew:
                actions = actions or follower.registered_anew()
            if self._homes.get(key) != home or key in moved:
                actions = actions or follower.moved()
                if key in self._homes:
                    old_home = self._leave_home(key)
                    if key not in moved:
                        self._fetchers[old_home].remove(key)
                self._move_in(follower, home, partition.leader)
            self._fetchers[home].changed(follower)
            steps[home] += [(follower, action) for action in actions]
        for key, leader in moved.items():
            if key not in following.partitions:  # a leader has one address: all of its partitions go there
                follower, home = self._followers[key], self._homes[key]
                steps[home] += [(follower, action) for action in follower.moved()]
                self._move_in(follower, home, leader)
        for home, its_steps in steps.items():
            self._fetchers[home].perform(its_steps)

    def _move_in(self, follower: Follower, home: FetcherId, leader: LeaderEndpoint) -> None:
        self._homes[follower.key] = home
        self._members[home][follower.key] = None
        fetcher = self._fetchers.get(home)
        if fetcher is None:
            fetcher = self._fetchers[home] = self._open_fetcher(home, leader)
            fetcher.open_session(self.broker_epoch)
        fetcher.add(follower)

    def _take_idle(self) -> list[Fetcher]:
        return [self._fetchers.pop(identity) for identity in list(self._fetchers) if not self._members.get(identity)]
