"""All fetchers of this broker, brought into line with what it should be following.

One fetcher for each (leader, fetcher id). It is reused only while the leader's address and broker epoch are the same; a
change replaces it, and the partitions keep their offsets (RULES 4.9).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Generic, Protocol, TypeVar

from highwater.fetcher.follower.actions import Action
from highwater.fetcher.follower.follower import Follower
from highwater.fetcher.follower.following import FetcherId, FollowedPartition, Following, LeaderEndpoint, fetcher_id_of
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


class FetcherManager(Generic[Fetcher]):
    """`open_fetcher` makes a fetcher for a leader's endpoint; `fetchers` is `num.replica.fetchers`, `retry_ms`
    `replica.fetch.backoff.ms`, `now_ms` the monotonic clock."""

    def __init__(
        self,
        open_fetcher: Callable[[FetcherId, LeaderEndpoint], Fetcher],
        fetchers: int,
        retry_ms: int,
        now_ms: Callable[[], int],
    ) -> None:
        self._open_fetcher = open_fetcher
        self._count = fetchers
        self._retry_ms = retry_ms
        self._now_ms = now_ms
        self._broker_epoch = -1
        self._fetchers: dict[FetcherId, Fetcher] = {}
        self._followers: dict[PartitionKey, Follower] = {}
        self._homes: dict[PartitionKey, FetcherId] = {}

    @property
    def broker_epoch(self) -> int:
        """-1 before the first Following message."""
        return self._broker_epoch

    @property
    def fetchers(self) -> Mapping[FetcherId, Fetcher]:
        return MappingProxyType(self._fetchers)

    @property
    def followers(self) -> Mapping[PartitionKey, Follower]:
        return MappingProxyType(self._followers)

    async def apply(self, following: Following) -> None:
        """Level-triggered: `following` is the whole of it, and saying it again only ends back-offs. Returns when what
        was stopped has stopped."""
        self._drop_partitions(following)
        stopped, moved = self._take_replaced(following)
        if following.broker_epoch != self._broker_epoch:
            self._broker_epoch = following.broker_epoch
            for fetcher in self._fetchers.values():
                fetcher.open_session(self._broker_epoch)  # RULES 4.1
        self._place_partitions(following, moved)
        stopped += self._take_idle()
        await asyncio.gather(*(fetcher.stop() for fetcher in stopped))

    def reopen_sessions(self) -> None:
        """log-storage is out of reach."""
        for fetcher in self._fetchers.values():
            fetcher.open_session(self._broker_epoch)

    async def stop(self) -> None:
        fetchers = list(self._fetchers.values())
        self._fetchers.clear()
        self._followers.clear()
        self._homes.clear()
        await asyncio.gather(*(fetcher.stop() for fetcher in fetchers))

    def _drop_partitions(self, following: Following) -> None:
        for key in [key for key in self._followers if key not in following.partitions]:
            del self._followers[key]
            self._fetchers[self._homes.pop(key)].remove(key)

    def _take_replaced(self, following: Following) -> tuple[list[Fetcher], set[PartitionKey]]:
        """RULES 4.9: the fetchers whose leader registered anew, and the partitions that lost theirs by it."""
        leaders = {
            fetcher_id_of(key, partition.followed.leader, self._count): partition.leader
            for key, partition in following.partitions.items()
        }
        replaced = {
            identity
            for identity, fetcher in self._fetchers.items()
            if identity in leaders and leaders[identity] != fetcher.leader
        }
        moved = {key for key, home in self._homes.items() if home in replaced}
        for key in moved:
            self._fetchers[self._homes[key]].remove(key)
        return [self._fetchers.pop(identity) for identity in replaced], moved

    def _place_partitions(self, following: Following, moved: set[PartitionKey]) -> None:
        steps: defaultdict[FetcherId, list[tuple[Follower, Action]]] = defaultdict(list)
        for key, partition in following.partitions.items():
            home = fetcher_id_of(key, partition.followed.leader, self._count)
            follower = self._followers.get(key)
            if follower is None:
                follower = self._followers[key] = Follower(key, partition.topic, self._retry_ms)
            actions = follower.follow(partition.followed, self._now_ms())
            old_home = self._homes.get(key)
            if old_home != home or key in moved:
                if old_home is not None and key not in moved:
                    self._fetchers[old_home].remove(key)
                self._homes[key] = home
                actions = actions or follower.moved()
                self._fetcher(home, partition).add(follower)
            self._fetchers[home].changed(follower)
            steps[home] += [(follower, action) for action in actions]
        for home, its_steps in steps.items():
            self._fetchers[home].perform(its_steps)

    def _fetcher(self, identity: FetcherId, partition: FollowedPartition) -> Fetcher:
        fetcher = self._fetchers.get(identity)
        if fetcher is None:
            fetcher = self._fetchers[identity] = self._open_fetcher(identity, partition.leader)
            fetcher.open_session(self._broker_epoch)
        return fetcher

    def _take_idle(self) -> list[Fetcher]:
        busy = set(self._homes.values())
        return [self._fetchers.pop(identity) for identity in list(self._fetchers) if identity not in busy]
