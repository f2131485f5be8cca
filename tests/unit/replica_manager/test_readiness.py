"""When a broker says that it is ready (RULES 8.6)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from highwater.replica_manager.membership.readiness import ASK_MS, SETTLE_MS, GaveUp, Readiness, Standing

MAX_WAIT_MS = 10_000
SOUND = Standing(True, 0)


class Asked:
    """A readiness that is asked and answered in turn, every `ASK_MS`."""

    def __init__(self, broker_epoch: int | None = 7) -> None:
        self.readiness = Readiness(MAX_WAIT_MS)
        self.now_ms = 1_000_000
        self.gave_up: list[GaveUp] = []
        self.readiness.registered(broker_epoch)

    def hears(self, standing: Standing | None, for_ms: int = 0) -> bool:
        """The same answer (None: none), again for so long; whether it is ready then."""
        end_ms = self.now_ms + ASK_MS + for_ms
        while True:
            self.now_ms += ASK_MS
            epoch = self.readiness.question(self.now_ms)
            if epoch is not None and standing is None:
                self.readiness.unanswered(self.now_ms)
            elif epoch is not None and standing is not None:
                gave_up = self.readiness.answered(epoch, standing, self.now_ms)
                self.gave_up += [] if gave_up is None else [gave_up]
            if self.now_ms >= end_ms:
                return self.readiness.ready


def test_it_is_not_ready_before_a_controller_has_told_it_everything() -> None:
    asked = Asked()
    assert not asked.readiness.ready
    assert not asked.hears(None, 100 * MAX_WAIT_MS)
    assert not asked.hears(Standing(False, 0), SETTLE_MS)
    assert not asked.hears(SOUND)
    assert asked.hears(SOUND, SETTLE_MS)


def test_it_asks_nothing_while_it_is_not_registered() -> None:
    asked = Asked(None)
    assert asked.readiness.question(asked.now_ms) is None


def test_every_replica_has_to_be_in_its_isr() -> None:
    asked = Asked()
    assert not asked.hears(Standing(True, 3), MAX_WAIT_MS // 2)
    assert not asked.hears(Standing(True, 1), MAX_WAIT_MS // 2)
    assert asked.hears(SOUND, SETTLE_MS)
    assert not asked.gave_up


def test_an_isr_that_it_is_about_to_leave_is_none() -> None:
    """A follower restarted within the leader's grace: in the ISR, then out of it."""
    asked = Asked()
    assert not asked.hears(SOUND, SETTLE_MS // 2)
    assert not asked.hears(Standing(True, 1))
    assert not asked.hears(SOUND)
    assert asked.hears(SOUND, SETTLE_MS)


def test_a_new_registration_begins_anew() -> None:
    asked = Asked()
    assert asked.hears(SOUND, SETTLE_MS)
    question = asked.readiness.question(asked.now_ms + MAX_WAIT_MS)
    asked.readiness.registered(8)
    assert not asked.readiness.ready
    assert question == 7
    asked.readiness.answered(7, SOUND, asked.now_ms)  # asked before
    assert not asked.hears(Standing(False, 0), SETTLE_MS)
    asked.readiness.registered(None)
    assert not asked.readiness.ready


def test_it_stays_as_it_is_while_no_controller_acts() -> None:
    asked = Asked()
    assert asked.hears(SOUND, SETTLE_MS)
    assert asked.hears(None, 10 * MAX_WAIT_MS)
    waiting = Asked()
    assert not waiting.hears(SOUND, SETTLE_MS // 2)
    assert not waiting.hears(None, 10 * MAX_WAIT_MS)
    assert not waiting.hears(SOUND)  # the time before does not count


def test_a_replica_that_falls_out_makes_it_unready() -> None:
    asked = Asked()
    assert asked.hears(SOUND, SETTLE_MS)
    assert not asked.hears(Standing(True, 1), MAX_WAIT_MS // 2)
    assert asked.hears(SOUND, 2 * SETTLE_MS)


def test_what_nobody_can_take_in_is_not_waited_for_for_ever() -> None:
    asked = Asked()
    hopeless = Standing(True, 2, (("alone", 0), ("alone", 1)))
    assert not asked.hears(hopeless, MAX_WAIT_MS - ASK_MS)
    assert asked.hears(hopeless, 2 * ASK_MS)
    assert asked.gave_up == [GaveUp(hopeless, MAX_WAIT_MS)]
    assert asked.hears(hopeless, 3 * MAX_WAIT_MS)
    assert len(asked.gave_up) == 1
    # One more is waited for, as long again.
    assert not asked.hears(Standing(True, 3), MAX_WAIT_MS)
    assert asked.hears(Standing(True, 3), MAX_WAIT_MS)


def test_what_came_back_is_waited_for_when_it_falls_out_again() -> None:
    asked = Asked()
    asked.hears(Standing(True, 2), MAX_WAIT_MS + ASK_MS)
    assert asked.hears(Standing(True, 1), MAX_WAIT_MS)
    assert not asked.hears(Standing(True, 2), MAX_WAIT_MS)


def test_a_log_that_cannot_be_hosted_is_not_waited_for_for_ever() -> None:
    """It is in its ISR still, as the minimum is not kept without it, and answers every instruction with an error."""
    asked = Asked()
    offline = Standing(False, 0, (("broken", 0),))
    assert not asked.hears(offline, MAX_WAIT_MS - ASK_MS)
    assert asked.hears(offline, 3 * MAX_WAIT_MS)
    assert len(asked.gave_up) == 1


def test_each_replica_that_comes_back_gains_time() -> None:
    asked = Asked()
    for out_of_sync in range(20, 0, -1):
        assert not asked.hears(Standing(True, out_of_sync), MAX_WAIT_MS // 2)
    assert asked.hears(SOUND, SETTLE_MS)
    assert not asked.gave_up


def test_a_time_without_a_controller_is_no_wait() -> None:
    asked = Asked()
    assert not asked.hears(Standing(True, 1), MAX_WAIT_MS // 2)
    assert not asked.hears(None, 100 * MAX_WAIT_MS)
    assert not asked.hears(Standing(True, 1), MAX_WAIT_MS // 4)
    assert asked.hears(Standing(True, 1), MAX_WAIT_MS // 2)


def test_a_broker_that_stops_is_not_ready() -> None:
    asked = Asked()
    assert asked.hears(SOUND, SETTLE_MS)
    asked.readiness.stopping()
    assert not asked.readiness.ready
    assert asked.readiness.question(asked.now_ms + MAX_WAIT_MS) is None


ANSWERS = st.one_of(st.none(), st.builds(Standing, st.booleans(), st.integers(0, 3)))


@given(st.lists(st.tuples(ANSWERS, st.integers(0, 3 * ASK_MS)), max_size=60))
def test_it_turns_true_only_by_an_answer(steps: list[tuple[Standing | None, int]]) -> None:
    """And by one that has nothing in the way, or after the wait."""
    readiness, now_ms, wanted = Readiness(MAX_WAIT_MS), 0, True
    readiness.registered(1)
    for standing, pause_ms in steps:
        now_ms += pause_ms
        before = readiness.ready
        if standing is None:
            readiness.unanswered(now_ms)
            assert readiness.ready is before
            continue
        gave_up = readiness.answered(1, standing, now_ms)
        wanted = wanted and gave_up is None  # until it gives something up, nothing is excused
        assert gave_up is None or readiness.ready
        assert not (wanted and readiness.ready) or standing == SOUND
        assert readiness.out_of_sync == standing.out_of_sync
