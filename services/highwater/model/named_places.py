"""The places that a reader's session has told the leader, and so what its next request has to say (RULES 4.10).

Pure, and the same for a fetcher's session and a consumer's. An answer is about what had been told when its request went
out, not about what was told since: so what a request says counts for answers only from its own on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from highwater.model.partition import PartitionKey


class Place(Protocol):
    """A reader's position in a partition. Equal are two of which a leader need not be told the other."""

    @property
    def generation(self) -> int:
        """Another one where something was dropped: answers to places of before are of no use."""


PlaceT = TypeVar("PlaceT", bound=Place)


class NamedRequest(NamedTuple, Generic[PlaceT]):
    """The contents of one request."""

    named: dict[PartitionKey, PlaceT]  # the place of each, in the order of the request
    forgotten: dict[PartitionKey, None]  # told before, and not to be fetched now


class NamedPlaces(Generic[PlaceT]):
    """Invariant: a partition whose position is another than `latest` says, or whose answer the leader has given, is in
    `changed`. Costs what has changed; nothing here goes over all partitions but the first request of a session.

    `parks`: a place that returned data and is not read on from now need not be forgotten, as the leader says no more of
    it. A follower's must be: to its leader what it does not forget it still fetches (RULES 4.11)."""

    def __init__(self, *, parks: bool = False) -> None:
        self._parks = parks
        # As of the latest request that was answered.
        self._answered: dict[PartitionKey, PlaceT] = {}
        self._under_way: deque[NamedRequest[PlaceT]] = deque()  # those that are not, oldest first
        self._changed: dict[PartitionKey, None] = {}  # in the order in which they changed
        # Of the latest places those that the leader has answered with data: it says no more before they are named anew.
        self._spent: set[PartitionKey] = set()

    def __len__(self) -> int:
        """At least as many as there are places that the leader knows, but for those that are parked."""
        known = len(self._answered) + sum(len(request.named) for request in self._under_way)
        return known - len(self._spent) if self._parks else known

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

    def latest(self, key: PartitionKey) -> PlaceT | None:
        """The place that the leader has, or will have when what is under way has arrived."""
        for request in reversed(self._under_way):
            if key in request.named:
                return request.named[key]
            if key in request.forgotten:
                return None
        return self._answered.get(key)

    def joined(self, position_of: Callable[[PartitionKey], PlaceT | None]) -> bool:
        """Tells whether a partition may be fetched for which the leader has no place, or one of before something was
        dropped."""
        for key in self._changed:
            position = position_of(key)
            if position is not None:
                latest = self.latest(key)
                if latest is None or latest.generation != position.generation:
                    return True
        return False

    def moved(self, position_of: Callable[[PartitionKey], PlaceT | None]) -> bool:
        """Tells whether a partition may be fetched whose place the leader does not have, or has answered."""
        for key in self._changed:
            position = position_of(key)
            if position is not None and (key in self._spent or position != self.latest(key)):
                return True
        return False

    def next_request(
        self, position_of: Callable[[PartitionKey], PlaceT | None], *, whole: Collection[PartitionKey] | None
    ) -> NamedRequest[PlaceT] | None:
        """Returns what the request that goes out now says; None where there is nothing to fetch nor to forget.

        `whole`: all partitions, in their order, for a leader that takes every request for the whole; None: what has
        changed."""
        if not len(self) and all(position_of(key) is None for key in self._changed):
            self._changed = {}  # nothing to fetch among these, and so among all
            return None
        request: NamedRequest[PlaceT] = NamedRequest({}, {})
        for key in self._changed if whole is None else [*whole, *(key for key in self._changed if key not in whole)]:
            position, latest = position_of(key), self.latest(key)
            if position is None:
                if latest is not None and not (self._parks and key in self._spent):
                    request.forgotten[key] = None
            elif whole is not None or position != latest or key in self._spent:
                request.named[key] = position
        self._changed = {}
        if not request.named and not request.forgotten and not len(self):
            return None
        self._spent.difference_update(request.named, request.forgotten)
        self._under_way.append(request)
        return request

    def answered(self) -> None:
        """The oldest request under way is answered: from here on `asked` tells what it was about."""
        request = self._under_way.popleft()
        for key in request.forgotten:
            self._answered.pop(key, None)
        self._answered.update(request.named)

    def asked(self, key: PartitionKey) -> PlaceT | None:
        """The place that the answer is about; None: it is nobody's."""
        position = self._answered.get(key)
        return None if position is _NOBODYS else position

    def returned_data(self, key: PartitionKey) -> None:
        """The leader says nothing more about this place."""
        self._changed.setdefault(key)
        if not any(key in request.named or key in request.forgotten for request in self._under_way):
            self._spent.add(key)

    def refused(self, key: PartitionKey) -> None:
        """The leader has answered with an error or a divergence, and forgotten the place."""
        self._changed.setdefault(key)
        self._answered.pop(key, None)
        self._spent.discard(key)


class _Nobodys(NamedTuple):
    """A place that is still to be forgotten, of a partition that is nobody's here."""

    generation: int


_NOBODYS: Any = _Nobodys(-1)
