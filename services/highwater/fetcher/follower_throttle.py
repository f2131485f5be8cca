"""The throttle of what this broker copies: the rate, and the replicas that it is for (RULES 4.14)."""

from __future__ import annotations

import math
from collections.abc import Callable

from highwater.fetcher.follower.follower import Follower
from highwater.model.partition import PartitionKey
from highwater.quotas.replication_quota import ReplicationQuota


class FollowerThrottle:
    """Of all fetchers of the broker. `now_ms` is the monotonic clock."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._quota = ReplicationQuota()
        self._configured: float | None = None
        self._given: float | None = None  # by SetThrottle
        self._replicas: set[PartitionKey] = set()
        self._awaited: set[PartitionKey] = set()  # of these, those for which the high watermark waited last

    def configure(self, rate: float | None) -> None:
        """As the broker's configuration says; None: any number of bytes a second."""
        self._configured = rate
        self._take_rate()

    def give(self, rate: float | None) -> None:
        """Goes before what is configured; None: that counts again."""
        self._given = rate
        self._take_rate()

    def _take_rate(self) -> None:
        rate = self._configured if self._given is None else self._given
        self._quota.set_rate(rate, self._now_ms() / 1000)

    def list(self, key: PartitionKey, listed: bool) -> None:
        """Says of a replica whether the throttle is for it."""
        if listed:
            self._replicas.add(key)
        else:
            self._replicas.discard(key)
            self._awaited.discard(key)

    def held_back_ms(self, follower: Follower) -> int:
        """Tells how long nothing of it may be asked for; 0: not at all. A replica for which commits may wait never
        does: it lacks no committed record, or its leader says so."""
        key = follower.key
        if self._quota.rate is None or key not in self._replicas or key in self._awaited or not follower.lag:
            return 0
        return self.owed_ms()

    def owed_ms(self) -> int:
        """Tells how long that is, for whatever is held back."""
        return math.ceil(1000 * self._quota.wait_s(self._now_ms() / 1000))

    def copied(self, key: PartitionKey, size_bytes: int, *, awaited: bool) -> None:
        """So much came of a partition; `awaited`: commits may wait for it."""
        if key not in self._replicas:
            return
        if awaited:
            self._awaited.add(key)
        else:
            self._awaited.discard(key)
            self._quota.moved(size_bytes, self._now_ms() / 1000)
