"""The order of the partitions in the next fetch request. Pure.

A leader serves a request's partitions in their order until the byte limit (RULES 4.8), so whoever returned data goes to
the end: a hot partition starves nobody.
"""

from __future__ import annotations

from collections.abc import Iterator

from highwater.model.partition import PartitionKey


class FetchOrder:
    """Partitions in the order to ask for them. All operations but iteration cost O(1)."""

    def __init__(self) -> None:
        self._order: dict[PartitionKey, None] = {}  # a dict keeps the order of insertion

    def add(self, key: PartitionKey) -> None:
        """At the end; one that is there already keeps its place."""
        self._order.setdefault(key, None)

    def remove(self, key: PartitionKey) -> None:
        self._order.pop(key, None)

    def returned_data(self, key: PartitionKey) -> None:
        """Sends a partition to the end; does nothing for one that was removed meanwhile."""
        if key in self._order:
            del self._order[key]
            self._order[key] = None

    def __iter__(self) -> Iterator[PartitionKey]:
        return iter(self._order)

    def __contains__(self, key: object) -> bool:
        return key in self._order

    def __len__(self) -> int:
        return len(self._order)
