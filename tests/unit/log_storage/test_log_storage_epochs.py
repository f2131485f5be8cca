"""RULES 3.2, 4.2, 4.3: where epochs start, and where two logs part."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.model.leader_epochs import NO_EPOCH, NO_EPOCH_END, EpochEnd, LeaderEpochCache


def test_an_epoch_is_assigned_once() -> None:
    cache = LeaderEpochCache()
    assert cache.assign(1, 0)
    assert not cache.assign(1, 10)
    assert cache.assign(4, 10)
    assert cache.entries == ((1, 0), (4, 10))
    assert cache.latest_epoch == 4


def test_an_epoch_that_wrote_nothing_is_replaced() -> None:
    cache = LeaderEpochCache([(1, 0), (2, 10)])
    cache.assign(3, 10)
    assert cache.entries == ((1, 0), (3, 10))


def test_epochs_never_decrease() -> None:
    with pytest.raises(ValueError, match="leader epoch 2"):
        LeaderEpochCache([(3, 0)]).assign(2, 10)
    with pytest.raises(ValueError, match="out of order"):
        LeaderEpochCache([(1, 5), (2, 5)])


def test_the_end_of_an_epoch_is_the_start_of_the_next_greater_one() -> None:
    cache = LeaderEpochCache([(1, 0), (4, 10), (6, 30)])
    assert cache.end_offset_for(1, 50) == EpochEnd(1, 10)
    assert cache.end_offset_for(3, 50) == EpochEnd(1, 10)
    assert cache.end_offset_for(5, 50) == EpochEnd(4, 30)
    assert cache.end_offset_for(9, 50) == EpochEnd(6, 50)
    assert cache.end_offset_for(0, 50) == NO_EPOCH_END


def test_a_follower_agrees_or_hears_where_it_parted() -> None:
    leader = LeaderEpochCache([(1, 0), (4, 10)])
    assert leader.diverging(4, 30, 50) is None
    assert leader.diverging(1, 10, 50) is None
    assert leader.diverging(1, 12, 50) == EpochEnd(1, 10)
    assert leader.diverging(3, 12, 50) == EpochEnd(1, 10)
    assert leader.diverging(0, 5, 50) == NO_EPOCH_END
    assert leader.diverging(NO_EPOCH, 0, 50) is None  # a log without batches agrees


def test_the_epoch_of_the_last_batch_ignores_epochs_without_batches() -> None:
    cache = LeaderEpochCache([(1, 0), (4, 10)])
    assert cache.last_epoch_below(10) == 1
    assert cache.last_epoch_below(11) == 4
    assert cache.last_epoch_below(0) == NO_EPOCH


def test_truncation_at_either_end() -> None:
    cache = LeaderEpochCache([(1, 0), (4, 10), (6, 30)])
    assert not cache.truncate_from_end(40)
    assert cache.truncate_from_end(30)
    assert cache.entries == ((1, 0), (4, 10))
    assert not cache.truncate_from_start(9)
    assert cache.truncate_from_start(10)
    assert cache.entries == ((4, 10),)
    assert not cache.truncate_from_start(99)  # the epoch that an emptied log had reached stays
    assert cache.start_of(4) == 10
    assert cache.start_of(1) is None


@st.composite
def logs(draw: st.DrawFn) -> list[int]:
    """A log as the list of its records' epochs."""
    return sorted(draw(st.lists(st.integers(0, 6), max_size=30)))


def cache_of(log: list[int]) -> LeaderEpochCache:
    cache = LeaderEpochCache()
    for offset, epoch in enumerate(log):
        cache.assign(epoch, offset)
    return cache


@given(logs(), st.integers(0, 30))
def test_the_cache_tells_the_epoch_of_every_offset(log: list[int], cut: int) -> None:
    cache = cache_of(log)
    assert [cache.last_epoch_below(offset + 1) for offset in range(len(log))] == log
    cache.truncate_from_end(cut)
    assert cache == cache_of(log[:cut])


@given(logs(), st.integers(0, 30), st.lists(st.integers(0, 6), max_size=10))
def test_rounds_of_divergence_end_in_a_common_prefix(leader: list[int], common: int, more: list[int]) -> None:
    """RULES 4.3 on two logs that share a prefix; each epoch has one author, so behind it they share no epoch."""
    prefix = leader[:common]
    shared = set(leader[common:])
    follower = prefix + sorted(epoch for epoch in more if epoch not in shared and epoch >= max(prefix, default=0))
    leader_cache, follower_cache = cache_of(leader), cache_of(follower)
    for _ in range(len(follower) + 1):
        end = len(follower)
        answer = leader_cache.diverging(follower_cache.last_epoch_below(end), end, len(leader))
        if answer is None:
            break
        own = follower_cache.end_offset_for(answer.leader_epoch, end)
        cut = 0 if NO_EPOCH_END in (answer, own) else min(answer.end_offset, own.end_offset)
        assert cut < end
        follower = follower[:cut]
        follower_cache.truncate_from_end(cut)
    else:
        pytest.fail("no agreement")
    assert follower == leader[: len(follower)]
    assert len(follower) >= len(prefix)  # nothing in common was cut
