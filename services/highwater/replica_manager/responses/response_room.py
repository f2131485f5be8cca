"""The room of one fetch response in the budget of all: taken, waited for, and given back."""

from __future__ import annotations

import asyncio

from highwater.replica_manager.responses.response_budget import Grant, ResponseShare


class Turn:
    """The place of one reader among those that wait. It keeps it over its requests until it is given room: one whose
    requests wait for a short time only is not for ever behind others."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number: int | None = None


class ResponseRoom:
    """Without a share there is room for whatever is wanted. `caller`: whose part of it counts; empty: nobody's."""

    __slots__ = ("_caller", "_grant", "_share", "_turn")

    def __init__(self, share: ResponseShare | None = None, turn: Turn | None = None, caller: str = "") -> None:
        self._share = share
        self._turn = turn or Turn()
        self._caller = caller
        self._grant: Grant | None = None

    def take(self, wanted_bytes: int) -> int:
        """The bytes that may be read: those that are held already, else as many as there is room for. 0: none."""
        if self._share is None:
            return wanted_bytes
        if self._grant is None:
            self._hold(self._share.take(wanted_bytes, self._caller))
        return 0 if self._grant is None else self._grant.size_bytes

    async def wait(self, wanted_bytes: int, timeout_s: float) -> bool:
        """Waits for its turn until there is room, and takes it; False: not in time. Nothing else ends it: a client that
        asks again and again would never come to its turn."""
        assert self._share is not None
        assert self._grant is None
        granted: asyncio.Future[Grant] = asyncio.get_running_loop().create_future()
        waiting = self._share.wait(wanted_bytes, granted.set_result, self._turn.number, self._caller)
        try:
            await asyncio.wait((granted,), timeout=max(timeout_s, 0))
        finally:
            if waiting is not None:
                self._turn.number = waiting.turn
                self._share.cancel(waiting)
            self._hold(granted.result() if granted.done() else None)
            self._share.waited(self._grant is not None)
        return self._grant is not None

    def _hold(self, grant: Grant | None) -> None:
        self._grant = grant
        if grant is not None:
            self._turn.number = None

    def settle(self, size_bytes: int) -> None:
        """So many bytes have been read."""
        if self._grant is not None:
            self._grant.settle(size_bytes)
            if not size_bytes:
                self._grant = None

    def release(self) -> None:
        """The response is written, or there will be none."""
        self.settle(0)
