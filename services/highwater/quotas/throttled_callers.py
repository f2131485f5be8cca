"""The callers that are told to pause, and for how long: a bounded number of them by name."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from highwater.quotas.client_quotas import Caller, Quota

MAX_NAMED = 20
OTHERS = "(others)"
IDLE_S = 300.0
"""Whoever was not told to pause for so long gives up the name to another."""


class ThrottledCallers:
    """Seconds by quota, user and client. While `most` have their own, whoever comes new is counted with the others,
    and so is what was counted for who has given the name up."""

    def __init__(self, most: int = MAX_NAMED) -> None:
        self._most = most
        # Whoever was told last comes last: seconds, and when that was.
        self._named: OrderedDict[tuple[Quota, Caller], tuple[float, float]] = OrderedDict()
        self._others: dict[Quota, float] = {}

    def add(self, quota: Quota, caller: Caller, pause_s: float, now_s: float) -> None:
        key = (quota, caller)
        known = self._named.pop(key, None)
        if known is None and len(self._named) >= self._most:
            oldest, (seconds, told_s) = next(iter(self._named.items()))
            if now_s - told_s < IDLE_S:
                self._others[quota] = self._others.get(quota, 0.0) + pause_s
                return
            del self._named[oldest]
            self._others[oldest[0]] = self._others.get(oldest[0], 0.0) + seconds
        self._named[key] = ((known[0] if known is not None else 0.0) + pause_s, now_s)

    def values(self) -> Iterator[tuple[Sequence[str], float]]:
        """By quota, user and client; may be called from another thread."""
        for (quota, caller), (seconds, _) in list(self._named.items()):
            yield (quota.value, caller.user, caller.client), seconds
        for quota, seconds in list(self._others.items()):
            yield (quota.value, OTHERS, OTHERS), seconds
