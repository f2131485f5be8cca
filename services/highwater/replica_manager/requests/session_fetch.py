"""A replica's incremental session: what its fetcher has named, and the answers to its requests (RULES 4.10, 4.11).

A request names what has changed, and stands for all that was named before it; an answer tells what has changed. What
neither side has to say costs nothing: partitions tell the session when they move, and an answer looks at those alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from highwater.errors import ErrorCode
from highwater.model.partition import PartitionKey
from highwater.replica_manager.partition.actions import FetchSession, FetchVerdict
from highwater.replica_manager.partition.leadership import Leadership
from highwater.replica_manager.replicas.hosted_partition import HostedPartition
from highwater.replica_manager.replicas.replica_manager import ReplicaManager
from highwater.replica_manager.requests.fetch import (
    LEADER_IS_ELSEWHERE,
    MAX_WAIT_MS,
    FetchedPart,
    FetchParams,
    FetchPart,
    for_replica,
)

Note = Callable[[FetchSession, FetchPart], FetchVerdict]
Read = Callable[[HostedPartition, FetchPart, FetchedPart, int], Awaitable[tuple[FetchedPart, int]]]


class _Place:
    """One partition as the session's fetcher named it last. It is answered with data, an error or a divergence once:
    after that the fetcher names another, or forgets the partition."""

    __slots__ = ("again", "leadership", "part", "request", "told", "used_up", "verdict")

    def __init__(self, request: int, part: FetchPart, verdict: FetchVerdict, leadership: Leadership | None) -> None:
        self.request = request  # that named it: the answers to those before it say nothing of it
        self.part = part
        self.verdict = verdict
        # That took it. What another one knows, be it under the same leader epoch, does not come from this place.
        self.leadership = leadership
        self.told: tuple[int, int] | None = None  # high watermark and log start, since it was named
        self.again = False  # it came too early, and may be taken now
        self.used_up = False  # answered with data

    @property
    def refused(self) -> bool:
        return self.verdict.error is not ErrorCode.NONE or self.verdict.diverging is not None


class _Found(NamedTuple):
    """The findings of one look at what has moved."""

    parts: list[tuple[_Place, FetchedPart]]  # with batches, an error or a divergence
    unread: list[PartitionKey]  # there is more to read than the answer has room for
    complete: bool

    def keys(self) -> list[PartitionKey]:
        return [*(part.key for _, part in self.parts), *self.unread]


class SessionAnswer(NamedTuple):
    results: list[FetchedPart]
    more: bool  # there was not room for all that can be read


class SessionFetch:
    """`note` takes what a place acknowledges and says what the leader makes of it; `read` finds its batches (their
    bytes too), at least one whole. Bounded by the partitions that are hosted here, and those of one request."""

    def __init__(
        self, replica_manager: ReplicaManager, session: FetchSession, note: Note, read: Read, *, max_bytes: int
    ) -> None:
        self._replica_manager = replica_manager
        self._session = session
        self._note = note
        self._read = read
        self._max_bytes = max_bytes
        self._places: dict[PartitionKey, _Place] = {}
        # To be looked at for the next answer, in this order: who has waited longest comes first (RULES 4.8).
        self._moved: dict[PartitionKey, None] = {}
        # Of these at most high watermark and log start are to be told, with whichever answer is the next.
        self._marks: dict[PartitionKey, None] = {}
        # Of a leader epoch that is not known here yet: answered with the others, or once this broker leads.
        self._early: dict[PartitionKey, None] = {}
        self._answering: FetchParams | None = None
        self._missing_bytes = 0  # until those that wait are enough for an answer
        self._taken = 0  # requests
        self._answered = 0

    # What requests say

    def take(self, params: FetchParams, forgotten: Iterable[PartitionKey]) -> None:
        """Takes what a request tells, as soon as it comes in (RULES 4.1, 4.2)."""
        self._taken += 1
        for key in forgotten:
            self._drop(key)
        for part in params.parts:
            self._name(part)
        # Now, as what this request has dropped does not stand in it.
        if self._session.requested(self._replica_manager.now_ms(), self._replica_manager.settings.session_silent_ms):
            self._replica_manager.session_liveness_changed(self._session)

    def _name(self, part: FetchPart) -> None:
        key = part.key
        verdict = self._note(self._session, part)
        hosted = self._replica_manager.hosted.get(key)
        leadership = hosted.partition.leadership if hosted is not None else None
        place = _Place(self._taken, part, verdict, leadership)
        if key not in self._places:
            self._replica_manager.purgatory.sessions.add(key, self)
        self._places[key] = place
        self._early.pop(key, None)
        if place.refused or verdict.log_end_offset > part.fetch_offset:
            self._moved.setdefault(key)
        else:
            self._moved.pop(key, None)
            self._marks[key] = None

    def _drop(self, key: PartitionKey) -> None:
        """From here on no request says anything of it (RULES 4.11)."""
        self._forget(key)
        hosted = self._replica_manager.hosted.get(key)
        if hosted is not None:
            self._replica_manager.perform(hosted, hosted.partition.unnamed(self._session))

    def _forget(self, key: PartitionKey) -> None:
        if self._places.pop(key, None) is not None:
            self._early.pop(key, None)
            self._replica_manager.purgatory.sessions.discard(key, self)

    def close(self) -> None:
        for key in list(self._places):
            self._forget(key)

    # What partitions tell

    def grown(self, key: PartitionKey, end_offset: int, size_bytes: int) -> None:
        """The log grew by about so many bytes, to `end_offset`."""
        place = self._places.get(key)
        if place is None or place.used_up or place.part.fetch_offset >= end_offset:
            return
        self._moved.setdefault(key)
        self._missing_bytes -= size_bytes
        if self._missing_bytes <= 0 and self._answering is not None:
            self._answering.wait.wake()

    def marks_moved(self, key: PartitionKey) -> None:
        """Its high watermark or log start: to be told with the next answer, which does not wait for that."""
        if key in self._places:
            self._marks[key] = None

    def changed(self, key: PartitionKey) -> None:
        """It is led here from now on, or no more."""
        place = self._places.get(key)
        if place is not None:
            place.again = True
            self._moved.setdefault(key)
            if self._answering is not None:
                self._answering.wait.wake()

    def log_start_raised(self, key: PartitionKey) -> None:
        """To be told at once."""
        if key in self._places:
            self._marks[key] = None
            if self._answering is not None:
                self._answering.wait.end()

    # Answers

    async def answer(self, params: FetchParams) -> SessionAnswer:
        """Answers at once where it is the session's first, max wait is 0, min bytes are there, or any place failed;
        else when they are, the time is up or `params.wait` is ended."""
        now_ms = self._replica_manager.now_ms
        deadline_ms = now_ms() + min(max(params.max_wait_ms, 0), MAX_WAIT_MS)
        sessions = self._replica_manager.purgatory.sessions
        self._answering = params
        try:
            while True:
                found = await self._look(params)
                left_ms = deadline_ms - now_ms()
                if found.complete or params.wait.ended or left_ms <= 0:
                    return self._tell(found)
                self._put_back(found.keys())
                sessions.waiting += 1
                try:
                    await params.wait.wait(left_ms / 1000)
                finally:
                    sessions.waiting -= 1
        finally:
            self._answering = None

    async def _look(self, params: FetchParams) -> _Found:
        """Looks at what has moved. What moves meanwhile is looked at the next time."""
        budget = limit = self._max_bytes if params.max_bytes <= 0 else min(params.max_bytes, self._max_bytes)
        self._missing_bytes = 0
        moved, self._moved = self._moved, {}
        parts: list[tuple[_Place, FetchedPart]] = []
        unread: list[PartitionKey] = []
        complete = not self._answered
        for key in moved:
            place = self._places.get(key)
            if place is None or place.used_up:
                continue
            if place.request > self._answered + 1:
                self._moved.setdefault(key)
                continue
            hosted = self._replica_manager.hosted.get(key)
            if place.verdict.error is ErrorCode.UNKNOWN_LEADER_EPOCH:
                if not self._leads_by_now(place):
                    self._early[key] = None
                    continue
                self._early.pop(key, None)
                complete = True
            found = _admitted(place, hosted)
            fails = found.error is not ErrorCode.NONE or found.diverging is not None
            if not fails:
                self._marks[key] = None
            if hosted is not None and not fails and found.readable_end > place.part.fetch_offset:
                # RULES 4.8: the first batch whole, whatever the limits; after that the budget counts.
                if budget <= 0:
                    unread.append(key)
                else:
                    max_bytes = min(place.part.max_bytes, budget) if place.part.max_bytes > 0 else budget
                    found, size_bytes = await self._read(hosted, place.part, found, max_bytes)
                    if self._places.get(key) is not place:
                        continue  # named anew meanwhile: the next answer is about that
                    budget -= size_bytes
                    fails = found.error is not ErrorCode.NONE
                    if not fails and not size_bytes:
                        unread.append(key)
            if fails or found.pieces:
                complete |= fails
                parts.append((place, found))
        total = limit - budget
        self._missing_bytes += params.min_bytes - total
        return _Found(parts, unread, complete or total >= min(max(params.min_bytes, 0), limit))

    def _leads_by_now(self, place: _Place) -> bool:
        """Takes again what came too early, and returns whether it is answered otherwise now: a follower may hear of a
        new leader before the leader does, and its place waits for that as for data, instead of backing off."""
        if place.again and self._replica_manager.sessions.is_newest(self._session):
            place.again = False
            place.verdict = self._note(self._session, place.part)
            hosted = self._replica_manager.hosted.get(place.part.key)
            place.leadership = hosted.partition.leadership if hosted is not None else None
        return place.verdict.error is not ErrorCode.UNKNOWN_LEADER_EPOCH

    def _put_back(self, keys: Iterable[PartitionKey]) -> None:
        """They have not had their turn: they stay in front of what moved since."""
        self._moved = {**dict.fromkeys(keys), **self._moved}

    def _tell(self, found: _Found) -> SessionAnswer:
        self._answered += 1
        results = []
        for place, part in found.parts:
            if self._places.get(part.key) is place:
                place.used_up = True
                results.append(self._told(part))
        for key in list(self._early):
            results.append(self._told(_admitted(self._places[key], self._replica_manager.hosted.get(key))))
        marks, self._marks = self._marks, {}
        for key in marks:
            named = self._places.get(key)
            if named is None or named.used_up:
                continue
            if named.request > self._answered:
                self._marks[key] = None
                continue
            part = _admitted(named, self._replica_manager.hosted.get(key))
            if named.told != (part.high_watermark, part.log_start_offset):
                named.told = (part.high_watermark, part.log_start_offset)
                results.append(self._told(part))
        self._put_back(found.unread)
        return SessionAnswer(results, bool(found.unread))

    def _told(self, part: FetchedPart) -> FetchedPart:
        """A place that is answered with an error or a divergence is forgotten."""
        if part.error in LEADER_IS_ELSEWHERE:
            part.leader, part.leader_epoch = self._replica_manager.leader_of(part.key)
        if part.error is not ErrorCode.NONE or part.diverging is not None:
            self._drop(part.key)
        return part


def _admitted(place: _Place, hosted: HostedPartition | None) -> FetchedPart:
    """The answer about one partition before anything is read: error, offsets, and how far a replica may read."""
    verdict, refused = place.verdict, place.refused
    if hosted is None:
        error = verdict.error if refused else ErrorCode.NOT_LEADER_OR_FOLLOWER
        return FetchedPart(place.part.key, error)
    if not refused and hosted.partition.leadership is not place.leadership:
        return FetchedPart(place.part.key, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return for_replica(place.part, hosted.partition, verdict)
