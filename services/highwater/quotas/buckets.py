"""The token buckets of many, as many as are in use and never more than a bound."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from highwater.quotas.token_bucket import TokenBucket

MAX_BUCKETS = 10_000
_LOOKED_AT = 2  # with each new one: those that are full are dropped faster than they come

KeyT = TypeVar("KeyT", bound=Hashable)


class Buckets(Generic[KeyT]):
    """Buckets by key, the one used or looked at last at the end. One that is full again is dropped, as nothing is lost
    with it; while there are as many as may be, whoever comes new shares one with all others who do. Each look-up costs
    the same."""

    def __init__(self, most: int = MAX_BUCKETS) -> None:
        self._most = most
        self._buckets: OrderedDict[KeyT, TokenBucket] = OrderedDict()
        self._shared: TokenBucket | None = None

    def __len__(self) -> int:
        return len(self._buckets)

    def of(self, key: KeyT, rate: float, now_s: float) -> TokenBucket:
        """The bucket of this key, which has the rate from now on."""
        bucket = self._buckets.get(key)
        if bucket is None:
            self._drop_idle(now_s)
            bucket = self._new(key, rate, now_s)
        else:
            self._buckets.move_to_end(key)
        if bucket.rate != rate:
            bucket.change_rate(rate, now_s)
        return bucket

    def _new(self, key: KeyT, rate: float, now_s: float) -> TokenBucket:
        if len(self._buckets) < self._most:
            bucket = self._buckets[key] = TokenBucket(rate, now_s)
            return bucket
        if self._shared is None:
            self._shared = TokenBucket(rate, now_s)
        return self._shared

    def _drop_idle(self, now_s: float) -> None:
        for _ in range(min(_LOOKED_AT, len(self._buckets))):
            key, bucket = next(iter(self._buckets.items()))
            if bucket.is_full(now_s):
                del self._buckets[key]
            else:
                self._buckets.move_to_end(key)  # it may owe for days: those behind it are not kept for that

    def clear(self) -> None:
        self._buckets.clear()
        self._shared = None
