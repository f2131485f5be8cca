"""The places that a fetcher's session has told its leader, and so what the next request has to say (RULES 4.10).

Pure. An answer is about what had been told when its request went out, not about what was told since: so what a request
says counts for answers only from its own on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from highwater.fetcher.follower.actions import FetchPosition
from highwater.fetcher.follower.fetch_order import FetchOrder
from highwater.model.partition import PartitionKey


class NamedRequest(NamedTuple):
    """The contents of one request."""

    named: dict[PartitionKey, FetchPosition]  # the place of each, in the order of the request
    forgotten: dict[PartitionKey, None]  # told before, and not to be fetched now


class NamedPlaces:
    """Invariant: a partition whose position is another than `latest` says, or whose answer the leader has given, is in
    `changed`. Costs what has changed; nothing here goes over all partitions but the first request of a session."""

    def __init__(self) -> None:
        # As of the latest request that was answered.
        self._answered: dict[PartitionKey, FetchPosition] = {}
        self._under_way: deque[NamedRequest] = deque()  # those that are not, oldest first
        self._changed: dict[PartitionKey, None] = {}  # in the order in which they changed
        # Of the latest places those that the leader has answered with data: it says no more before they are named anew.
        self._spent: set[PartitionKey] = set()

    def __len__(self) -> int:
        """At least as many as there are places that the leader knows."""
        return len(self._answered) + sum(len(request.named) for request in self._under_way)

    def open(self, keys: Iterable[PartitionKey]) -> None:
        """A new session starts from nothing: everything is to be named."""
        self._answered.clear()
        self._under_way.clear()
        self._spent.clear()
        self._changed = dict.fromkeys(keys)

    def changed(self, key: PartitionKey) -> None:
        """The partition's position may be another from here on."""
        self._changed.setdefault(key)

    def removed(self, key: PartitionKey) -> None:
        """Another fetcher has the partition, or nobody: answers that are under way are nobody's (RULES 4.7)."""
        known = self._answered.pop(key, None) is not None
        for request in self._under_way:
            known |= request.named.pop(key, None) is not None
        self._spent.discard(key)
        if known:
            self._changed.setdefault(key)  # the leader is to forget it
            self._answered[key] = _NOBODYS

    def latest(self, key: PartitionKey) -> FetchPosition | None:
        """The place that the leader has, or will have when what is under way has arrived."""
        for request in reversed(self._under_way):
            if key in request.named:
                return request.named[key]
            if key in request.forgotten:
                return None
        return self._answered.get(key)

    def joined(self, position_of: Callable[[PartitionKey], FetchPosition | None]) -> bool:
        """Tells whether a partition may be fetched for which the leader has no place, or one of before something was
        dropped."""
        for key in self._changed:
            position = position_of(key)
            if position is not None:
                latest = self.latest(key)
                if latest is None or latest.generation != position.generation:
                    return True
        return False

    def next_request(
        self, position_of: Callable[[PartitionKey], FetchPosition | None], *, whole: FetchOrder | None
    ) -> NamedRequest | None:
        """Returns what the request that goes out now says; None where there is nothing to fetch nor to forget.

        `whole`: all partitions, in their order, for a leader that takes every request for the whole; None: what has
        changed."""
        request = NamedRequest({}, {})
        for key in self._changed if whole is None else [*whole, *(key for key in self._changed if key not in whole)]:
            position, latest = position_of(key), self.latest(key)
            if position is None:
                if latest is not None:
                    request.forgotten[key] = None
            elif whole is not None or position != latest or key in self._spent:
                request.named[key] = position
        if not request.named and not request.forgotten and not len(self):
            return None
        self._changed = {}
        self._spent.difference_update(request.named, request.forgotten)
        self._under_way.append(request)
        return request

    def answered(self) -> None:
        """The oldest request under way is answered: from here on `asked` tells what it was about."""
        request = self._under_way.popleft()
        for key in request.forgotten:
            self._answered.pop(key, None)
        self._answered.update(request.named)

    def asked(self, key: PartitionKey) -> FetchPosition | None:
        """The place that the answer is about; None: it is nobody's."""
        position = self._answered.get(key)
        return None if position is _NOBODYS else position

    def returned_data(self, key: PartitionKey) -> None:
        """The leader says nothing more about this place."""
        self._changed.setdefault(key)
        if not any(key in request.named for request in self._under_way):
            self._spent.add(key)

    def refused(self, key: PartitionKey) -> None:
        """The leader has answered with an error or a divergence, and forgotten the place."""
        self._changed.setdefault(key)
        self._answered.pop(key, None)


_NOBODYS = FetchPosition(-1, -1, 0, 0, -1, 0)
