"""An incremental session: what its reader has named, and the answers to its requests (RULES 4.10, 4.11, 4.13).

A request names what has changed, and stands for all that was named before it; an answer tells what has changed. What
neither side has to say costs nothing: partitions tell the session when they move, and an answer looks at those alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import NamedTuple

from highwater.errors import ErrorCode
from highwater.model.partition import PartitionKey
from highwater.replica_manager.replicas.replica_manager import ReplicaManager
from highwater.replica_manager.requests.fetch import LEADER_IS_ELSEWHERE, FetchParams
from highwater.replica_manager.requests.session_look import Found, Look
from highwater.replica_manager.requests.session_roles import Owed, Place, SessionRole
from highwater.replica_manager.responses.fetch_parts import FetchedPart, FetchPart
from highwater.replica_manager.responses.response_reads import Read

_ENOUGH_BYTES = 1 << 62
# Thousands of partitions may move at once. So many are taken of a request, or looked at for an answer, before others
# have their turn of the event loop, and so many told in one answer: leases are among what waits for it.
TAKEN_AT_ONCE = 250
LOOKED_AT_ONCE = 250
TOLD_AT_ONCE = 1_000
# Thousands of replicas may be held back by a throttle. So many are looked at again when more may be sent, and each half
# second all the same: what is throttled, or for whom commits wait, may be others by then.
HELD_AT_ONCE = 100
LONGEST_HOLD_MS = 500
SHORTEST_WAIT_S = 0.005  # for a throttle: the clock's steps are a millisecond


class SessionAnswer(NamedTuple):
    results: list[FetchedPart]
    more: bool  # there was not room for all that can be read
    throttle_s: float  # for so long nothing comes of what is throttled (RULES 4.14)


class SessionFetch:
    """`read` finds the batches of places, of each at least one whole. Bounded by the partitions that are
    hosted here, and those of the requests without an answer."""

    def __init__(self, replica_manager: ReplicaManager, role: SessionRole, read: Read, *, max_bytes: int) -> None:
        self._replica_manager = replica_manager
        self._role = role
        self._read = read
        self._max_bytes = max_bytes
        self._places: dict[PartitionKey, Place] = {}
        # To be looked at for the next answer, in this order: who has waited longest comes first (RULES 4.8).
        self._moved: dict[PartitionKey, None] = {}
        # To be looked at before those, as they may be answered without batches: for these there is always room.
        self._urgent: dict[PartitionKey, None] = {}
        # Of these at most high watermark and log start are to be told, with whichever answer is the next.
        self._marks: dict[PartitionKey, None] = {}
        # Of a leader epoch that is not known here yet: answered with the others, or once this broker leads.
        self._early: dict[PartitionKey, None] = {}
        # There is something to read, for which a throttle has to be waited for; who has waited longest comes first.
        self._held: dict[PartitionKey, None] = {}
        self._looked_at_held_ms = 0
        self._answering: FetchParams | None = None
        # The log start of these has risen since they were told of it.
        self._raised: dict[PartitionKey, None] = {}
        # What the latest answer had no room for, but to be read, or such a log start: the next one does not wait.
        self._untold = False
        self._missing_bytes = 0  # until those that wait are enough for an answer
        self._taken = 0  # requests
        self._answered = 0

    # What requests say

    def take(self, params: FetchParams, forgotten: Iterable[PartitionKey]) -> None:
        """Takes what a request tells, as soon as it comes in (RULES 4.1, 4.2)."""
        for _ in self.taking(params, forgotten):
            pass

    def taking(self, params: FetchParams, forgotten: Iterable[PartitionKey]) -> Iterator[None]:
        """The same, in steps: between two of them others may have their turn, as long as the session is the newest."""
        self._taken += 1
        for number, key in enumerate(forgotten, 1):
            self._drop(key)
            if number % TAKEN_AT_ONCE == 0:
                yield
        for number, part in enumerate(params.parts, 1):
            self._name(part)
            if number % TAKEN_AT_ONCE == 0:
                yield
        self._role.requested()

    def _name(self, part: FetchPart) -> None:
        key = part.key
        place = Place(self._taken, part)
        owed = self._role.named(place)
        if key not in self._places:
            self._replica_manager.purgatory.sessions.add(key, self)
        self._places[key] = place
        self._early.pop(key, None)
        self._held.pop(key, None)
        if owed is Owed.REFUSAL:
            self._urgent.setdefault(key)
            return
        self._urgent.pop(key, None)
        self._marks[key] = None
        self._untold |= key in self._raised
        if owed is Owed.BATCHES:
            self._moved.setdefault(key)
        else:
            self._moved.pop(key, None)

    def _drop(self, key: PartitionKey) -> None:
        self._forget(key)
        self._role.unnamed(key)

    def _forget(self, key: PartitionKey) -> None:
        if self._places.pop(key, None) is not None:
            self._early.pop(key, None)
            self._held.pop(key, None)
            self._raised.pop(key, None)
            self._replica_manager.purgatory.sessions.discard(key, self)

    def close(self) -> None:
        for key in list(self._places):
            self._forget(key)
        self._role.closed()

    def held_back(self) -> Iterable[PartitionKey]:
        return list(self._held)

    # What partitions tell

    def grown(self, key: PartitionKey, end_offset: int, size_bytes: int) -> None:
        """The log grew by about so many bytes, to `end_offset`."""
        if not self._role.below_high_watermark:
            self._may_read(key, end_offset, size_bytes)

    def high_watermark_advanced(self, key: PartitionKey, offset: int) -> None:
        """To be told with the next answer, which does not wait for that: it waits for what may be read."""
        place = self._places.get(key)
        if place is not None and not place.used_up:
            self._marks[key] = None
            if self._role.below_high_watermark:
                self._may_read(key, offset, _ENOUGH_BYTES)  # by how many it grew is not known: it is looked at

    def _may_read(self, key: PartitionKey, end_offset: int, size_bytes: int) -> None:
        place = self._places.get(key)
        if place is None or place.used_up or place.part.fetch_offset >= end_offset or key in self._held:
            return
        self._moved.setdefault(key)
        self._missing_bytes -= size_bytes
        if self._missing_bytes <= 0 and self._answering is not None:
            self._answering.wait.wake()

    def changed(self, key: PartitionKey) -> None:
        """It is led here from now on, or no more."""
        place = self._places.get(key)
        if place is not None:
            place.again = True
            self._held.pop(key, None)
            self._urgent.setdefault(key)
            if self._answering is not None:
                self._answering.wait.wake()

    def access_changed(self, may_read: Callable[[PartitionKey], bool]) -> None:
        """The ACLs have changed: what may be read no more is told at once."""
        for key in [key for key in self._places if not may_read(key)]:
            self.changed(key)

    def log_start_raised(self, key: PartitionKey) -> None:
        """To be told at once: to a follower in any case, to a consumer where its offset is gone. Of a place that is
        answered nothing is told: then as soon as it is named anew."""
        place = self._places.get(key)
        if place is None:
            return
        if not self._role.below_high_watermark:
            self._raised[key] = None
        if place.used_up:
            return
        self._marks[key] = None
        if self._role.below_high_watermark:
            self.changed(key)
        elif self._answering is not None:
            self._answering.wait.end()
        else:
            self._untold = True

    # Answers

    async def answer(self, params: FetchParams) -> SessionAnswer:
        """Answers at once where it is the session's first, max wait is 0, min bytes are there, or any place failed;
        else when they are, the time is up or `params.wait` is ended. Where there is no room for what can be read, it
        waits for that, and answers without data where none comes in time."""
        now_ms = self._replica_manager.now_ms
        deadline_ms = now_ms() + params.hold_ms(self._replica_manager.settings)
        sessions = self._replica_manager.purgatory.sessions
        self._answering = params
        try:
            while True:
                found = await self._look(params)
                left_ms = deadline_ms - now_ms()
                if found.starved and not found.complete:
                    if not await params.room.wait(self._wanted_bytes(params, found.unread), left_ms / 1000):
                        return self._tell(found)
                    self._put_back(found.keys())
                    continue
                if found.complete or params.wait.ended or left_ms <= 0:
                    return self._tell(found)
                self._put_back(found.keys())
                params.room.release()
                wait_s = left_ms / 1000
                if self._held:
                    wait_s = min(wait_s, max(self._role.owed_s(), SHORTEST_WAIT_S), LONGEST_HOLD_MS / 1000)
                del found  # what it holds is found again
                sessions.waiting += 1
                try:
                    await params.wait.wait(wait_s)
                finally:
                    sessions.waiting -= 1
        finally:
            self._answering = None

    def _wanted_bytes(self, params: FetchParams, keys: Iterable[PartitionKey]) -> int:
        """The most that an answer about these has; a batch comes whole."""
        limit, wanted = self._limit_bytes(params), 0
        for key in keys:
            place = self._places.get(key)
            if place is not None:
                wanted += place.part.max_bytes if place.part.max_bytes > 0 else limit
                if wanted >= limit:
                    wanted = limit
                    break
        return max(wanted, self._replica_manager.message_max_bytes)

    def _limit_bytes(self, params: FetchParams) -> int:
        return self._max_bytes if params.max_bytes <= 0 else min(params.max_bytes, self._max_bytes)

    async def _look(self, params: FetchParams) -> Found:
        """Looks at what has moved. What moves meanwhile is looked at the next time, and so is what there is no room
        for: of thousands that have more to read an answer looks at those that it has room for."""
        self._missing_bytes = 0
        self._let_go()
        moved, self._moved = self._moved, {}
        urgent, self._urgent = self._urgent, {}
        found = Found(lambda place: self._places.get(place.part.key) is place)
        found.complete = not self._answered or self._untold
        limit, batch_bytes = self._limit_bytes(params), self._replica_manager.message_max_bytes
        look = Look(found, self._read, params.room, limit_bytes=limit, batch_bytes=batch_bytes)
        looked_at = await self._look_through(look, params, urgent, moved)
        await look.finish_reads()
        if looked_at is not None:
            for key in looked_at:
                urgent.pop(key, None)
                moved.pop(key, None)
            self._urgent = urgent | self._urgent
            found.unread |= moved
        look.end(params.min_bytes)
        self._missing_bytes += params.min_bytes - found.total_bytes
        return found

    async def _look_through(
        self, look: Look, params: FetchParams, urgent: dict[PartitionKey, None], moved: dict[PartitionKey, None]
    ) -> list[PartitionKey] | None:
        """Those that it came to, where the answer has no room for the rest; None: it came to all."""
        looked_at: list[PartitionKey] = []
        for key in chain(urgent, (key for key in moved if key not in urgent)) if urgent else moved:
            if len(look.found.parts) >= TOLD_AT_ONCE:
                look.found.complete = True
                return looked_at
            looked_at.append(key)
            if len(looked_at) % LOOKED_AT_ONCE == 0:
                await look.finish_reads()
                await asyncio.sleep(0)
            place = self._places.get(key)
            if place is None or place.used_up:
                continue
            if place.request > self._answered + 1:
                (self._urgent if key in urgent else self._moved).setdefault(key)
                continue
            hosted = self._replica_manager.hosted.get(key)
            part = self._readable(place, look.found)
            if hosted is None or part is None:
                continue
            has_room = await look.read(place, hosted, part, lambda: self._wanted_bytes(params, chain(urgent, moved)))
            if not has_room and key not in urgent:
                return looked_at
        return None

    def _readable(self, place: Place, found: Found) -> FetchedPart | None:
        """The answer about a place before it is read; None where there is nothing to read, or not now."""
        key = place.part.key
        if self._role.is_early(place):
            if not self._role.leads_by_now(place):
                self._early[key] = None
                return None
            self._early.pop(key, None)
            found.complete = True
        part = self._role.admitted(place)
        if part.error is not ErrorCode.NONE or part.diverging is not None:
            found.complete = True
            found.parts.append((place, part))
            return None
        if place.told != (part.high_watermark, part.log_start_offset):
            self._marks[key] = None
        if part.readable_end <= place.part.fetch_offset:
            return None
        if self._role.is_held_back(place):
            self._held[key] = None
            return None
        return part

    def _let_go(self) -> None:
        """Has some of those that are held back looked at again, when it is time."""
        if not self._held:
            return
        now_ms = self._replica_manager.now_ms()
        if now_ms - self._looked_at_held_ms < LONGEST_HOLD_MS and self._role.owed_s() > 0:
            return
        self._looked_at_held_ms = now_ms
        keys = dict.fromkeys(islice(self._held, HELD_AT_ONCE))
        for key in keys:
            del self._held[key]
        self._put_back(keys)

    def _put_back(self, keys: dict[PartitionKey, None]) -> None:
        """They have not had their turn: they stay in front of what moved since."""
        self._moved = keys | self._moved

    def _tell(self, found: Found) -> SessionAnswer:
        self._answered += 1
        results = []
        for place, part in found.parts:
            if self._places.get(part.key) is place:
                place.used_up = True
                self._role.told(place, part)
                results.append(self._told(part))
        for key in list(islice(self._early, TOLD_AT_ONCE)):
            results.append(self._told(self._role.admitted(self._places[key])))
        marks, self._marks = self._marks, {}
        telling = iter(marks)
        for key in islice(telling, TOLD_AT_ONCE):
            named = self._places.get(key)
            if named is None or named.used_up:
                continue
            if named.request > self._answered:
                self._marks[key] = None
                continue
            self._raised.pop(key, None)
            part = self._role.admitted(named)
            if named.told != (part.high_watermark, part.log_start_offset):
                named.told = (part.high_watermark, part.log_start_offset)
                results.append(self._told(part))
        left = dict.fromkeys(telling)
        self._marks = {**left, **self._marks}
        self._untold = bool(left or self._early) or any(key in self._raised for key in self._marks)
        self._put_back(found.unread)
        return SessionAnswer(results, bool(found.unread), self._role.pause_s(holds_back=bool(self._held)))

    def _told(self, part: FetchedPart) -> FetchedPart:
        """A place that is answered with an error or a divergence is forgotten."""
        if part.error in LEADER_IS_ELSEWHERE:
            part.leader, part.leader_epoch = self._replica_manager.leader_of(part.key)
        if part.error is not ErrorCode.NONE or part.diverging is not None:
            self._drop(part.key)
        return part
