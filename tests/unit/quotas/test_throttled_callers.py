"""Who is told to pause, and for how long: a bounded number by name."""

from __future__ import annotations

from highwater.quotas.client_quotas import Caller, Quota
from highwater.quotas.throttled_callers import IDLE_S, OTHERS, ThrottledCallers


def told(callers: ThrottledCallers) -> dict[tuple[str, ...], float]:
    return {tuple(labels): seconds for labels, seconds in callers.values()}


def test_pauses_are_added_up_by_quota_user_and_client() -> None:
    callers = ThrottledCallers()
    for quota, pause_s in ((Quota.PRODUCE, 1.0), (Quota.PRODUCE, 0.5), (Quota.FETCH, 2.0)):
        callers.add(quota, Caller("anna", "app"), pause_s, 0.0)
    assert told(callers) == {
        ("producer_byte_rate", "anna", "app"): 1.5,
        ("consumer_byte_rate", "anna", "app"): 2.0,
    }


def test_so_many_have_names_and_the_others_are_counted_together() -> None:
    callers = ThrottledCallers(most=2)
    for number in range(10):
        callers.add(Quota.PRODUCE, Caller("u", f"{number}"), 1.0, 0.0)
    assert told(callers) == {
        ("producer_byte_rate", "u", "0"): 1.0,
        ("producer_byte_rate", "u", "1"): 1.0,
        ("producer_byte_rate", OTHERS, OTHERS): 8.0,
    }


def test_a_name_is_given_up_by_whoever_was_not_told_for_long() -> None:
    callers = ThrottledCallers(most=2)
    callers.add(Quota.PRODUCE, Caller("u", "old"), 1.0, 0.0)
    callers.add(Quota.PRODUCE, Caller("u", "kept"), 1.0, 0.0)
    callers.add(Quota.PRODUCE, Caller("u", "kept"), 1.0, IDLE_S)
    callers.add(Quota.PRODUCE, Caller("u", "new"), 4.0, IDLE_S)
    assert told(callers) == {
        ("producer_byte_rate", "u", "kept"): 2.0,
        ("producer_byte_rate", "u", "new"): 4.0,
        ("producer_byte_rate", OTHERS, OTHERS): 1.0,
    }
