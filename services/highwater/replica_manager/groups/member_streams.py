"""The open streams of one shard's members. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from highwater.errors import ErrorCode
from highwater.groups.requests import JOINING, Refusal, SessionAnswer

REPLACED = SessionAnswer(
    error=Refusal(ErrorCode.FETCH_SESSION_STALE, "a newer stream of this member is open: go on by that one")
)


class MemberStream:
    """The latest that is to be told on one stream: an assignment is the whole of it. `wake` is called when there is
    something."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._answer: SessionAnswer | None = None
        self.ended = False  # nothing is told after what is told now
        self.leave: Callable[[], None] | None = None  # set while a shard has it

    def tell(self, answer: SessionAnswer) -> None:
        if self.ended:
            return
        before = self._answer
        if before is not None and answer.error is None and answer.assignment is None and answer.member_epoch >= JOINING:
            answer = replace(answer, assignment=before.assignment, assignment_number=before.assignment_number)
        self._answer = answer
        self.ended = answer.error is not None or answer.member_epoch < JOINING
        self._wake()

    def tell_again(self, answer: SessionAnswer) -> None:
        """Tells an assignment that was told before, unless another one is to be told anyway."""
        if self._answer is None:
            self.tell(answer)
        elif not self.ended and self._answer.assignment is None:
            assignment, number = answer.assignment, answer.assignment_number
            self._answer = replace(self._answer, assignment=assignment, assignment_number=number)

    def take(self) -> SessionAnswer | None:
        """Takes what is to be told now."""
        answer, self._answer = self._answer, None
        return answer

    def closed(self) -> None:
        """The client is gone, or the call has ended: no leave (RULES 11.5)."""
        self.ended = True
        if self.leave is not None:
            self.leave()


class MemberStreams:
    """At most one for each member: the newest."""

    def __init__(self) -> None:
        self._streams: dict[tuple[str, str], MemberStream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def get(self, group: str, member_id: str) -> MemberStream | None:
        return self._streams.get((group, member_id))

    def opened(self, group: str, member_id: str, stream: MemberStream) -> None:
        before = self._streams.get((group, member_id))
        if before is stream:
            return
        self._streams[group, member_id] = stream
        stream.leave = lambda: self._closed(group, member_id, stream)
        if before is not None:
            before.leave = None
            before.tell(REPLACED)

    def end_all(self, answer: SessionAnswer) -> None:
        streams, self._streams = list(self._streams.values()), {}
        for stream in streams:
            stream.leave = None
            stream.tell(answer)

    def _closed(self, group: str, member_id: str, stream: MemberStream) -> None:
        if self._streams.get((group, member_id)) is stream:
            del self._streams[group, member_id]
