"""One member's part in its group: events in, actions out. No I/O, no clock (docs/groups.md, "What a client does").

Two things go on side by side. The *stream* to the coordinator:

    IDLE -> OPENING -> OPEN -> LEAVING -> IDLE
               ^  |      |
               |  v      v
             WAITING <---+        (a pause; the member keeps its partitions until the session timeout)

STALLED, where the application has not polled for `max_poll_interval_ms` and the member has left; REFUSED, by an ACL or
for its token: once that has been raised the next poll asks again, after a pause; and FAILED, for good.

And the application's *steps*: it is told, one at a time, what it lost, what it is to give up, and what it has beside
that. Invariants: what is consumed is in `held`; `held` grows only by what the last assignment gives; what is in `held`
is in every word that says what is owned, until the step that revokes it is done, or it was dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from highwater.client.membership.word_times import WordTimes
from highwater.client.membership.words import (
    JOINING,
    LEAVING,
    LEAVING_STATIC,
    NO_PARTITIONS,
    Action,
    Answer,
    Assign,
    Close,
    Drop,
    Failure,
    Lost,
    Open,
    Partitions,
    Revoke,
    Say,
    Step,
    Subscription,
    Word,
)
from highwater.errors import ErrorCode

NEVER_MS = float("inf")
# A connection that is cut without a word is noticed by gRPC's keepalive, so much later: what was said meanwhile has not
# got through. With short session timeouts a third of that is taken for it.
SILENCE_MS = 15_000.0
DEFAULT_SESSION_TIMEOUT_MS = 45_000  # before the coordinator has said another
LEAVE_TIMEOUT_MS = 5_000.0  # for the answer to a leave

# The stream ends with these, and the member goes on at another coordinator, or the same.
_FIND_ANEW = frozenset(
    {ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_COORDINATOR}
    | {ErrorCode.COORDINATOR_NOT_AVAILABLE}
)
# What is refused with these may be allowed later.
_NOT_ALLOWED = frozenset(
    {ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    | {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
)
_OUT_OF_THE_GROUP = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH})


class Phase(Enum):
    IDLE = auto()  # not begun, or over
    WAITING = auto()  # for the next attempt
    OPENING = auto()  # the first word has no answer yet
    OPEN = auto()
    LEAVING = auto()  # has said so
    STALLED = auto()  # has left, and joins with the next poll
    REFUSED = auto()  # may not be a member now: joins with the next poll after that was raised
    FAILED = auto()


@dataclass(frozen=True, slots=True)
class MemberSettings:
    is_static: bool  # it has an instance id
    max_poll_interval_ms: float
    answer_timeout_ms: float  # of the first word on a stream
    backoff_ms: float  # doubled with each failure
    backoff_max_ms: float


class Membership:
    """`jitter` gives a factor about 1 for each pause. Times are of one clock, in ms."""

    def __init__(
        self, settings: MemberSettings, subscription: Subscription, jitter: Callable[[], float], now_ms: float
    ) -> None:
        self.phase = Phase.IDLE
        self.epoch = JOINING
        self.subscription = subscription
        self.failure: Failure | None = None  # set where FAILED, and where REFUSED until it is raised
        self.has_stalled = False  # and the application has not been told
        self.session_timeout_ms = DEFAULT_SESSION_TIMEOUT_MS
        self._settings = settings
        self._jitter = jitter
        self._assigned = NO_PARTITIONS  # as the coordinator said last
        self._held = NO_PARTITIONS  # the application's
        self._differs = False  # what it has is not what was assigned
        self._lost = NO_PARTITIONS  # it is still to be told of
        self._step: Step | None = None  # under way
        self._closing = False
        # The stream
        self.stream = 0
        self._seen = 0  # the number of the last assignment on this stream
        self._heartbeat_interval_ms = 5_000
        self._opened_ms = now_ms
        self._words = WordTimes(now_ms, SILENCE_MS)  # of all streams
        self._said_subscription = subscription  # what the present stream was told last
        self._heartbeat_at_ms = NEVER_MS
        self._expires_at_ms = NEVER_MS  # while there is no stream: until when the partitions are the member's
        self._retry_at_ms = NEVER_MS
        self._leave_by_ms = NEVER_MS
        self._finds_anew = True
        self._failures = 0
        self._refused_since_ms: float | None = None  # the instance id was another's from then on
        # The application
        self._polling = 0
        self._polled_ms = now_ms

    # State

    @property
    def held(self) -> Partitions:
        """All that the application has. Of that it consumes all but what a `Revoke` under way is about."""
        return self._held

    @property
    def owned(self) -> Partitions:
        """All that the coordinator is told of: with what was assigned and not taken up yet."""
        return self._assigned | self._held

    @property
    def is_member(self) -> bool:
        return self.epoch > 0

    @property
    def is_over(self) -> bool:
        return self.phase in (Phase.IDLE, Phase.FAILED)

    @property
    def is_refused(self) -> bool:
        return self.phase is Phase.REFUSED

    @property
    def unsettled(self) -> bool:
        """There is a step to be taken, or one under way."""
        return self._step is not None or bool(self._lost) or self._differs

    @property
    def wake_at_ms(self) -> float:
        """The time at which `tick` is to be called at the latest."""
        stall = self._polled_ms + self._settings.max_poll_interval_ms if self._can_stall() else NEVER_MS
        match self.phase:
            case Phase.WAITING:
                return min(self._retry_at_ms, self._expires_at_ms, stall)
            case Phase.OPENING:
                return min(self._opened_ms + self._settings.answer_timeout_ms, self._expires_at_ms, stall)
            case Phase.OPEN:
                return min(self._heartbeat_at_ms, stall)
            case Phase.LEAVING:
                return self._leave_by_ms
            case _:
                return NEVER_MS

    # The stream

    def start(self, now_ms: float) -> list[Action]:
        self._polled_ms = now_ms
        return self._open(now_ms)

    def subscribe(self, subscription: Subscription, now_ms: float) -> list[Action]:
        """Subscribes to something else."""
        self.subscription = subscription
        is_open = self.phase is Phase.OPEN
        return self._say(now_ms) if is_open and subscription != self._said_subscription else []

    def answered(self, stream: int, answer: Answer, now_ms: float) -> list[Action]:
        if stream != self.stream or self.phase not in (Phase.OPENING, Phase.OPEN, Phase.LEAVING):
            return []
        if answer.member_epoch < JOINING:
            return self._over() if self.phase is Phase.LEAVING else []
        if self.phase is Phase.LEAVING:
            return []
        if self.phase is Phase.OPENING:
            self.phase = Phase.OPEN
            self._words.said(self._opened_ms)
            self._expires_at_ms = NEVER_MS
            self._failures = 0
            self._refused_since_ms = None
        self.epoch = answer.member_epoch
        self._heartbeat_interval_ms = answer.heartbeat_interval_ms
        self.session_timeout_ms = answer.session_timeout_ms
        self._heartbeat_at_ms = now_ms + self._heartbeat_interval_ms
        if answer.assignment is not None:
            self._seen = answer.assignment_number
            self._take(answer.assignment)
            return self._say(now_ms, owned=self.owned)
        return [] if self._said_subscription == self.subscription else self._say(now_ms)

    def broke(
        self, stream: int, code: ErrorCode, message: str, now_ms: float, *, unauthenticated: bool = False
    ) -> list[Action]:
        """The stream has ended, or could not be opened. NETWORK_EXCEPTION: without a word of the coordinator.
        `unauthenticated`: for the token, whatever the code."""
        if stream != self.stream or self.phase not in (Phase.OPENING, Phase.OPEN, Phase.LEAVING):
            return []
        if self.phase is Phase.LEAVING:
            return self._over()  # where the leave has not got through the session timeout does it
        if self._expires_at_ms == NEVER_MS and self.is_member:
            self._expires_at_ms = self._last_word_ms(now_ms) + self.session_timeout_ms
        if code is not ErrorCode.UNRELEASED_INSTANCE_ID:
            self._refused_since_ms = None  # nobody has said since that it is another's: that begins anew
        if code in _OUT_OF_THE_GROUP:
            return [*self._lose(), *self._wait(now_ms, find=False)]
        if code is ErrorCode.UNRELEASED_INSTANCE_ID:
            self._refused_since_ms = now_ms if self._refused_since_ms is None else self._refused_since_ms
            if now_ms < self._refused_since_ms + self.session_timeout_ms:
                return self._wait(now_ms, find=False)
        elif code.retriable or code in _FIND_ANEW:
            return self._wait(now_ms, find=code in _FIND_ANEW)
        self.failure = Failure(code, message, unauthenticated)
        if unauthenticated or code in _NOT_ALLOWED:
            actions = [*self._lose(), *self._wait(now_ms, find=True)]
            self.phase = Phase.REFUSED
            return actions
        self.phase = Phase.FAILED
        return [*self._lose(), Close()]

    def tick(self, now_ms: float) -> list[Action]:
        """Does what is due."""
        if self._can_stall() and now_ms >= self._polled_ms + self._settings.max_poll_interval_ms:
            return self._stall(now_ms)
        match self.phase:
            case Phase.WAITING | Phase.OPENING if now_ms >= self._expires_at_ms:
                return [*self._lose(), Close(), *self._open(now_ms)]
            case Phase.WAITING if now_ms >= self._retry_at_ms:
                return self._open(now_ms)
            case Phase.OPENING if now_ms >= self._opened_ms + self._settings.answer_timeout_ms:
                message = "the coordinator did not answer in time"
                return self.broke(self.stream, ErrorCode.REQUEST_TIMED_OUT, message, now_ms)
            case Phase.OPEN if now_ms >= self._words.last_ms + self.session_timeout_ms:
                # This process was stopped, or its event loop was held: others may have the partitions.
                return [*self._lose(), Close(), *self._open(now_ms)]
            case Phase.OPEN if now_ms >= self._heartbeat_at_ms:
                return self._say(now_ms)
            case Phase.LEAVING if now_ms >= self._leave_by_ms:
                return self._over()
        return []

    def _open(self, now_ms: float) -> list[Action]:
        self.stream += 1
        self.phase = Phase.OPENING
        self._seen = 0
        self._opened_ms = now_ms
        self._said_subscription = self.subscription
        word = Word(self.epoch, 0, self.owned, self.subscription)
        return [Open(self.stream, word, self._finds_anew)]

    def _wait(self, now_ms: float, *, find: bool) -> list[Action]:
        settings = self._settings
        pause_ms = min(settings.backoff_ms * 2 ** min(self._failures, 16), settings.backoff_max_ms)
        self._failures += 1
        self._finds_anew = find
        self._retry_at_ms = now_ms + pause_ms * self._jitter()
        self.phase = Phase.WAITING
        return [Close()]

    def _say(self, now_ms: float, *, owned: Partitions | None = None) -> list[Action]:
        """With the subscription where this stream has not heard of it: it may have changed while it was opened."""
        self._words.said(now_ms)
        self._heartbeat_at_ms = now_ms + self._heartbeat_interval_ms
        is_new = self._said_subscription != self.subscription
        self._said_subscription = self.subscription
        return [Say(Word(self.epoch, self._seen, owned, self.subscription if is_new else None))]

    def _last_word_ms(self, now_ms: float) -> float:
        """The time of the last word of which the coordinator is sure to have heard."""
        return self._words.before(now_ms - min(SILENCE_MS, self.session_timeout_ms / 3))

    # Partitions

    def _take(self, assignment: Partitions) -> None:
        if not self._closing:
            self._assigned = assignment
            self._differs = assignment != self._held

    def _lose(self) -> list[Action]:
        """Out of the group: whatever was held may be others' from now on."""
        dropped = self._held
        told = self._step.partitions if isinstance(self._step, Revoke) else NO_PARTITIONS
        self._lost |= dropped - told
        self.epoch = JOINING
        self._held = self._assigned = NO_PARTITIONS
        self._differs = False
        self._expires_at_ms = NEVER_MS
        return [Drop(dropped)] if dropped else []

    def next_step(self) -> Step | None:
        """Begins the next step; None: all is as it should be. One at a time: `step_done` ends it."""
        assert self._step is None
        step: Step | None = None
        if self._lost:
            step, self._lost = Lost(self._lost), NO_PARTITIONS
        elif revoked := self._held - self._assigned:
            step = Revoke(revoked)
        elif added := self._assigned - self._held:
            step = Assign(added)
            self._held |= added
            self._differs = False
        self._step = step
        return step

    def step_done(self, now_ms: float) -> list[Action]:
        """The callback has returned, and what was to be committed is."""
        step, self._step = self._step, None
        revoked = step.partitions & self._held if isinstance(step, Revoke) else NO_PARTITIONS  # none: they were dropped
        self._held -= revoked
        self._differs = self._assigned != self._held
        if not revoked or self.phase is not Phase.OPEN:
            return []  # the first word of the next stream says it
        return self._say(now_ms, owned=self.owned)

    # The application

    def poll_began(self, now_ms: float) -> list[Action]:
        """Between this and `poll_ended` it does not stall, however long its callbacks take."""
        actions = self.tick(now_ms) if now_ms >= self.wake_at_ms else []
        self._polling += 1
        if self.phase is Phase.STALLED:
            actions += [Close(), *self._open(now_ms)]
        elif self.phase is Phase.REFUSED and self.failure is None:
            self.phase = Phase.WAITING
            actions += self.tick(now_ms)
        return actions

    def take_failure(self) -> Failure | None:
        """To be raised: each time, where it is for good; else once, before the next poll asks again."""
        failure = self.failure
        if self.phase is Phase.REFUSED:
            self.failure = None
        return failure

    def poll_ended(self, now_ms: float) -> None:
        self._polling -= 1
        self._polled_ms = now_ms

    def asks_for_more(self, now_ms: float) -> bool:
        """The application asks for the next record of what it was handed before. False: there is a step to be taken, an
        error to be raised, or something to be done on the stream before that.

        Called for each record: where all is well it is done without `unsettled` and `wake_at_ms`, which say the same.
        """
        if self._step is not None or self._differs or self._lost or self.has_stalled or self.failure is not None:
            return False
        if self.phase is Phase.OPEN:
            if now_ms >= self._heartbeat_at_ms or now_ms >= self._polled_ms + self._settings.max_poll_interval_ms:
                return False
        elif now_ms >= self.wake_at_ms:
            return False
        self._polled_ms = now_ms
        return True

    def _can_stall(self) -> bool:
        return not self._polling and not self._closing and self.phase in (Phase.WAITING, Phase.OPENING, Phase.OPEN)

    def _stall(self, now_ms: float) -> list[Action]:
        is_open = self.phase is Phase.OPEN
        self.has_stalled = True
        said = [Say(self._leave_word())] if is_open else [Close()]
        actions = [*self._lose(), *said]
        self.phase = Phase.STALLED
        return actions

    # Leaving

    def close(self) -> None:
        """All that is held is to be given up: `next_step` says so. Then `leave`."""
        self._closing = True
        self._assigned = NO_PARTITIONS
        self._differs = bool(self._held)

    def leave(self, now_ms: float) -> list[Action]:
        """Tells the coordinator, by another stream where the present one is broken. Over: see `is_over`."""
        self._leave_by_ms = now_ms + LEAVE_TIMEOUT_MS
        was, self.phase = self.phase, Phase.LEAVING
        if not self.is_member and was is not Phase.OPENING:
            return self._over()
        word = self._leave_word()
        self._held = self._assigned = NO_PARTITIONS
        if was in (Phase.OPEN, Phase.OPENING):
            return [Say(word)]
        self.stream += 1
        return [Close(), Open(self.stream, word, self._finds_anew)]

    def _leave_word(self) -> Word:
        return Word(LEAVING_STATIC if self._settings.is_static else LEAVING)

    def _over(self) -> list[Action]:
        self.phase = Phase.IDLE
        self.epoch = JOINING
        return [Close()]
