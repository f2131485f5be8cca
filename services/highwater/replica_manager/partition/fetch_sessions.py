"""The stream of a replica fetcher that counts (RULES 4.1): the newest of each (broker, broker epoch, fetcher id).

Pure.
"""

from __future__ import annotations

from highwater.replica_manager.partition.actions import FetchSession

_Name = tuple[int, int, int]


class FetchSessions:
    def __init__(self) -> None:
        self._newest: dict[_Name, FetchSession] = {}
        self._streams = 0

    def open(self, broker_id: int, broker_epoch: int, fetcher_id: int) -> FetchSession:
        """The session of a stream that opens; from now on it is the one that counts."""
        self._streams += 1
        session = FetchSession(broker_id, broker_epoch, fetcher_id, self._streams)
        self._newest[_name(session)] = session
        return session

    def is_newest(self, session: FetchSession) -> bool:
        return self._newest.get(_name(session)) == session

    def close(self, session: FetchSession) -> None:
        """Has no effect where a newer stream has taken the session over."""
        if self.is_newest(session):
            del self._newest[_name(session)]


def _name(session: FetchSession) -> _Name:
    return (session.broker_id, session.broker_epoch, session.fetcher_id)
