"""A budget for the bytes of all fetch responses of a replica-manager that their readers have not taken yet. Pure.

Bytes are taken before batches are read, at most as many are read, and they are given back when gRPC has taken the
response. Replicas have a share of their own, so consumers that read slowly never cost the cluster its replication. One
caller has a part of the consumers' share, so that its slow consumers leave others room.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from highwater.replica_manager.responses.turns import Turns

REPLICAS_PART = 4  # their share is one in so many of all bytes
OF_ONE = 0.75
"""The part of the consumers' share that one caller may hold: the rest is there for whoever else comes, at once."""
MAX_WAITS = 10_000


class _Caller:
    """One caller, while it holds bytes or waits for some."""

    __slots__ = ("held_bytes", "name", "parked", "waits")

    def __init__(self, name: str) -> None:
        self.name = name
        self.held_bytes = 0
        self.waits = 0  # of its responses, those that are parked among them
        self.parked: Turns[RoomWait] = Turns()  # they wait for what this caller holds


class Grant:
    """Bytes taken for one response."""

    __slots__ = ("_caller", "_share", "size_bytes")

    def __init__(self, share: ResponseShare, size_bytes: int, caller: _Caller | None) -> None:
        self._share = share
        self._caller = caller
        self.size_bytes = size_bytes

    def settle(self, size_bytes: int) -> None:
        """The response has so many bytes: fewer than were taken, or more, where its first batch is that large."""
        before, self.size_bytes = self.size_bytes, size_bytes
        self._share.changed(size_bytes - before, self._caller)

    def release(self) -> None:
        """The response is written, or there is none. Once or many times."""
        if self.size_bytes:
            self.settle(0)


class RoomWait:
    """A response that waits for bytes. Opaque to callers, who hand it to `cancel`."""

    __slots__ = ("arrival", "caller", "done", "granted", "line", "turn", "wanted_bytes")

    def __init__(
        self, wanted_bytes: int, granted: Callable[[Grant], None], turn: int, arrival: int, caller: _Caller | None
    ) -> None:
        self.wanted_bytes = wanted_bytes
        self.granted = granted
        self.turn = turn  # lower ones come first
        self.arrival = arrival
        self.caller = caller
        self.done = False
        self.line: Turns[RoomWait] | None = None  # in which it stands


class ResponseShare:
    """The bytes of one kind of readers. No response takes more than about half of what is free, so that a few that are
    not read leave something to the others, and none less than `least_bytes`, if it wants so many: what a batch may have
    that comes whole.

    `waits`: where there is less than that, a response waits, in the order of turns. Else it gets it all the same. Of
    one caller they wait where it holds its part, too, and keep nobody else waiting; a caller without a name has the
    whole share. `waited` is told of each wait that has ended whether it was granted."""

    def __init__(
        self, max_bytes: int, *, least_bytes: int, waits: bool, waited: Callable[[bool], object] = lambda _: None
    ) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self._least_bytes = _least(least_bytes, max_bytes)
        self.waited = waited
        self._waits = waits
        self._turns = count()
        # Those that wait for the share. A caller with others that are parked has none here only while it has no room
        # for the first of them: who leaves, and what is given back, brings the next one here.
        self._line: Turns[RoomWait] = Turns()
        self._live = 0  # all that wait
        self._callers: dict[str, _Caller] = {}

    def __len__(self) -> int:
        """Responses that wait."""
        return self._live

    @property
    def callers(self) -> int:
        """Those who hold something, or wait."""
        return len(self._callers)

    def held_by(self, caller: str) -> int:
        """Bytes."""
        known = self._callers.get(caller)
        return 0 if known is None else known.held_bytes

    def resize(self, max_bytes: int, least_bytes: int) -> None:
        """Takes another size. What is held beyond it is given back in its own time."""
        self.max_bytes = max_bytes
        self._least_bytes = _least(least_bytes, max_bytes)
        for caller in list(self._callers.values()):
            self._unpark(caller)
        self._serve()

    def take(self, wanted_bytes: int, caller: str = "") -> Grant | None:
        """None: there is nothing left, or others wait for it already."""
        if self._line.first() is not None:
            return None
        taking = self._caller(caller)
        if taking is not None and taking.parked.first() is not None:
            return None
        grant = self._grant(wanted_bytes, taking)
        self._forget(taking)
        return grant

    def wait(
        self, wanted_bytes: int, granted: Callable[[Grant], None], turn: int | None = None, caller: str = ""
    ) -> RoomWait | None:
        """`granted` is called once there is room, unless it is cancelled before. `turn`: of a wait before this one that
        was in vain; else it is the last. None: too many wait."""
        if self._live >= MAX_WAITS:
            return None
        arrival = next(self._turns)
        asking = self._caller(caller)
        waiting = RoomWait(wanted_bytes, granted, arrival if turn is None else turn, arrival, asking)
        self._live += 1
        if asking is not None:
            asking.waits += 1
        if asking is None or asking.parked.first() is None:
            self._stand(waiting, self._line)
        else:  # behind those of this caller that came before
            self._stand(waiting, asking.parked)
            self._unpark(asking)
        self._serve()
        return waiting

    def cancel(self, waiting: RoomWait) -> None:
        if waiting.done:
            return
        self._end(waiting)
        if waiting.line is not None:
            waiting.line.left()
        self._unpark(waiting.caller)
        self._forget(waiting.caller)
        self._serve()  # the next one may want less

    def changed(self, by_bytes: int, caller: _Caller | None) -> None:
        """For a grant, whose size is another."""
        self.held_bytes += by_bytes
        assert self.held_bytes >= 0
        if caller is not None:
            caller.held_bytes += by_bytes
            assert caller.held_bytes >= 0
        if by_bytes < 0:
            self._unpark(caller)
            self._forget(caller)
            self._serve()

    def _free_bytes(self, caller: _Caller | None) -> int:
        free_bytes = max(self.max_bytes - self.held_bytes, 0)
        if caller is None:
            return free_bytes
        return min(free_bytes, self._free_of_part(caller))

    def _free_of_part(self, caller: _Caller) -> int:
        return max(int(self.max_bytes * OF_ONE) - caller.held_bytes, 0)

    def _grant(self, wanted_bytes: int, caller: _Caller | None) -> Grant | None:
        free_bytes = self._free_bytes(caller)
        least_bytes = min(wanted_bytes, self._least_bytes)
        if self._waits and free_bytes < least_bytes:
            return None
        half_bytes = free_bytes // 2
        if wanted_bytes > half_bytes and half_bytes:
            half_bytes = 1 << half_bytes.bit_length() - 1  # equal to others', which may read the same
        size_bytes = min(wanted_bytes, max(half_bytes, least_bytes))
        self.held_bytes += size_bytes
        if caller is not None:
            caller.held_bytes += size_bytes
        return Grant(self, size_bytes, caller)

    def _serve(self) -> None:
        while (first := self._line.first()) is not None:
            caller = first.caller
            if caller is not None and self._free_of_part(caller) < min(first.wanted_bytes, self._least_bytes):
                self._line.drop_first()
                self._stand(first, caller.parked)
                continue
            grant = self._grant(first.wanted_bytes, caller)
            if grant is None:
                return
            self._line.drop_first()  # before it hears of that, as it may give the bytes back at once
            self._end(first)
            self._unpark(caller)
            first.granted(grant)

    def _unpark(self, caller: _Caller | None) -> None:
        """The first of this caller's that are parked has its turn among all."""
        if caller is not None and (first := caller.parked.first()) is not None:
            caller.parked.drop_first()
            self._stand(first, self._line)

    @staticmethod
    def _stand(waiting: RoomWait, line: Turns[RoomWait]) -> None:
        waiting.line = line
        line.add(waiting)

    def _end(self, waiting: RoomWait) -> None:
        waiting.done = True
        self._live -= 1
        if waiting.caller is not None:
            waiting.caller.waits -= 1

    def _caller(self, name: str) -> _Caller | None:
        """None: it has no part of its own."""
        if not name:
            return None
        known = self._callers.get(name)
        if known is None:
            known = self._callers[name] = _Caller(name)
        return known

    def _forget(self, caller: _Caller | None) -> None:
        if caller is not None and not caller.held_bytes and not caller.waits:
            self._callers.pop(caller.name, None)


class ResponseBudget:
    """Replicas, of which there are as many as brokers have fetchers, never wait: where their share is used up each gets
    room for one batch still."""

    def __init__(self, max_bytes: int, *, message_max_bytes: int, waited: Callable[[bool], object]) -> None:
        replicas_bytes = max_bytes // REPLICAS_PART
        self.replicas = ResponseShare(replicas_bytes, least_bytes=message_max_bytes, waits=False)
        self.consumers = ResponseShare(
            max_bytes - replicas_bytes, least_bytes=message_max_bytes, waits=True, waited=waited
        )

    def resize(self, max_bytes: int, message_max_bytes: int) -> None:
        """Takes another size, and that of the largest batch."""
        replicas_bytes = max_bytes // REPLICAS_PART
        self.replicas.resize(replicas_bytes, message_max_bytes)
        self.consumers.resize(max_bytes - replicas_bytes, message_max_bytes)


def _least(least_bytes: int, max_bytes: int) -> int:
    return max(1, min(least_bytes, max_bytes // 2))
