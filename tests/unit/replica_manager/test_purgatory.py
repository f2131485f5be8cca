"""Waiting produces and fetches: answered once, by whatever comes first; never more than the limit."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from highwater.model.partition import PartitionKey
from highwater.replica_manager.replicas.purgatory import FetchPurgatory, ProducePurgatory, Waiting

A = PartitionKey(bytes(16), 0)
B = PartitionKey(bytes(16), 1)


def test_a_produce_is_answered_when_the_high_watermark_has_passed_its_last_record() -> None:
    produces: ProducePurgatory[str] = ProducePurgatory(10)
    produces.add(A, 20, 1000, "second")
    produces.add(A, 10, 1000, "first")
    produces.add(B, 10, 1000, "other")
    assert produces.reached(A, 9) == []
    assert produces.reached(A, 10) == ["first"]
    assert produces.reached(A, 30) == ["second"]
    assert produces.reached(A, 40) == []
    assert len(produces) == 1


def test_an_interruption_answers_all_of_one_partition_by_offset() -> None:
    produces: ProducePurgatory[str] = ProducePurgatory(10)
    produces.add(A, 20, 500, "second")
    produces.add(A, 10, 1000, "first")
    produces.add(B, 10, 1000, "other")
    assert produces.interrupted(A) == ["first", "second"]
    assert produces.interrupted(A) == []
    assert produces.expired(2000) == ["other"]


def test_a_produce_expires_at_its_deadline() -> None:
    produces: ProducePurgatory[str] = ProducePurgatory(10)
    produces.add(A, 10, 1000, "early")
    produces.add(A, 20, 2000, "late")
    assert produces.expired(999) == []
    assert produces.expired(1000) == ["early"]
    assert produces.reached(A, 20) == ["late"]


def test_the_limit_refuses_and_a_place_is_free_again() -> None:
    produces: ProducePurgatory[str] = ProducePurgatory(1)
    waiting = produces.add(A, 10, 1000, "one")
    assert waiting is not None
    assert produces.add(B, 10, 1000, "two") is None
    assert produces.cancel(waiting)
    assert not produces.cancel(waiting)
    assert produces.add(B, 10, 1000, "two") is not None


def test_what_has_ended_does_not_pile_up() -> None:
    produces: ProducePurgatory[int] = ProducePurgatory(10)
    produces.add(A, 1 << 40, 1 << 40, -1)  # the high watermark is held
    for number in range(10_000):
        produces.add(A, 1 << 41, number, number)
        assert produces.expired(number) == [number]
    assert len(produces._by_key[A]._entries) < 200
    assert len(produces._deadlines._entries) < 200


def test_a_fetch_waits_for_its_bytes_over_all_its_partitions() -> None:
    fetches: FetchPurgatory[str] = FetchPurgatory(10)
    fetches.add({A: 10, B: 0}, 100, 1000, "fetch")
    assert fetches.grown(A, 15, 60) == []
    assert fetches.grown(B, 5, 39) == []
    assert fetches.grown(B, 6, 1) == ["fetch"]
    assert not fetches.waits_for(A)
    assert len(fetches) == 0


def test_growth_below_a_fetch_s_offset_gives_it_nothing() -> None:
    fetches: FetchPurgatory[str] = FetchPurgatory(10)
    fetches.add({A: 10}, 1, 1000, "ahead of the high watermark")
    assert fetches.grown(A, 10, 500) == []
    assert fetches.grown(A, 11, 1) == ["ahead of the high watermark"]


def test_a_fetch_ends_by_interruption_time_or_cancellation() -> None:
    fetches: FetchPurgatory[str] = FetchPurgatory(3)
    fetches.add({A: 0, B: 0}, 1, 1000, "interrupted")
    fetches.add({B: 0}, 1, 1000, "expired")
    waiting = fetches.add({B: 0}, 1, 2000, "cancelled")
    assert waiting is not None
    assert fetches.add({B: 0}, 1, 2000, "refused") is None
    assert fetches.interrupted(A) == ["interrupted"]
    assert fetches.expired(1000) == ["expired"]
    assert fetches.cancel(waiting)
    assert not fetches.waits_for(B)


KEYS = st.sampled_from([A, B])


class Produces(RuleBasedStateMachine):
    """Beside a plain list that is searched through."""

    LIMIT = 20

    def __init__(self) -> None:
        super().__init__()
        self.produces: ProducePurgatory[int] = ProducePurgatory(self.LIMIT)
        self.model: dict[int, tuple[PartitionKey, int, int, Waiting[int]]] = {}
        self.token = 0

    @rule(key=KEYS, required=st.integers(0, 50), deadline=st.integers(0, 50))
    def add(self, key: PartitionKey, required: int, deadline: int) -> None:
        self.token += 1
        waiting = self.produces.add(key, required, deadline, self.token)
        assert (waiting is None) == (len(self.model) == self.LIMIT)
        if waiting is not None:
            self.model[self.token] = (key, required, deadline, waiting)

    @rule(key=KEYS, high_watermark=st.integers(0, 50))
    def reach(self, key: PartitionKey, high_watermark: int) -> None:
        due = sorted((r, t) for t, (k, r, _, _) in self.model.items() if k == key and r <= high_watermark)
        self.ended([token for _, token in due], self.produces.reached(key, high_watermark))

    @rule(key=KEYS)
    def interrupt(self, key: PartitionKey) -> None:
        due = sorted((r, t) for t, (k, r, _, _) in self.model.items() if k == key)
        self.ended([token for _, token in due], self.produces.interrupted(key))

    @rule(now=st.integers(0, 50))
    def expire(self, now: int) -> None:
        due = sorted((d, t) for t, (_, _, d, _) in self.model.items() if d <= now)
        self.ended([token for _, token in due], self.produces.expired(now))

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if self.model:
            token = data.draw(st.sampled_from(sorted(self.model)))
            assert self.produces.cancel(self.model.pop(token)[3])

    def ended(self, expected: list[int], tokens: list[int]) -> None:
        assert tokens == expected
        for token in tokens:
            del self.model[token]

    @invariant()
    def counts(self) -> None:
        assert len(self.produces) == len(self.model)


TestProduces = Produces.TestCase
TestProduces.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
