"""Deadlines by a heap that is put right when it is looked at, against a plain dictionary."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from highwater.groups.deadlines import Deadlines

steps = st.one_of(
    st.tuples(st.just("set"), st.integers(0, 5), st.integers(0, 50)),
    st.tuples(st.just("cancel"), st.integers(0, 5), st.just(0)),
    st.tuples(st.just("pass"), st.integers(0, 20), st.just(0)),
)


@given(st.lists(steps, max_size=60))
def test_what_is_due_is_what_a_dictionary_says(made: list[tuple[str, int, int]]) -> None:
    deadlines: Deadlines[int] = Deadlines()
    plain: dict[int, int] = {}
    now = 0
    for name, value, ahead in made:
        if name == "set":
            deadlines.set(value, now + ahead)
            plain[value] = now + ahead
        elif name == "cancel":
            deadlines.cancel(value)
            plain.pop(value, None)
        else:
            now += value
            due = []
            while (key := deadlines.pop_due(now)) is not None:
                due.append(key)
            assert sorted(due) == sorted(key for key, at in plain.items() if at <= now)
            for key in due:
                del plain[key]
        assert len(deadlines) == len(plain)
        assert {key: deadlines.get(key) for key in range(6)} == {key: plain.get(key) for key in range(6)}
        next_ms = deadlines.next_ms()
        if plain:
            assert next_ms is not None
            assert next_ms <= min(plain.values())


def test_a_deadline_that_only_moves_stays_one_entry() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for now in range(10_000):
        deadlines.set("member", now + 100)
        assert deadlines.pop_due(now) is None
        assert len(deadlines._heap) == 1
    assert deadlines.pop_due(10_099) == "member"


def test_what_is_cancelled_is_not_kept() -> None:
    """Members that came and went left an entry each until its time: a session timeout of a day, a day of them."""
    deadlines: Deadlines[int] = Deadlines()
    deadlines.set(-1, 50)
    for member in range(10_000):
        deadlines.set(member, 100 + member)
        deadlines.cancel(member)
        assert len(deadlines._heap) < 100
    assert len(deadlines._queued) < 100
    assert deadlines.pop_due(50) == -1
    assert deadlines.pop_due(1 << 40) is None
