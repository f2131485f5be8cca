"""The sessions of members: who has said what, and until when something has to be said. Not in records (RULES 11.5)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from highwater.groups.deadlines import Deadlines


class Timer(Enum):
    SESSION = "session timeout"
    REBALANCE = "rebalance timeout"
    OFFSETS = "expiry of offsets"


class TimerKey(NamedTuple):
    timer: Timer
    group: str
    member_id: str = ""  # "" of OFFSETS


Timers = Deadlines[TimerKey]


@dataclass(slots=True)
class Session:
    """`number` is that of the last assignment that was sent, and grows; 0: none was. While it is not `acknowledged` the
    member's assignment rests: so there is never more than one that it may not have heard of (RULES 11.4)."""

    number: int = 0
    acknowledged: bool = False


class Sessions:
    """Those of one shard's members, by group and member id."""

    def __init__(self, timers: Timers, session_timeout_ms: int) -> None:
        self._timers = timers
        self._session_timeout_ms = session_timeout_ms
        self._sessions: dict[tuple[str, str], Session] = {}
        self._number = 0

    def begin_numbers(self, now_ms: int) -> None:
        """Lets numbers begin above those of every shard before this one, as far as clocks agree. It matters little: a
        number counts on its own stream alone."""
        self._number = now_ms << 20

    def open(self, group_id: str, member_id: str, now_ms: int) -> Session:
        session = self._sessions[group_id, member_id] = Session()
        self.touch(group_id, member_id, now_ms)
        return session

    def get(self, group_id: str, member_id: str) -> Session | None:
        return self._sessions.get((group_id, member_id))

    def touch(self, group_id: str, member_id: str, now_ms: int) -> None:
        self._timers.set(TimerKey(Timer.SESSION, group_id, member_id), now_ms + self._session_timeout_ms)

    def sent(self, session: Session) -> int:
        """The number of an assignment that goes out, which the member has yet to acknowledge."""
        self._number += 1
        session.number, session.acknowledged = self._number, False
        return session.number

    def await_member(self, group_id: str, member_id: str, until_ms: int) -> None:
        """The member has to acknowledge, or give up what it was told to, by then. A time that runs already is kept."""
        key = TimerKey(Timer.REBALANCE, group_id, member_id)
        if self._timers.get(key) is None:
            self._timers.set(key, until_ms)

    def relieve(self, group_id: str, member_id: str) -> None:
        """Nothing is awaited of the member any more."""
        self._timers.cancel(TimerKey(Timer.REBALANCE, group_id, member_id))

    def close(self, group_id: str, member_id: str) -> None:
        self._sessions.pop((group_id, member_id), None)
        self._timers.cancel(TimerKey(Timer.SESSION, group_id, member_id))
        self.relieve(group_id, member_id)
