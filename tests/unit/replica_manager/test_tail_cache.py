"""The tail cache against a plain list of what was appended (RULES 5.5)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from highwater.replica_manager.partition.tail_cache import TailBatch, TailCache, TailCacheBudget, TailRead

EPOCH, INCARNATION = 5, "storage-1"
FAR = 1 << 40


def batch(base_offset: int, count: int = 1, size_bytes: int = 10) -> TailBatch:
    content = bytes([base_offset % 251]) * size_bytes
    pieces = (content[:4], memoryview(content)[4:])
    return TailBatch(base_offset, base_offset + count, EPOCH, size_bytes, pieces)


def bound_cache(max_bytes: int = 1000, log_end_offset: int = 0) -> TailCache:
    cache = TailCache(TailCacheBudget(max_bytes))
    cache.bind(EPOCH, INCARNATION, log_end_offset)
    return cache


def content(read: TailRead | None) -> bytes:
    assert read is not None
    joined = b"".join(read.pieces)
    assert len(joined) == read.size_bytes
    return joined


def test_reads_from_the_batch_that_holds_the_offset() -> None:
    cache = bound_cache()
    cache.append(EPOCH, INCARNATION, [batch(0, 5), batch(5, 5)])
    cache.append(EPOCH, INCARNATION, [batch(10, 5)])
    read = cache.read(7, 100, FAR)
    assert content(read) == b"\x05" * 10 + b"\x0a" * 10
    assert read is not None
    assert read.next_offset == 15


def test_the_first_batch_is_whole_and_the_rest_within_the_limit() -> None:
    cache = bound_cache()
    cache.append(EPOCH, INCARNATION, [batch(0), batch(1), batch(2)])
    assert content(cache.read(0, 1, FAR)) == b"\x00" * 10  # RULES 4.8
    assert content(cache.read(0, 29, FAR)) == b"\x00" * 10 + b"\x01" * 10


def test_nothing_is_read_beyond_the_bound() -> None:
    cache = bound_cache()
    cache.append(EPOCH, INCARNATION, [batch(0, 5), batch(5, 5)])
    assert content(cache.read(0, 100, 5)) == b"\x00" * 10
    assert cache.read(5, 100, 5) == TailRead([], 0, 5)
    assert cache.read(5, 100, 7) == TailRead([], 0, 5)  # no batch is cut, and none is shown that is not committed


def test_at_the_end_there_is_nothing_and_outside_log_storage_is_asked() -> None:
    cache = bound_cache(log_end_offset=7)
    assert cache.read(7, 100, FAR) == TailRead([], 0, 7)
    assert cache.read(6, 100, FAR) is None
    assert cache.read(8, 100, FAR) is None


@pytest.mark.parametrize(("leader_epoch", "incarnation"), [(4, INCARNATION), (6, INCARNATION), (EPOCH, "storage-2")])
def test_another_owner_s_batches_are_ignored(leader_epoch: int, incarnation: str) -> None:
    cache = bound_cache()
    cache.append(leader_epoch, incarnation, [batch(0)])
    assert len(cache) == 0


def test_bound_anew_it_is_empty_and_its_bytes_are_given_back() -> None:
    budget = TailCacheBudget(100)
    cache = TailCache(budget)
    cache.bind(EPOCH, INCARNATION, 0)
    cache.append(EPOCH, INCARNATION, [batch(0), batch(1)])
    cache.bind(EPOCH, "storage-2", 2)
    assert (len(cache), budget.used_bytes, cache.first_offset, cache.next_offset) == (0, 0, 2, 2)
    cache.unbind()
    assert cache.read(2, 100, FAR) is None


def test_a_gap_is_never_served_and_old_offsets_are_skipped() -> None:
    cache = bound_cache()
    cache.append(EPOCH, INCARNATION, [batch(0), batch(1)])
    cache.append(EPOCH, INCARNATION, [batch(0)])  # a duplicate's
    assert len(cache) == 2
    cache.append(EPOCH, INCARNATION, [batch(5)])
    assert (cache.first_offset, cache.next_offset, len(cache)) == (5, 6, 1)
    assert cache.read(1, 100, FAR) is None


def test_a_batch_above_the_whole_budget_is_passed_over() -> None:
    cache = bound_cache(max_bytes=50)
    cache.append(EPOCH, INCARNATION, [batch(0), batch(1, size_bytes=51), batch(2)])
    assert (cache.first_offset, cache.next_offset) == (2, 3)


def test_what_log_storage_wrote_otherwise_is_read_there() -> None:
    """Batches of log append time: a reader at their first offset must not be told that there is nothing."""
    cache = bound_cache()
    cache.append(EPOCH, INCARNATION, [batch(0, 5)])
    cache.pass_over(4, INCARNATION, 8)
    assert cache.next_offset == 5  # another owner's
    cache.pass_over(EPOCH, INCARNATION, 8)
    assert cache.read(0, 100, FAR) is None
    assert cache.read(5, 100, FAR) is None
    assert cache.read(8, 100, FAR) == TailRead([], 0, 8)
    cache.pass_over(EPOCH, INCARNATION, 6)  # a duplicate's old end
    cache.append(EPOCH, INCARNATION, [batch(8, 2)])
    assert content(cache.read(8, 100, FAR)) == b"\x08" * 10


def test_the_oldest_goes_first_whichever_partition_s_it_is() -> None:
    budget = TailCacheBudget(40)
    quiet, busy = TailCache(budget), TailCache(budget)
    for cache in (quiet, busy):
        cache.bind(EPOCH, INCARNATION, 0)
    busy.append(EPOCH, INCARNATION, [batch(0)])
    quiet.append(EPOCH, INCARNATION, [batch(0)])
    busy.append(EPOCH, INCARNATION, [batch(1), batch(2), batch(3)])
    assert (quiet.first_offset, len(quiet)) == (0, 1)
    assert (busy.first_offset, len(busy)) == (1, 3)
    busy.append(EPOCH, INCARNATION, [batch(4)])
    assert len(quiet) == 0
    assert quiet.read(0, 10, FAR) is None


class TailCaches(RuleBasedStateMachine):
    """Two caches under one budget beside two full lists of batches."""

    def __init__(self) -> None:
        super().__init__()
        self.budget = TailCacheBudget(300)
        self.caches = [TailCache(self.budget), TailCache(self.budget)]
        self.appended: list[list[TailBatch]] = [[], []]
        self.ends = [0, 0]
        for cache in self.caches:
            cache.bind(EPOCH, INCARNATION, 0)

    @rule(which=st.integers(0, 1), shapes=st.lists(st.tuples(st.integers(1, 5), st.integers(5, 120)), max_size=40))
    def append(self, which: int, shapes: list[tuple[int, int]]) -> None:
        batches = []
        for count, size_bytes in shapes:
            batches.append(batch(self.ends[which], count, size_bytes))
            self.ends[which] += count
        self.appended[which] += batches
        self.caches[which].append(EPOCH, INCARNATION, batches)

    @rule(which=st.integers(0, 1))
    def bind(self, which: int) -> None:
        self.caches[which].bind(EPOCH, INCARNATION, self.ends[which])

    @rule(
        which=st.integers(0, 1),
        back=st.integers(0, 60),
        max_bytes=st.integers(0, 400),
        above=st.integers(-20, 5),
    )
    def read(self, which: int, back: int, max_bytes: int, above: int) -> None:
        offset = max(self.ends[which] - back, 0)
        bound = self.ends[which] + above
        read = self.caches[which].read(offset, max_bytes, bound)
        if read is None:
            assert offset < self.caches[which].first_offset
            return
        expected = []
        for appended in self.appended[which]:
            if appended.next_offset <= offset:
                continue
            if appended.next_offset > bound:
                break
            if expected and sum(b.size_bytes for b in expected) + appended.size_bytes > max_bytes:
                break
            expected.append(appended)
        assert b"".join(read.pieces) == b"".join(piece for b in expected for piece in b.pieces)
        assert read.next_offset == (expected[-1].next_offset if expected else offset)

    @invariant()
    def within_the_budget(self) -> None:
        assert self.budget.used_bytes == sum(cache.size_bytes for cache in self.caches) <= self.budget.max_bytes

    @invariant()
    def ends_at_the_log_end(self) -> None:
        assert [cache.next_offset for cache in self.caches] == self.ends


TestTailCaches = TailCaches.TestCase
TestTailCaches.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


@given(st.lists(st.integers(1, 30), min_size=65, max_size=300))
@settings(max_examples=20, deadline=None)
def test_many_small_batches_are_compacted(sizes: list[int]) -> None:
    cache = bound_cache(max_bytes=100)
    for offset, size_bytes in enumerate(sizes):
        cache.append(EPOCH, INCARNATION, [batch(offset, 1, size_bytes)])
        assert content(cache.read(offset, 1000, FAR)) == bytes([offset % 251]) * size_bytes
        assert cache.size_bytes <= 100
