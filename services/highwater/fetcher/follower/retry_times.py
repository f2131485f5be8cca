"""The followers that back off, by when each is to be tried again. Pure."""

from __future__ import annotations

from heapq import heappop, heappush

from highwater.model.partition import PartitionKey


class RetryTimes:
    """Costs what is due, not what waits. A time that does not hold any more is dropped when it has come."""

    def __init__(self) -> None:
        self._at_ms: dict[PartitionKey, int] = {}
        self._times: list[tuple[int, PartitionKey]] = []  # a heap

    def set(self, key: PartitionKey, at_ms: int | None) -> None:
        """None: it does not back off."""
        if at_ms is None:
            self._at_ms.pop(key, None)
        elif self._at_ms.get(key) != at_ms:
            self._at_ms[key] = at_ms
            heappush(self._times, (at_ms, key))

    @property
    def next_ms(self) -> int | None:
        """Nobody is due before; None: nobody backs off."""
        return self._times[0][0] if self._times else None

    def take_due(self, now_ms: int, at_most: int) -> list[PartitionKey]:
        """Those whose time has come, in the order of their times. They back off no more; others may be due still. Times
        that hold no more count among the most that are taken."""
        due: list[PartitionKey] = []
        for _ in range(at_most):
            if not self._times or self._times[0][0] > now_ms:
                break
            at_ms, key = heappop(self._times)
            if self._at_ms.get(key) == at_ms:
                del self._at_ms[key]
                due.append(key)
        return due
