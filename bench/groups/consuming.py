"""Rates of a group's member and of a consumer that partitions are assigned to, taken in pairs."""

from __future__ import annotations

from statistics import median
from time import monotonic

from bench.groups.sizes import GroupSizes
from bench.scale.progress import say


class PairedRates:
    def __init__(self, sizes: GroupSizes) -> None:
        self._sizes = sizes
        self._over_s = monotonic() + sizes.consume_time_s
        self._pairs: list[tuple[float, float]] = []

    @property
    def count(self) -> int:
        return len(self._pairs)

    def wants_more(self) -> bool:
        return not self._pairs or (self.count < self._sizes.consume_pairs and monotonic() < self._over_s)

    def add(self, in_group: float, assigned: float) -> None:
        self._pairs.append((in_group, assigned))

    def percent(self) -> float:
        """Median of the shares of the pairs."""
        in_group, assigned = (median(rates) for rates in zip(*self._pairs, strict=True))
        say(f"{in_group:,.0f} records/s in a group, {assigned:,.0f} assigned; {self.count} pairs")
        return median(100 * one / other for one, other in self._pairs)
