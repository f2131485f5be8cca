"""The stream of a replica fetcher that counts (RULES 4.1): the newest of each (broker, broker epoch, fetcher id).

Pure.
"""

from __future__ import annotations

from highwater.model.partition import PartitionKey
from highwater.replica_manager.partition.actions import NEVER_MS, FetchSession

_Name = tuple[int, int, int]


class FetchSessions:
    """Bounded by what brokers register and the fetchers that each has: a broker's next session takes the place of those
    that it had before."""

    def __init__(self) -> None:
        self._newest: dict[_Name, FetchSession] = {}
        # The newest that have closed, until another takes over what they fetched.
        self._closed: dict[_Name, FetchSession] = {}
        self._streams = 0

    def open(self, broker_id: int, broker_epoch: int, fetcher_id: int) -> FetchSession:
        """The session of a stream that opens; from now on it is the one that counts. It holds the partitions of all
        whose place it may take (RULES 5.6): the same fetcher's, and any of an older registration of the broker."""
        self._streams += 1
        session = FetchSession(broker_id, broker_epoch, fetcher_id, self._streams)
        name = _name(session)
        for sessions in (self._closed, self._newest):
            for other in [other for other in sessions if other == name or _is_older(other, name)]:
                session.partitions.update(sessions[other].partitions)
                if sessions is self._closed:
                    del sessions[other]
        self._newest[name] = session
        return session

    def is_newest(self, session: FetchSession) -> bool:
        return self._newest.get(_name(session)) == session

    def close(self, session: FetchSession) -> None:
        """Has no effect where a newer stream has taken the session over."""
        if self.is_newest(session):
            del self._newest[_name(session)]
            self._closed[_name(session)] = session

    def fallen_silent(self, now_ms: int, silent_ms: int) -> list[FetchSession]:
        """Returns the sessions that have sent no request for so long, each once until it does. Of those that name
        everything in each request nothing needs to be known here."""
        silent = []
        for session in self._newest.values():
            if NEVER_MS < session.last_request_ms <= now_ms - silent_ms and not session.silence_told:
                session.silence_told = True
                silent.append(session)
        return silent

    def evicted(self, key: PartitionKey) -> None:
        """The partition is hosted here no more."""
        for sessions in (self._newest, self._closed):
            for session in sessions.values():
                session.partitions.pop(key, None)


def _name(session: FetchSession) -> _Name:
    return (session.broker_id, session.broker_epoch, session.fetcher_id)


def _is_older(name: _Name, than: _Name) -> bool:
    return name[0] == than[0] and name[1] < than[1]
