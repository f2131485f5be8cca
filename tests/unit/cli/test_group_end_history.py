"""When records came, from where the end of their log was seen."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from highwater.cli.groups.end_history import MOST_ENDS, EndHistory


def seen(*ends: tuple[int, int]) -> EndHistory:
    history = EndHistory()
    for end, now_ms in ends:
        history.saw(end, now_ms)
    return history


def test_a_record_came_between_two_looks() -> None:
    history = seen((10, 1_000), (10, 2_000), (20, 3_000), (20, 9_000), (30, 10_000))
    assert [history.came_ms(offset) for offset in (10, 15, 20, 25)] == [2_000, 2_500, 9_000, 9_500]


def test_what_was_there_at_the_first_look_is_as_old_as_that() -> None:
    history = seen((10, 1_000), (20, 2_000))
    assert not history.reaches(9)
    assert history.reaches(10)
    assert history.came_ms(3) == 1_000


def test_a_record_that_was_read_says_when() -> None:
    history = seen((100, 10_000), (200, 20_000))
    history.read(50, 4_000)
    assert history.reaches(50)
    assert [history.came_ms(offset) for offset in (50, 75, 100, 150)] == [4_000, 7_000, 10_000, 15_000]
    history.read(20, 5_000)  # with a timestamp after the one behind it
    assert history.came_ms(20) == history.came_ms(50) == 4_000
    history.read(60, 1)  # not below what is known
    assert history.came_ms(60) > 4_000


def test_a_log_that_is_shorter_is_another_one() -> None:
    history = seen((100, 1_000), (5, 2_000), (9, 3_000))
    assert not history.reaches(4)
    assert history.came_ms(5) == 2_000


def test_what_nobody_asks_for_is_forgotten() -> None:
    history = seen((10, 1_000), (20, 2_000), (30, 3_000))
    history.forget_below(25)
    assert not history.reaches(19)
    assert history.came_ms(25) == 2_500
    history.forget_below(1_000)
    history.saw(40, 4_000)
    assert history.came_ms(35) == 3_500


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 60_000)), min_size=1, max_size=300))
def test_ages_stay_right_in_proportion_however_many_ends_were_seen(steps: list[tuple[int, int]]) -> None:
    """Against all ends: what came between two looks is told between the two that are left around it."""
    history, exact = EndHistory(), []
    end = now_ms = 0
    for more, later_ms in steps:
        end, now_ms = end + more, now_ms + later_ms
        history.saw(end, now_ms)
        exact.append((end, now_ms))
    assert len(history._ends) <= MOST_ENDS
    first, last = exact[0], exact[-1]
    for offset in range(first[0], last[0], max((last[0] - first[0]) // 20, 1)):
        came_ms = history.came_ms(offset)
        assert first[1] <= came_ms <= now_ms
    told = [history.came_ms(offset) for offset in range(first[0], last[0])]
    assert told == sorted(told)


def test_of_steady_ends_old_ages_are_a_fifth_off_at_most() -> None:
    history = EndHistory()
    for look in range(2_000):
        history.saw(look * 100, look * 30_000)
        history.forget_below(0)
    now_ms = 1_999 * 30_000
    for look in range(0, 1_999, 7):
        age_ms = now_ms - look * 30_000
        assert abs((now_ms - history.came_ms(look * 100)) - age_ms) <= age_ms / 5 + 30_000
