"""A member's decisions: what it says to its coordinator, and what it tells the application (docs/groups.md)."""

from __future__ import annotations

from copy import copy

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from highwater.client.membership.membership import MemberSettings, Membership, Phase
from highwater.client.membership.word_times import WordTimes
from highwater.client.membership.words import (
    LEAVING,
    LEAVING_STATIC,
    NO_PARTITIONS,
    Action,
    Answer,
    Assign,
    Close,
    Drop,
    Failure,
    GroupPartition,
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

SUBSCRIPTION = Subscription(("orders",))
SESSION_TIMEOUT_MS = 45_000
MAX_POLL_MS = 300_000.0


def partitions(*numbers: int) -> Partitions:
    return frozenset(GroupPartition("orders", b"o" * 16, number) for number in numbers)


def answer(epoch: int, *numbers: int, number: int = 1) -> Answer:
    return Answer(epoch, 5_000, SESSION_TIMEOUT_MS, partitions(*numbers), number)


def membership(*, is_static: bool = False, max_poll_interval_ms: float = MAX_POLL_MS) -> Membership:
    settings = MemberSettings(is_static, max_poll_interval_ms, 30_000, 100, 2_000)
    return Membership(settings, SUBSCRIPTION, lambda: 1.0, 0)


def joined(*numbers: int, **options: bool | float) -> Membership:
    """A member with these partitions, that is being polled."""
    member = membership(**options)  # type: ignore[arg-type]
    member.start(0)
    member.poll_began(0)
    member.answered(1, answer(1, *numbers), 10)
    if numbers:
        assert member.next_step() == Assign(partitions(*numbers))
        member.step_done(10)
    return member


def test_it_joins_and_acknowledges_at_once() -> None:
    member = membership()
    (opened,) = member.start(0)
    assert opened == Open(1, Word(0, 0, NO_PARTITIONS, SUBSCRIPTION), True)
    assert member.answered(1, answer(1, 0, 1, number=7), 10) == [Say(Word(1, 7, partitions(0, 1)))]
    assert member.next_step() == Assign(partitions(0, 1))
    assert member.step_done(20) == []
    assert not member.unsettled


def test_a_revocation_is_acknowledged_when_its_callback_is_done() -> None:
    member = joined(0, 1)
    assert member.answered(1, answer(2, 0, number=2), 20) == [Say(Word(2, 2, partitions(0, 1)))]
    assert member.next_step() == Revoke(partitions(1))
    assert member.tick(6_000) == [Say(Word(2, 2))]
    assert member.step_done(7_000) == [Say(Word(2, 2, partitions(0)))]
    assert member.held == partitions(0)


def test_what_comes_back_during_its_revocation_is_assigned_anew() -> None:
    member = joined(0, 1)
    member.answered(1, answer(2, 0, number=2), 20)
    assert member.next_step() == Revoke(partitions(1))
    assert member.answered(1, answer(3, 0, 1, number=3), 30) == [Say(Word(3, 3, partitions(0, 1)))]
    assert member.step_done(40) == [Say(Word(3, 3, partitions(0, 1)))]
    assert member.next_step() == Assign(partitions(1))


def test_signs_of_life_say_nothing_else() -> None:
    member = joined(0)
    assert member.wake_at_ms == 5_010
    assert member.tick(5_009) == []
    assert member.tick(5_010) == [Say(Word(1, 1))]


@pytest.mark.parametrize(
    ("code", "find"),
    [
        (ErrorCode.NETWORK_EXCEPTION, True),
        (ErrorCode.NOT_COORDINATOR, True),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, True),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, False),
        (ErrorCode.OVERLOADED, False),
    ],
)
def test_a_broken_stream_is_no_leave(code: ErrorCode, find: bool) -> None:
    member = joined(0, 1)
    assert member.broke(1, code, "", 20) == [Close()]
    assert member.held == partitions(0, 1)
    assert member.tick(119) == []
    assert member.tick(120) == [Open(2, Word(1, 0, partitions(0, 1), SUBSCRIPTION), find)]
    assert member.answered(2, answer(1, 0, 1, number=9), 130) == [Say(Word(1, 9, partitions(0, 1)))]
    assert not member.unsettled


def test_pauses_between_attempts_double() -> None:
    member = joined(0)
    now, pauses = 20.0, []
    for stream in range(1, 8):
        member.broke(stream, ErrorCode.COORDINATOR_NOT_AVAILABLE, "", now)
        pauses.append(member.wake_at_ms - now)
        now = member.wake_at_ms
        member.tick(now)
    assert pauses == [100, 200, 400, 800, 1600, 2000, 2000]


def test_after_the_session_timeout_it_drops_all_and_joins() -> None:
    member = joined(0)
    member.broke(1, ErrorCode.NETWORK_EXCEPTION, "", 20)
    stream, now = 1, 20.0
    while member.is_member:
        now = member.wake_at_ms
        actions = member.tick(now)
        if member.is_member:
            stream = member.stream
            member.broke(stream, ErrorCode.NETWORK_EXCEPTION, "", now)
    assert now == SESSION_TIMEOUT_MS  # since the first word, the last that is sure to have got through
    assert actions == [Drop(partitions(0)), Close(), Open(stream + 1, Word(0, 0, NO_PARTITIONS, SUBSCRIPTION), True)]
    assert member.next_step() == Lost(partitions(0))


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH])
def test_out_of_the_group_it_drops_all_at_once(code: ErrorCode) -> None:
    member = joined(0, 1)
    member.answered(1, answer(2, 0, number=2), 20)
    assert member.next_step() == Revoke(partitions(1))
    assert member.broke(1, code, "", 30) == [Drop(partitions(0, 1)), Close()]
    assert member.step_done(40) == []
    assert member.next_step() == Lost(partitions(0))  # it was told of the other one
    member.step_done(40)
    assert member.tick(130) == [Open(2, Word(0, 0, NO_PARTITIONS, SUBSCRIPTION), False)]


def test_the_newest_stream_is_opened_anew_where_the_coordinator_took_an_older_one_for_it() -> None:
    """The one before was given up and came in late."""
    member = joined(0)
    assert member.broke(1, ErrorCode.FETCH_SESSION_STALE, "", 20) == [Close()]
    assert member.tick(119) == []
    assert member.tick(120) == [Open(2, Word(1, 0, partitions(0), SUBSCRIPTION), False)]


def test_many_words_do_not_make_the_session_longer() -> None:
    member = joined(0)
    for now in range(14_000, 20_000, 50):
        member.answered(1, answer(1, 0, number=now), now)
    member.broke(1, ErrorCode.NETWORK_EXCEPTION, "", 20_000)
    member.tick(SESSION_TIMEOUT_MS - 1)
    assert member.is_member
    member.tick(SESSION_TIMEOUT_MS)  # 15 s before it broke no word but the first ones had been said
    assert not member.is_member


def test_times_of_words_are_bounded_and_never_late() -> None:
    words = WordTimes(0, 15_000)
    for now in range(0, 100_000, 7):
        words.said(now)
        assert words.last_ms == now
        for ago in (15_000, 2_000):
            if now >= ago:
                assert now - ago - 7 - 15_000 / 256 <= words.before(now - ago) <= now - ago
    assert len(words._times_ms) < 300


def test_a_subscription_is_said_when_the_stream_that_was_opened_without_it_is_open() -> None:
    member = membership()
    member.start(0)
    other, third = Subscription(("payments",)), Subscription(("refunds",))
    assert member.subscribe(other, 5) == []
    assert member.answered(1, answer(1, 0), 10) == [Say(Word(1, 1, partitions(0), other))]
    assert member.answered(1, answer(1, 0, number=2), 20) == [Say(Word(1, 2, partitions(0)))]
    member.broke(1, ErrorCode.NETWORK_EXCEPTION, "", 30)
    member.tick(130)
    assert member.subscribe(third, 140) == []
    assert member.answered(2, Answer(1, 5_000, SESSION_TIMEOUT_MS), 150) == [Say(Word(1, 0, None, third))]
    assert member.subscribe(other, 160) == [Say(Word(1, 0, None, other))]
    assert member.subscribe(other, 170) == []


def test_words_of_a_former_stream_are_nothing() -> None:
    member = joined(0)
    member.broke(1, ErrorCode.NETWORK_EXCEPTION, "", 20)
    member.tick(120)
    assert member.answered(1, answer(5, number=8), 130) == []
    assert member.broke(1, ErrorCode.UNKNOWN_MEMBER_ID, "", 130) == []
    assert member.held == partitions(0)


def test_an_instance_id_in_use_is_waited_for_and_then_refused() -> None:
    member = membership(is_static=True)
    member.start(0)
    assert member.broke(1, ErrorCode.UNRELEASED_INSTANCE_ID, "in use", 10) == [Close()]
    now = 10.0
    while member.phase is not Phase.FAILED:
        now = member.wake_at_ms
        member.tick(now)
        member.broke(member.stream, ErrorCode.UNRELEASED_INSTANCE_ID, "in use", now)
    assert SESSION_TIMEOUT_MS <= now <= SESSION_TIMEOUT_MS + 2_010
    assert member.failure is not None
    assert member.failure.code is ErrorCode.UNRELEASED_INSTANCE_ID


def test_the_wait_for_an_instance_id_begins_anew_after_another_error() -> None:
    member = membership(is_static=True)
    member.start(0)
    member.broke(1, ErrorCode.UNRELEASED_INSTANCE_ID, "in use", 10)
    member.tick(200)
    member.broke(2, ErrorCode.COORDINATOR_NOT_AVAILABLE, "", SESSION_TIMEOUT_MS)
    member.tick(SESSION_TIMEOUT_MS + 2_000)
    member.broke(3, ErrorCode.UNRELEASED_INSTANCE_ID, "in use", SESSION_TIMEOUT_MS + 2_000)
    assert member.phase is Phase.WAITING


def test_a_fatal_error_ends_it() -> None:
    member = joined(0)
    assert member.broke(1, ErrorCode.FENCED_INSTANCE_ID, "another has it", 20) == [Drop(partitions(0)), Close()]
    assert member.wake_at_ms == float("inf")
    assert member.is_over


@pytest.mark.parametrize(
    ("code", "unauthenticated"),
    [
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, False),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, False),
        (ErrorCode.INVALID_REQUEST, True),
    ],
)
def test_who_is_refused_is_told_and_asks_again_with_the_poll_after_that(code: ErrorCode, unauthenticated: bool) -> None:
    member = joined(0)
    refused = member.broke(1, code, "no", 20, unauthenticated=unauthenticated)
    assert refused == [Drop(partitions(0)), Close()]
    assert member.wake_at_ms == float("inf")  # it asks nothing by itself
    assert member.poll_began(30) == []
    assert member.next_step() == Lost(partitions(0))
    member.step_done(30)
    assert member.take_failure() == Failure(code, "no", unauthenticated)
    assert member.take_failure() is None
    assert member.poll_began(40) == []  # a poll that comes at once does not ask at once
    assert member.wake_at_ms == 120
    assert member.tick(120) == [Open(2, Word(0, 0, NO_PARTITIONS, SUBSCRIPTION), True)]
    member.broke(2, code, "no", 130, unauthenticated=unauthenticated)
    assert member.take_failure() is not None
    assert member.poll_began(5_000) == [Open(3, Word(0, 0, NO_PARTITIONS, SUBSCRIPTION), True)]
    member.answered(3, answer(1, 0), 5_010)
    assert member.next_step() == Assign(partitions(0))


def test_who_is_refused_has_nothing_to_leave() -> None:
    member = joined(0)
    member.broke(1, ErrorCode.GROUP_AUTHORIZATION_FAILED, "no", 20)
    member.close()
    assert member.leave(30) == [Close()]
    assert member.is_over


def test_who_does_not_poll_leaves_and_joins_with_the_next_poll() -> None:
    member = joined(0, max_poll_interval_ms=1_000)
    assert member.tick(2_000) == []  # a poll is under way, however long
    member.poll_ended(2_000)
    assert member.wake_at_ms == 3_000
    assert member.tick(3_000) == [Drop(partitions(0)), Say(Word(LEAVING))]
    assert member.has_stalled
    assert member.poll_began(9_000) == [Close(), Open(2, Word(0, 0, NO_PARTITIONS, SUBSCRIPTION), True)]


def test_a_process_that_was_stopped_hands_out_nothing_of_before() -> None:
    member = joined(0)
    member.poll_ended(10)
    now = 10 + SESSION_TIMEOUT_MS
    assert member.poll_began(now)[0] == Drop(partitions(0))
    assert member.held == NO_PARTITIONS


@pytest.mark.parametrize(("is_static", "epoch"), [(False, LEAVING), (True, LEAVING_STATIC)])
def test_it_leaves_when_all_is_given_up(is_static: bool, epoch: int) -> None:
    member = joined(0, is_static=is_static)
    member.close()
    assert member.answered(1, answer(2, 0, 1, number=2), 20) == [Say(Word(2, 2, partitions(0)))]
    assert member.next_step() == Revoke(partitions(0))
    member.step_done(30)
    assert member.leave(40) == [Say(Word(epoch))]
    assert member.answered(1, Answer(epoch, 0, 0), 50) == [Close()]
    assert member.is_over


def test_it_leaves_by_another_stream_and_not_for_ever() -> None:
    member = joined(0)
    member.broke(1, ErrorCode.NETWORK_EXCEPTION, "", 20)
    member.close()
    member.next_step()
    member.step_done(30)
    assert member.leave(40) == [Close(), Open(2, Word(LEAVING), True)]
    assert member.tick(member.wake_at_ms) == [Close()]
    assert member.is_over


def test_two_words_that_wait_are_one() -> None:
    before = Word(3, 4, partitions(1), SUBSCRIPTION)
    assert Word(3, 4).after(before) == before
    assert Word(4, 5, NO_PARTITIONS).after(before) == Word(4, 5, NO_PARTITIONS, SUBSCRIPTION)


NUMBERS = st.frozensets(st.integers(0, 4))
CODES = st.sampled_from(
    [
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.FETCH_SESSION_STALE,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ]
)


class MemberMachine(RuleBasedStateMachine):
    """A coordinator that may say anything, an application that takes its time, and a clock that jumps."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.member = membership(max_poll_interval_ms=60_000)
        self.number = 0
        self.epoch = 1
        self.open: int | None = None  # the stream of the last `Open`
        self.step: Step | None = None
        self.consumed = NO_PARTITIONS  # as the application sees it
        self.given = NO_PARTITIONS  # all that the coordinator has assigned since the member was out of the group
        self.do(self.member.start(0))

    def do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Open(stream, word):
                    self.open = stream
                    self.said(word)
                case Say(word):
                    assert self.open is not None
                    self.said(word)
                case Close():
                    self.open = None
                case Drop(dropped):
                    assert dropped >= self.consumed
                    self.consumed = NO_PARTITIONS

    def said(self, word: Word) -> None:
        if word.member_epoch < 0:
            assert not self.consumed
            return
        if word.owned is not None:
            assert word.owned >= self.consumed, "a partition is let go that is still consumed"
            if isinstance(self.step, Revoke) and self.member.held:
                assert word.owned >= self.step.partitions & self.member.held, "acknowledged before it was done"
            if word.member_epoch == 0:
                assert not word.owned
                self.given = NO_PARTITIONS
            assert word.owned <= self.given, "owned and never assigned"

    @rule(numbers=NUMBERS, raises=st.booleans())
    def push(self, numbers: frozenset[int], raises: bool) -> None:
        if self.open is not None:
            self.number += 1
            self.epoch += raises
            self.given |= partitions(*numbers)
            self.do(self.member.answered(self.open, answer(self.epoch, *numbers, number=self.number), self.now))

    @rule(code=CODES)
    def broke(self, code: ErrorCode) -> None:
        if self.open is not None:
            self.do(self.member.broke(self.open, code, "", self.now))

    @rule(ms=st.sampled_from([1, 100, 2_000, 6_000, 20_000, 50_000]))
    def time_passes(self, ms: int) -> None:
        self.now += ms
        self.do(self.member.tick(self.now))

    @rule()
    def poll(self) -> None:
        self.do(self.member.poll_began(self.now))
        self.member.poll_ended(self.now)

    @rule()
    def raise_failure(self) -> None:
        self.member.take_failure()

    @precondition(lambda self: self.step is None)
    @rule()
    def begin_step(self) -> None:
        self.step = self.member.next_step()
        match self.step:
            case Assign(added):
                assert not added & self.consumed
                self.consumed |= added
            case Revoke(revoked):
                assert revoked <= self.consumed
            case Lost(lost):
                assert not lost & self.consumed

    @precondition(lambda self: self.step is not None)
    @rule()
    def end_step(self) -> None:
        step, self.step = self.step, None
        if isinstance(step, Revoke):
            self.consumed -= step.partitions
        self.do(self.member.step_done(self.now))

    @invariant()
    def consumes_what_it_holds(self) -> None:
        assert self.consumed == self.member.held
        assert self.member.held <= self.member.owned
        assert self.member.is_member or not self.member.owned

    @invariant()
    def settles(self) -> None:
        if not self.member.unsettled:
            assert self.step is None
            assert self.member.owned == self.member.held

    @invariant()
    def wakes(self) -> None:
        """Where something is due, doing it is enough: nobody is woken again and again for nothing."""
        if self.member.phase not in (Phase.STALLED, Phase.REFUSED, Phase.FAILED):
            assert self.member.wake_at_ms < float("inf") or self.member.phase is Phase.IDLE

    @invariant()
    def gives_more_where_nothing_is_due(self) -> None:
        member = self.member
        for now in (self.now, member.wake_at_ms - 0.5, member.wake_at_ms):
            is_well = not (member.unsettled or member.has_stalled or member.failure is not None)
            assert copy(member).asks_for_more(now) == (is_well and now < member.wake_at_ms)

    def teardown(self) -> None:
        for _ in range(50):
            if self.member.wake_at_ms > self.now:
                return
            self.do(self.member.tick(self.now))
        raise AssertionError("it is woken again and again")


MemberMachine.TestCase.settings = hypothesis_settings(max_examples=300, stateful_step_count=40, deadline=None)
test_any_sequence = MemberMachine.TestCase
