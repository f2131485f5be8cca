"""How soon metadata is asked for again."""

from __future__ import annotations

from highwater.client.cluster.metadata import MetadataAnswer
from highwater.client.cluster.refresh_pace import (
    FIRST_SLOW_REFRESH_INTERVAL_S,
    MAX_REFRESH_INTERVAL_S,
    MAX_SLOW_REFRESH_INTERVAL_S,
    MIN_REFRESH_INTERVAL_S,
    SAME_ANSWERS,
    RefreshPace,
)


def answer(controller_id: int = 0) -> MetadataAnswer:
    return MetadataAnswer("c", (), (), {}, controller_id, "")


class Asker:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.pace = RefreshPace(lambda: self.now_s)

    def refresh(self, found: MetadataAnswer, took_s: float = 0.0) -> float:
        """How long the next one has to wait after this one."""
        self.pace.began()
        self.now_s += took_s
        self.pace.answered(found)
        return round(self.pace.left_s(waited_for=False) + took_s, 6)


def test_the_first_may_begin_at_once() -> None:
    assert Asker().pace.left_s(waited_for=False) < 0


def test_answers_that_stay_the_same_make_it_rarer() -> None:
    asker = Asker()
    pauses = [asker.refresh(answer()) for _ in range(SAME_ANSWERS + 5)]
    assert pauses[:SAME_ANSWERS] == [MIN_REFRESH_INTERVAL_S] * SAME_ANSWERS
    assert pauses[SAME_ANSWERS] > MIN_REFRESH_INTERVAL_S
    assert pauses == sorted(pauses)
    assert pauses[-1] == MAX_REFRESH_INTERVAL_S
    assert asker.refresh(answer(controller_id=1)) == MIN_REFRESH_INTERVAL_S
    assert asker.refresh(answer(controller_id=1)) == MIN_REFRESH_INTERVAL_S


def test_slow_answers_make_it_rarer_still() -> None:
    asker = Asker()
    assert asker.refresh(answer(), took_s=0.4) == 0.8
    assert asker.refresh(answer(), took_s=60.0) == FIRST_SLOW_REFRESH_INTERVAL_S


def test_one_slow_answer_after_another_makes_it_rarest() -> None:
    """One may be of a process that stood still once, and has a new leader to find."""
    asker = Asker()
    pauses = [asker.refresh(answer(), took_s=60.0) for _ in range(5)]
    assert pauses == [2.0, 4.0, 8.0, MAX_SLOW_REFRESH_INTERVAL_S, MAX_SLOW_REFRESH_INTERVAL_S]
    assert asker.refresh(answer(), took_s=1.0) == 2.0
    assert asker.refresh(answer(controller_id=1)) == MIN_REFRESH_INTERVAL_S


def test_whoever_waits_does_not_wait_for_the_pause_of_others() -> None:
    asker = Asker()
    asker.refresh(answer(), took_s=0.4)
    asker.pace.began()
    assert round(asker.pace.left_s(waited_for=True), 6) == MIN_REFRESH_INTERVAL_S


def test_one_after_a_long_rest_is_not_one_more_of_a_row() -> None:
    asker = Asker()
    for _ in range(4):
        asker.refresh(answer(), took_s=60.0)
    asker.pace.began()
    asker.pace.asked()
    assert round(asker.pace.left_s(waited_for=False), 6) == MAX_SLOW_REFRESH_INTERVAL_S
    asker.now_s += 2 * MAX_SLOW_REFRESH_INTERVAL_S + 0.1
    asker.pace.asked()
    asker.pace.began()
    assert round(asker.pace.left_s(waited_for=False), 6) == MIN_REFRESH_INTERVAL_S


def test_a_rest_of_seconds_is_a_long_one_where_answers_are_quick() -> None:
    """What asks now and then, such as about a broker that is slow, leaves the next killed broker's successors found
    soon."""
    asker = Asker()
    for _ in range(2 * SAME_ANSWERS):
        asker.now_s += 5.0
        asker.pace.asked()
        assert asker.refresh(answer()) == MIN_REFRESH_INTERVAL_S
