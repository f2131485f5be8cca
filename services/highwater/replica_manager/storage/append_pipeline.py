"""The appends of one partition under one leadership: pipelined, in order, each with the offset that it expects.

An append names the log end offset that all appends before it leave (RULES 3.4). Where one of them writes nothing (a
duplicate, a refused sequence), those behind it are refused with OFFSET_MISMATCH, a definite outcome: nothing more is
sent until all in flight is answered, then they are sent again in their order with the right offset. So it is where an
append of a broken stream lands only after the fence that settled it. An outcome that is not known ends the leadership;
it is never tried again blindly.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from highwater.errors import ErrorCode
from highwater.log_storage_client.values import Append, AppendAnswer
from highwater.model.log_state import LogState
from highwater.model.partition import PartitionKey

_FENCED = frozenset({ErrorCode.STALE_FENCE, ErrorCode.UNKNOWN_FENCE})
# The first append of a round expects what log-storage itself answered. It can miss only where an append of a stream
# that broke was still under way, and of those there are few.
_MAX_MISSES = 8


@dataclass(slots=True)
class _Item:
    records: bytes
    offsets: int  # how many offsets the batches span
    done: Callable[[AppendAnswer], None]
    resend: bool
    traceparents: Sequence[str]
    expected_offset: int = -1


def refused(error: ErrorCode, message: str = "") -> AppendAnswer:
    """The answer to an append that never reached log-storage, or whose leadership ended before its answer."""
    return AppendAnswer(error, message, -1, -1, False, -1, LogState(-1, -1, -1, -1), "")


class AppendPipeline:
    """`send` hands an append to the stream. `interrupted` is called, once, where leadership cannot go on: an outcome is
    not known, or the fence is another's. So is `log_failed`: the log is offline (RULES 7.7). `log_ended` is called with
    every definite answer that names the log end, after its append's `done`: an append that wrote nothing may be the
    only one to tell of what an earlier one of unknown outcome has written."""

    def __init__(
        self,
        key: PartitionKey,
        leader_epoch: int,
        log_end_offset: int,
        *,
        send: Callable[[Append, Callable[[AppendAnswer | None], None]], None],
        log_ended: Callable[[AppendAnswer], None],
        interrupted: Callable[[], None],
        log_failed: Callable[[], None],
    ) -> None:
        self.key = key
        self.leader_epoch = leader_epoch
        self._send = send
        self._log_ended = log_ended
        self._interrupted = interrupted
        self._log_failed = log_failed
        self._expected = log_end_offset  # by the next append that is sent
        self._log_end_offset = log_end_offset  # in the latest answer
        self._in_flight: deque[_Item] = deque()
        self._held: deque[_Item] = deque()  # sent once all in flight is answered, in this order
        self._missed: deque[_Item] = deque()  # refused with OFFSET_MISMATCH, to be sent before `_held`
        self._stalled = False
        self._misses = 0
        self._closed = False
        self._idle: asyncio.Future[None] | None = None  # done when nothing is outstanding; None: nobody waits for that

    @property
    def outstanding(self) -> int:
        return len(self._in_flight) + len(self._held) + len(self._missed)

    async def idle(self) -> None:
        """Returns when nothing is outstanding, or leadership is over."""
        while self.outstanding:
            if self._idle is None:
                self._idle = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)

    def append(
        self,
        records: bytes,
        offsets: int,
        done: Callable[[AppendAnswer], None],
        *,
        resend: bool = True,
        traceparents: Sequence[str] = (),
    ) -> None:
        """`done` is called once, with a definite answer; where leadership ends first, with NOT_LEADER_OR_FOLLOWER (the
        records may or may not be in the log then). Without `resend` OFFSET_MISMATCH is an answer, too: the records are
        of no use behind others than those that they were made for."""
        item = _Item(records, offsets, done, resend, traceparents)
        if self._closed:
            done(refused(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        elif self._stalled:
            self._held.append(item)
        else:
            self._transmit(item)

    def close(self) -> None:
        """Ends it: leadership is over. What is outstanding is answered with NOT_LEADER_OR_FOLLOWER (RULES 5.4)."""
        if self._closed:
            return
        self._closed = True
        outstanding = [*self._in_flight, *self._missed, *self._held]
        self._in_flight.clear()
        self._missed.clear()
        self._held.clear()
        for item in outstanding:
            item.done(refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "leadership ended while the append was under way"))
        self._tell_idle()

    def _transmit(self, item: _Item) -> None:
        if self._closed:  # by the send before this one, which found the stream broken
            item.done(refused(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        item.expected_offset = self._expected
        self._expected += item.offsets
        self._in_flight.append(item)
        append = Append(self.key, self.leader_epoch, item.expected_offset, item.records, traceparents=item.traceparents)
        self._send(append, self._answered)

    def _answered(self, answer: AppendAnswer | None) -> None:
        if self._closed:
            return
        if answer is None or answer.error in _FENCED:
            self._end()  # RULES 3.4, 5.4
            return
        item = self._in_flight.popleft()
        if answer.offline:
            item.done(answer)
            self.close()
            self._log_failed()
            return
        if answer.log.log_end_offset >= 0:
            self._log_end_offset = answer.log.log_end_offset
        if self._holds(item, answer):
            self._stalled = True
        if answer.error is ErrorCode.OFFSET_MISMATCH:
            if not self._count_miss(item):
                return
            if item.resend:
                self._missed.append(item)
            else:
                item.done(answer)
        else:
            self._misses = 0
            item.done(answer)
        if answer.log.log_end_offset >= 0 and not self._closed:
            self._log_ended(answer)
        if self._stalled and not self._in_flight and not self._closed:
            self._resume()
        self._tell_idle()

    def _tell_idle(self) -> None:
        if self._idle is not None and not self.outstanding:
            idle, self._idle = self._idle, None
            idle.set_result(None)

    def _holds(self, item: _Item, answer: AppendAnswer) -> bool:
        """Tells whether nothing more is sent until all in flight is answered: those behind it expect another offset.
        Not where the log ends just where a refused append would have ended: they may be written before it (sequences
        keep a producer's order), but what comes now is not."""
        wrote_nothing = answer.error is ErrorCode.OFFSET_MISMATCH
        return wrote_nothing or self._log_end_offset != item.expected_offset + item.offsets

    def _count_miss(self, item: _Item) -> bool:
        if item.expected_offset == self._log_end_offset or self._misses >= _MAX_MISSES:
            self._in_flight.appendleft(item)
            self._end()
            return False
        if not self._missed:
            self._misses += 1
        return True

    def _resume(self) -> None:
        self._stalled = False
        self._expected = self._log_end_offset
        again = [*self._missed, *self._held]
        self._missed.clear()
        self._held.clear()
        for item in again:
            self._transmit(item)

    def _end(self) -> None:
        self.close()
        self._interrupted()
