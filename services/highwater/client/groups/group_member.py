"""A member of a group, running: carries out what its `Membership` decides, and tells it what happens and what time it
is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

from highwater.client.exceptions import AuthenticationError, MaxPollIntervalExceededError, error_for
from highwater.client.groups.coordinator import BACKOFF_MAX_MS, BACKOFF_MS, Coordinator, jitter
from highwater.client.groups.session_stream import SessionStream
from highwater.client.membership.membership import NEVER_MS, MemberSettings, Membership
from highwater.client.membership.words import (
    Action,
    Answer,
    Close,
    Drop,
    Failure,
    Open,
    Partitions,
    Say,
    Step,
    Subscription,
)
from highwater.telemetry.log import get_logger, pairs

_log = get_logger(__name__)


class GroupMember:
    """`on_drop` is told, at once, what may be others' by now; `on_change`, that there may be a step to be taken, or an
    error to be raised."""

    def __init__(
        self,
        coordinator: Coordinator,
        member_id: str,
        instance_id: str,
        subscription: Subscription,
        *,
        max_poll_interval_ms: float,
        answer_timeout_ms: float,
        on_drop: Callable[[Partitions], None],
        on_change: Callable[[], None],
    ) -> None:
        self.member_id = member_id
        self._coordinator = coordinator
        self._instance_id = instance_id
        self._on_drop = on_drop
        self._on_change = on_change
        settings = MemberSettings(
            bool(instance_id), max_poll_interval_ms, answer_timeout_ms, BACKOFF_MS, BACKOFF_MAX_MS
        )
        self._membership = Membership(settings, subscription, jitter, _now_ms())
        self._stream: SessionStream | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = NEVER_MS
        self._over = asyncio.Event()
        self._refusal = ""  # that was told last, since it has joined
        self._former: list[SessionStream] = []  # closed, and perhaps still hanging up

    # State

    @property
    def epoch(self) -> int:
        """The present member epoch; 0: it is not in the group now."""
        return self._membership.epoch

    @property
    def held(self) -> Partitions:
        return self._membership.held

    @property
    def subscription(self) -> Subscription:
        return self._membership.subscription

    @property
    def needs_attention(self) -> bool:
        """There is a step to be taken, or an error to be raised."""
        membership = self._membership
        return membership.unsettled or membership.has_stalled or membership.failure is not None

    @property
    def unsettled(self) -> bool:
        return self._membership.unsettled

    # Life

    def start(self) -> None:
        self._do(self._membership.start(_now_ms()))

    def subscribe(self, subscription: Subscription) -> None:
        self._do(self._membership.subscribe(subscription, _now_ms()))

    def close(self) -> None:
        """From now on all that is held is to be given up: the next steps."""
        self._membership.close()

    async def leave(self) -> None:
        """Leaves the group and waits until the coordinator has heard it, or cannot be asked."""
        if not self._membership.is_over:
            self._over.clear()
            self._do(self._membership.leave(_now_ms()))
            if not self._membership.is_over:
                await self._over.wait()
            _log.info("left %s", self._names())
        if self._timer is not None:
            self._timer.cancel()
        if self._stream is not None:
            self._hang_up()
        await asyncio.gather(*(stream.closed() for stream in self._former))

    # The application

    def poll_began(self) -> None:
        self._do(self._membership.poll_began(_now_ms()))

    def poll_ended(self) -> None:
        self._membership.poll_ended(_now_ms())
        self._set_timer()

    def asks_for_more(self) -> bool:
        """False: something is due before that, which the event loop may not have come to yet."""
        return self._membership.asks_for_more(_now_ms())

    def next_step(self) -> Step | None:
        return self._membership.next_step()

    def step_done(self) -> None:
        self._do(self._membership.step_done(_now_ms()))

    def raise_failure(self) -> None:
        """Raises what ended the membership: again and again where it is for good, and once where it is to be asked for
        again."""
        membership = self._membership
        if membership.has_stalled:
            membership.has_stalled = False
            raise MaxPollIntervalExceededError(
                f"group {self._coordinator.group!r}: nothing was polled for max_poll_interval_ms, so this member has "
                "left and its partitions were given to others; the next poll has joined again. Take fewer records at "
                "a time, or raise max_poll_interval_ms"
            )
        failure = membership.take_failure()
        if failure is not None:
            about, said = f"group {self._coordinator.group!r}", failure.message or failure.code.name
            message = said if about in said else f"{about}: {said}"
            raise AuthenticationError(message) if failure.unauthenticated else error_for(failure.code, message)

    # What was decided

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Open():
                    self._open(action)
                case Say(word):
                    if self._stream is not None:
                        self._stream.say(word)
                case Close():
                    if self._stream is not None:
                        self._hang_up()
                case Drop(partitions):
                    _log.warning("lost %d partitions %s", len(partitions), self._names())
                    self._on_drop(partitions)
        if self._membership.is_over:
            self._over.set()
        self._set_timer()
        if self.needs_attention:
            self._on_change()

    def _open(self, action: Open) -> None:
        if action.find:
            self._coordinator.forget()
        number = action.stream
        self._stream = SessionStream(
            self._coordinator.find,
            action.word,
            group=self._coordinator.group,
            member_id=self.member_id,
            instance_id=self._instance_id,
            on_answer=lambda answer: self._answered(number, answer),
            on_end=lambda failure: self._broke(number, failure),
        )

    def _hang_up(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
            self._former = [each for each in self._former if not each.is_over]
            self._former.append(stream)

    def _answered(self, stream: int, answer: Answer) -> None:
        joined = self._membership.epoch == 0 and answer.member_epoch > 0
        self._do(self._membership.answered(stream, answer, _now_ms()))
        if joined:
            self._refusal = ""
            _log.info("joined %s", self._names())

    def _broke(self, stream: int, failure: Failure) -> None:
        code, message = failure.code, failure.message
        if message != self._refusal:
            _log.info("the session was interrupted: %s %s", message or code.name, self._names())
        unauthenticated = failure.unauthenticated
        self._do(self._membership.broke(stream, code, message, _now_ms(), unauthenticated=unauthenticated))
        if self._membership.is_refused:
            if message != self._refusal:  # once, and not with each poll that asks again
                _log.warning("the membership is refused: %s %s", message or code.name, self._names())
            self._refusal = message
        elif self._membership.failure is not None:
            _log.error("the membership has failed: %s %s", message or code.name, self._names())

    def _set_timer(self) -> None:
        at_ms = self._membership.wake_at_ms
        if self._timer is not None:
            if self._timer_at_ms <= at_ms and self._timer_at_ms > _now_ms():
                return  # it looks then, and sets itself anew
            self._timer.cancel()
            self._timer = None
        if at_ms != NEVER_MS:
            self._timer_at_ms = at_ms
            delay_s = max(0.0, at_ms - _now_ms()) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._do(self._membership.tick(_now_ms()))

    def _names(self) -> str:
        names = {"group": self._coordinator.group, "member": self.member_id, "epoch": self._membership.epoch}
        return pairs(**names, **({"instance": self._instance_id} if self._instance_id else {}))


def _now_ms() -> float:
    return monotonic() * 1000
