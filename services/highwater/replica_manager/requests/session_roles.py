"""The two kinds of incremental sessions: a replica's and a consumer's (RULES 4.10, 4.13).

What a session does is the same for both; a role says what becomes of a place, and how far it may be read.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Protocol

from highwater.errors import ErrorCode
from highwater.model.partition import PartitionKey
from highwater.replica_manager.partition.actions import FetchSession, FetchVerdict
from highwater.replica_manager.partition.leadership import Leadership
from highwater.replica_manager.replicas.replica_manager import ReplicaManager
from highwater.replica_manager.responses.fetch_parts import (
    FetchedPart,
    FetchPart,
    for_consumer,
    for_replica,
    read_refusal,
)
from highwater.rpc.embedding import size_of
from highwater.security.access import Access

Note = Callable[[FetchSession, FetchPart], FetchVerdict]


class Owed(Enum):
    """A place's answer when it is named."""

    NOTHING = "nothing"  # but high watermark and log start
    BATCHES = "batches"
    REFUSAL = "refusal"  # an error or a divergence


class Place:
    """One partition as the session's reader named it last. It is answered with data, an error or a divergence once:
    after that the reader names another, or forgets the partition."""

    __slots__ = ("again", "leadership", "part", "request", "told", "used_up", "verdict")

    def __init__(self, request: int, part: FetchPart) -> None:
        self.request = request  # that named it: the answers to those before it say nothing of it
        self.part = part
        self.told: tuple[int, int] | None = None  # high watermark and log start, since it was named
        self.used_up = False  # answered with data
        # Of a replica's place: what the leader made of it, and the leadership that did. What another one knows, be it
        # under the same leader epoch, does not come from this place.
        self.verdict: FetchVerdict | None = None
        self.leadership: Leadership | None = None
        self.again = False  # it came too early, and may be taken now


class SessionRole(Protocol):
    below_high_watermark: bool  # what may be read ends there; False: at the log end

    def requested(self) -> None:
        """A request has been taken."""

    def named(self, place: Place) -> Owed:
        """Takes what a place says, and returns what the next answer has to say of it."""

    def unnamed(self, key: PartitionKey) -> None:
        """The session asks for it no more."""

    def is_early(self, place: Place) -> bool:
        """Tells whether it waits for a leadership of which its reader has heard before this broker."""

    def leads_by_now(self, place: Place) -> bool:
        """Takes again what came too early, and returns whether it is answered otherwise now."""

    def admitted(self, place: Place) -> FetchedPart:
        """The answer about one partition before anything is read: error, offsets, and how far it may be read."""

    def is_held_back(self, place: Place) -> bool:
        """Tells whether what may be read there has to wait for a throttle (RULES 4.14)."""

    def owed_s(self) -> float:
        """Returns how long that is, for everything that has to; 0: it has not."""

    def told(self, place: Place, part: FetchedPart) -> None:
        """The next answer has this of it."""

    def pause_s(self, *, holds_back: bool) -> float:
        """Tells how long the session is to expect nothing more of what is throttled, after an answer; `holds_back`:
        something waits for it."""

    def closed(self) -> None:
        """The session is over."""


def is_throttled(replica_manager: ReplicaManager, session: FetchSession, key: PartitionKey) -> bool:
    """Tells of a partition that is led here whether it is a listed replica, of a follower that no commit waits for
    (RULES 4.14)."""
    if replica_manager.leader_quota.rate is None:
        return False
    hosted = replica_manager.hosted.get(key)
    leadership = None if hosted is None else hosted.partition.leadership
    if hosted is None or leadership is None:
        return False
    listed = (key.partition, replica_manager.broker_id) in hosted.config.leader_throttled
    return listed and not leadership.awaits(session.broker_id, replica_manager.now_ms())


class ReplicaRole:
    """A follower's fetcher: it reads to the log end, and what it names is acknowledged (RULES 4.1, 4.11). `note` takes
    that and says what the leader makes of it."""

    below_high_watermark = False

    def __init__(self, replica_manager: ReplicaManager, session: FetchSession, note: Note) -> None:
        self._replica_manager = replica_manager
        self._session = session
        self._note = note
        self._has_throttled = False  # the next answer has some of what is throttled

    def requested(self) -> None:
        """Taken last, as what the request has dropped does not stand in it."""
        if self._session.requested(self._replica_manager.now_ms(), self._replica_manager.settings.session_silent_ms):
            self._replica_manager.session_liveness_changed(self._session)

    def named(self, place: Place) -> Owed:
        verdict = self._take(place)
        return _owed(_is_refused(verdict), verdict.log_end_offset, place)

    def _take(self, place: Place) -> FetchVerdict:
        place.verdict = verdict = self._note(self._session, place.part)
        hosted = self._replica_manager.hosted.get(place.part.key)
        place.leadership = hosted.partition.leadership if hosted is not None else None
        return verdict

    def unnamed(self, key: PartitionKey) -> None:
        """From here on no request says anything of it (RULES 4.11)."""
        hosted = self._replica_manager.hosted.get(key)
        if hosted is not None:
            self._replica_manager.perform(hosted, hosted.partition.unnamed(self._session))

    def is_early(self, place: Place) -> bool:
        return place.verdict is not None and place.verdict.error is ErrorCode.UNKNOWN_LEADER_EPOCH

    def leads_by_now(self, place: Place) -> bool:
        """A follower may hear of a new leader before the leader does, and its place waits for that as for data, instead
        of backing off."""
        if place.again and self._replica_manager.sessions.is_newest(self._session):
            place.again = False
            self._take(place)
        return not self.is_early(place)

    def admitted(self, place: Place) -> FetchedPart:
        verdict, key = place.verdict, place.part.key
        assert verdict is not None
        hosted = self._replica_manager.hosted.get(key)
        refused = _is_refused(verdict)
        if hosted is None:
            return FetchedPart(key, verdict.error if refused else ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if not refused and hosted.partition.leadership is not place.leadership:
            return FetchedPart(key, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return for_replica(place.part, hosted.partition, verdict)

    def is_held_back(self, place: Place) -> bool:
        return self._is_throttled(place) and self.owed_s() > 0

    def owed_s(self) -> float:
        return self._replica_manager.leader_quota.wait_s(self._replica_manager.now_ms() / 1000)

    def told(self, place: Place, part: FetchedPart) -> None:
        if self._is_throttled(place):
            self._has_throttled = True
            self._replica_manager.leader_quota.moved(size_of(part.pieces), self._replica_manager.now_ms() / 1000)
        hosted = self._replica_manager.hosted.get(part.key)
        if hosted is not None and (part.key.partition, self._session.broker_id) in hosted.config.follower_throttled:
            leadership = hosted.partition.leadership
            part.awaited = leadership is not None and self._is_awaited(leadership)

    def pause_s(self, *, holds_back: bool) -> float:
        has_throttled, self._has_throttled = self._has_throttled, False
        return self.owed_s() if has_throttled or holds_back else 0.0

    def _is_throttled(self, place: Place) -> bool:
        return is_throttled(self._replica_manager, self._session, place.part.key)

    def _is_awaited(self, leadership: Leadership) -> bool:
        return leadership.awaits(self._session.broker_id, self._replica_manager.now_ms())

    def closed(self) -> None:
        """The stream tells the broker: it is not only this session's."""


class ConsumerRole:
    """A consumer: it reads below the high watermark, from whoever leads under the epoch that it knows (RULES 5.7).
    Nothing is remembered of what it was answered: each look asks the partition as it is."""

    below_high_watermark = True

    def __init__(self, replica_manager: ReplicaManager, access: Access | None = None) -> None:
        self._replica_manager = replica_manager
        self._access = access

    def requested(self) -> None:
        """Nobody waits for a consumer."""

    def named(self, place: Place) -> Owed:
        found = self.admitted(place)
        return _owed(found.error is not ErrorCode.NONE, found.readable_end, place)

    def unnamed(self, key: PartitionKey) -> None:
        """The partition knows nothing of its consumers."""

    def is_early(self, place: Place) -> bool:
        """A consumer is told at once, and asks again."""
        return False

    def leads_by_now(self, place: Place) -> bool:
        return True

    def admitted(self, place: Place) -> FetchedPart:
        key = place.part.key
        if self._access is not None and (refused := read_refusal(key, self._access)) is not None:
            return refused
        hosted = self._replica_manager.hosted.get(key)
        if hosted is None:
            return FetchedPart(key, self._replica_manager.absent(key))
        return for_consumer(place.part, hosted.partition)

    def is_held_back(self, place: Place) -> bool:
        """A consumer's quota is its stream's."""
        return False

    def owed_s(self) -> float:
        return 0.0

    def told(self, place: Place, part: FetchedPart) -> None:
        """The stream charges the whole answer."""

    def pause_s(self, *, holds_back: bool) -> float:
        return 0.0

    def closed(self) -> None:
        self._replica_manager.purgatory.sessions.close_consumers()


def _is_refused(verdict: FetchVerdict) -> bool:
    return verdict.error is not ErrorCode.NONE or verdict.diverging is not None


def _owed(refused: bool, readable_end: int, place: Place) -> Owed:
    if refused:
        return Owed.REFUSAL
    return Owed.BATCHES if readable_end > place.part.fetch_offset else Owed.NOTHING
