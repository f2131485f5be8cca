"""Quotas of clients and users: debt, precedence, bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.quotas.buckets import Buckets
from highwater.quotas.client_quotas import DEFAULT, Caller, ClientQuotas, Entity, Quota
from highwater.quotas.replication_quota import ReplicationQuota
from highwater.quotas.throttled_replicas import parse_throttled_replicas
from highwater.quotas.token_bucket import BURST_S, TokenBucket

ALICE = Caller("alice", "app")
# From the one that counts first to the one that counts last.
PRECEDENCE = (
    Entity("alice", "app"),
    Entity("alice", DEFAULT),
    Entity("alice"),
    Entity(DEFAULT, "app"),
    Entity(DEFAULT, DEFAULT),
    Entity(DEFAULT),
    Entity(None, "app"),
    Entity(None, DEFAULT),
)


def rate_of(quotas: ClientQuotas, caller: Caller, quota: Quota = Quota.PRODUCE) -> float | None:
    bucket = quotas[quota].bucket(caller, 0.0)
    return None if bucket is None else bucket.rate


def test_half_a_second_is_saved_up_and_more_than_that_is_owed() -> None:
    bucket = TokenBucket(100, 0.0)
    assert bucket.take(50, 0.0) == 0
    assert bucket.take(250, 0.0) == 2.5
    assert bucket.owed_s(1.0) == 1.5
    assert bucket.take(50, 2.5) == 0.5
    assert bucket.take(50, 60.0) == 0, "what was not taken for a minute is half a second's"
    assert bucket.take(10, 60.0) == 0.1


def test_what_is_owed_is_paid_at_the_new_rate() -> None:
    bucket = TokenBucket(100, 0.0)
    assert bucket.take(1_050, 0.0) == 10
    bucket.change_rate(1_000, 0.0)
    assert bucket.owed_s(0.0) == 1
    bucket.change_rate(10, 1.0)
    assert bucket.owed_s(1.0) == 0


@given(
    st.lists(st.tuples(st.floats(0, 3), st.integers(1, 5_000)), min_size=20, max_size=200),
    st.floats(10, 10_000),
)
def test_whoever_pauses_as_told_keeps_the_rate(requests: list[tuple[float, int]], rate: float) -> None:
    bucket, now_s, moved = TokenBucket(rate, 0.0), 0.0, 0
    for idle_s, size in requests:
        now_s += idle_s
        moved += size
        now_s += bucket.take(size, now_s)
        assert moved <= rate * (now_s + BURST_S) * (1 + 1e-9)


@pytest.mark.parametrize("first", range(len(PRECEDENCE)))
def test_the_first_entity_of_kafkas_order_counts(first: int) -> None:
    quotas = ClientQuotas()
    for number, entity in enumerate(PRECEDENCE[first:]):
        quotas.configure(entity, {"producer_byte_rate": str(100 + number)})
    assert rate_of(quotas, ALICE) == 100
    assert quotas[Quota.PRODUCE].entity_of(ALICE) == PRECEDENCE[first]
    assert quotas.configure(PRECEDENCE[first], {})
    assert rate_of(quotas, ALICE) == (101 if first + 1 < len(PRECEDENCE) else None)


def test_each_quota_goes_by_itself() -> None:
    quotas = ClientQuotas()
    quotas.configure(Entity("alice"), {"consumer_byte_rate": "5"})
    quotas.configure(Entity(None, "app"), {"producer_byte_rate": "7", "request_percentage": "50"})
    assert rate_of(quotas, ALICE, Quota.FETCH) == 5
    assert rate_of(quotas, ALICE, Quota.PRODUCE) == 7
    assert rate_of(quotas, ALICE, Quota.REQUEST) == 0.5, "half of the event loop"
    assert rate_of(quotas, ALICE, Quota.CONTROLLER_MUTATION) is None
    assert not quotas.is_set(Quota.CONTROLLER_MUTATION)


@pytest.mark.parametrize(
    ("entity", "same"),
    [
        (Entity("alice", "app"), []),
        (Entity("alice"), [Caller("alice", "other")]),
        (Entity(DEFAULT), [Caller("alice", "other")]),
        (Entity(None, "app"), [Caller("bob", "app")]),
        (Entity(None, DEFAULT), [Caller("bob", "app")]),
        (Entity(DEFAULT, DEFAULT), []),
    ],
)
def test_who_shares_a_bucket(entity: Entity, same: list[Caller]) -> None:
    quotas = ClientQuotas()
    quotas.configure(entity, {"producer_byte_rate": "10"})
    quota = quotas[Quota.PRODUCE]
    own = quota.bucket(ALICE, 0.0)
    assert own is not None
    own.take(20, 0.0)  # one that is full is not kept
    others = [Caller("alice", "other"), Caller("bob", "app"), Caller("bob", "other")]
    assert [other for other in others if quota.bucket(other, 0.0) is own] == same


@pytest.mark.parametrize("value", ["", "many", "0", "-1", "nan", "inf"])
def test_what_is_no_rate_counts_as_not_set(value: str) -> None:
    quotas = ClientQuotas()
    quotas.configure(Entity("alice"), {"producer_byte_rate": "10"})
    assert quotas.configure(Entity("alice"), {"producer_byte_rate": value})
    assert rate_of(quotas, ALICE) is None


@pytest.mark.parametrize("quota", Quota)
@pytest.mark.parametrize("rate", ["5e-324", "1e-300", "9223372036854775807", "1e308"])
def test_the_smallest_and_the_largest_rates_are_charged(quota: Quota, rate: str) -> None:
    quotas = ClientQuotas()
    quotas.configure(Entity("alice"), {quota: rate})
    bucket = quotas[quota].bucket(ALICE, 0.0)
    assert bucket is not None
    assert (bucket.take(1 << 30, 0.0) > 3_600) is (float(rate) < 1)
    assert (bucket.owed_s(86_400.0) > 3_600) is (float(rate) < 1)
    quotas.configure(Entity("alice"), {quota: "1e12"})
    bucket = quotas[quota].bucket(ALICE, 86_400.0)
    assert bucket is not None
    assert bucket.owed_s(86_400.0) < 1, "it is paid at the rate that counts now"


def test_a_change_is_told_once() -> None:
    quotas = ClientQuotas()
    assert quotas.configure(Entity("alice"), {"producer_byte_rate": "10"})
    assert not quotas.configure(Entity("alice"), {"producer_byte_rate": "10.0"})
    assert quotas.configure(Entity("alice"), {})
    assert not quotas.configure(Entity("alice"), {})


def test_idle_buckets_are_dropped_and_those_in_debt_kept() -> None:
    buckets: Buckets[int] = Buckets(most=1_000)
    for number in range(100):
        buckets.of(number, 10, 0.0).take(1, 0.0)
    assert len(buckets) == 100
    owing = buckets.of(7, 10, 0.0)
    owing.take(1_000, 0.0)
    for number in range(100, 160):
        buckets.of(number, 10, 2.0).take(1, 2.0)
    assert len(buckets) == 61, "those that were used last, and the one that owes"
    assert buckets.of(7, 10, 2.0) is owing


def test_one_that_owes_for_days_keeps_no_idle_ones_behind_it() -> None:
    buckets: Buckets[int] = Buckets(most=100)
    owing = buckets.of(-1, 1, 0.0)
    owing.take(1 << 20, 0.0)
    for number in range(1_000):
        bucket = buckets.of(number, 10, 10.0 * number)
        assert bucket.owed_s(10.0 * number) == 0
        bucket.take(100, 10.0 * number)
    assert len(buckets) < 5
    assert buckets.of(-1, 1, 10_000.0) is owing


def test_beyond_the_bound_one_bucket_is_shared() -> None:
    buckets: Buckets[int] = Buckets(most=3)
    own = []
    for number in range(3):
        own.append(buckets.of(number, 10, 0.0))
        own[-1].take(100, 0.0)
    shared = buckets.of(3, 10, 0.0)
    assert shared not in own
    shared.take(100, 0.0)
    assert buckets.of(4, 10, 0.0) is shared
    assert len(buckets) == 3
    assert buckets.of(4, 10, 20.0) is not shared, "there is room again"


def test_replication_is_charged_after_it_was_moved() -> None:
    quota = ReplicationQuota()
    quota.moved(10**9, 0.0)
    assert quota.wait_s(0.0) == 0, "no rate, no throttle"
    assert quota.set_rate(100, 0.0)
    assert not quota.set_rate(100, 0.0)
    quota.moved(250, 0.0)
    assert quota.wait_s(0.0) == 2
    assert quota.wait_s(3.0) == 0
    assert quota.set_rate(None, 3.0)
    assert quota.wait_s(0.0) == 0


def test_throttled_replicas_are_pairs_or_all() -> None:
    pairs = parse_throttled_replicas("0:1,12:3")
    assert (0, 1) in pairs
    assert (12, 3) in pairs
    assert (0, 3) not in pairs
    assert (5, 5) in parse_throttled_replicas("*")
    for nothing in (None, "", "none", "0", "0:", "a:b", "0:1,"):
        assert not parse_throttled_replicas(nothing)
