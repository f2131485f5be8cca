"""Which stream of a follower counts (RULES 4.1): the newest of each (broker, broker epoch, fetcher id). Pure."""

from __future__ import annotations

from typing import NamedTuple


class SessionId(NamedTuple):
    broker_id: int
    broker_epoch: int
    fetcher_id: int


class Sessions:
    def __init__(self) -> None:
        self._newest: dict[SessionId, int] = {}
        self._next_stream = 0

    def open(self, session: SessionId) -> int:
        """A stream's number; from now on it is the one that counts."""
        self._next_stream += 1
        self._newest[session] = self._next_stream
        return self._next_stream

    def is_newest(self, session: SessionId, stream: int) -> bool:
        return self._newest.get(session) == stream

    def close(self, session: SessionId, stream: int) -> bool:
        """Whether the session is closed by this: not where a newer stream has taken it over."""
        if not self.is_newest(session, stream):
            return False
        del self._newest[session]
        return True

    def of_broker(self, broker_id: int, broker_epoch: int) -> int:
        """How many sessions of this registration are open."""
        return sum(1 for s in self._newest if s.broker_id == broker_id and s.broker_epoch == broker_epoch)
