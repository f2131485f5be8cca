"""Which log is cleaned next, which part of it, and which segments become one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from highwater.log_storage.compaction.cleaner_selection import (
    CleanableRange,
    Compaction,
    LogToClean,
    SegmentFacts,
    SegmentSizes,
    cleanable_range,
    filthiest,
    group_segments,
    log_to_clean,
)
from highwater.log_storage.log_manager.cleaning_state import Cleaning, CleaningState
from highwater.log_storage.throttle import Throttle

NOW = 1_000_000
FOREVER = 2**63 - 1
# Four segments of 100 offsets and bytes each; the last is active.
SEGMENTS = [SegmentFacts(base, 100, NOW - 1000 + base, NOW - 1000 + base - 90) for base in (0, 100, 200, 300)]


def cleanable(cleaned_to: int | None = None, start: int = 0, stable: int = 400, lag: int = 0) -> CleanableRange:
    return cleanable_range(
        SEGMENTS,
        cleaned_to=cleaned_to,
        log_start_offset=start,
        stable_offset=stable,
        min_lag_ms=lag,
        wall_clock_ms=NOW,
    )


def test_the_dirty_part_ends_at_the_active_segment() -> None:
    assert cleanable() == (0, 300)
    assert cleanable(cleaned_to=150) == (150, 300)
    assert cleanable(cleaned_to=300) == (300, 300)


@pytest.mark.parametrize(("stable", "end"), [(400, 300), (300, 300), (299, 200), (200, 200), (50, 0)])
def test_nothing_is_cleaned_beyond_what_is_committed(stable: int, end: int) -> None:
    assert cleanable(stable=stable) == (0, end)


def test_a_checkpoint_outside_the_log_does_not_count() -> None:
    assert cleanable(cleaned_to=301) == (0, 300)
    assert cleanable(cleaned_to=50, start=120) == (120, 300)
    assert cleanable(cleaned_to=150, stable=120) == (150, 150)


def test_young_segments_stay() -> None:
    assert cleanable(lag=1) == (0, 300)
    assert cleanable(lag=801) == (0, 200)  # the third one's newest record is 800 ms old
    assert cleanable(lag=2000) == (0, 0)


def seen(**changes: int | None) -> LogToClean[str]:
    compaction = Compaction(0.5, changes.pop("min_lag_ms", 0) or 0, changes.pop("max_lag_ms", FOREVER) or FOREVER)
    facts = {"cleaned_to": None, "log_start_offset": 0, "stable_offset": 400, "wall_clock_ms": NOW} | changes
    return log_to_clean("log", SEGMENTS, compaction, **facts)  # type: ignore[arg-type]


def test_the_dirty_ratio_is_of_whole_segments_and_without_the_active_one() -> None:
    assert (seen().clean_bytes, seen().cleanable_bytes, seen().ratio) == (0, 300, 1.0)
    partly = seen(cleaned_to=150)
    assert (partly.clean_bytes, partly.cleanable_bytes) == (100, 200)
    clean = seen(cleaned_to=300)
    assert (clean.clean_bytes, clean.cleanable_bytes, clean.ratio, clean.due) == (300, 0, 0.0, False)
    assert seen(stable_offset=0).ratio == 0.0


def test_a_log_is_due_above_the_ratio() -> None:
    assert seen(cleaned_to=100).due  # 2/3
    assert not seen(cleaned_to=200).due  # 1/3


def test_a_log_whose_dirty_records_have_waited_too_long_is_due_however_clean() -> None:
    waiting = seen(cleaned_to=200, max_lag_ms=889)  # the third segment's first record is 890 ms old
    assert (waiting.overdue_ms, waiting.due) == (1, True)
    assert not seen(cleaned_to=200, max_lag_ms=890).due
    assert not seen(cleaned_to=300, max_lag_ms=1).due


def test_the_filthiest_goes_first() -> None:
    logs = [LogToClean(str(clean), CleanableRange(0, 1), clean, 100, 0.2, 0) for clean in (100, 10, 300, 700)]
    assert filthiest(logs) is logs[1]
    assert filthiest(logs[3:]) is None
    assert filthiest([]) is None


SIZES = st.lists(
    st.tuples(st.integers(1, 2**31), st.integers(0, 120), st.integers(0, 120), st.integers(0, 120)), max_size=12
)


@settings(deadline=None)
@given(SIZES, st.integers(1, 200), st.integers(1, 200))
def test_groups_are_runs_within_the_limits(
    given_sizes: list[tuple[int, int, int, int]], max_bytes: int, max_index_bytes: int
) -> None:
    segments, base = [], 0
    for offsets, size, index, time_index in given_sizes:
        segments.append(SegmentSizes(base, base + offsets, size, index, time_index))
        base += offsets
    groups = group_segments(segments, max_bytes, max_index_bytes)
    assert [segment for group in groups for segment in group] == segments
    for group in groups:
        assert group
        if len(group) > 1:
            assert sum(segment.size_bytes for segment in group) <= max_bytes
            assert sum(segment.index_bytes for segment in group) <= max_index_bytes
            assert sum(segment.time_index_bytes for segment in group) <= max_index_bytes
            assert group[-1].next_offset - 1 - group[0].base_offset < 2**31


@pytest.mark.parametrize(("end", "groups"), [(2**31, [2]), (2**31 + 1, [1, 1])])
def test_no_offset_of_a_group_is_further_than_31_bits_from_its_first(end: int, groups: list[int]) -> None:
    """However little is left of them: an index entry could not tell it."""
    segments = [SegmentSizes(0, 10, 40, 8, 12), SegmentSizes(10, end, 40, 8, 12)]
    assert [len(group) for group in group_segments(segments, 1 << 30, 1 << 20)] == groups


def test_small_segments_become_one() -> None:
    segments = [SegmentSizes(base, base + 10, 40, 8, 12) for base in range(0, 100, 10)]
    assert [len(group) for group in group_segments(segments, 100, 1000)] == [2, 2, 2, 2, 2]
    assert [len(group) for group in group_segments(segments, 1000, 36)] == [3, 3, 3, 1]
    assert [len(group) for group in group_segments(segments, 1000, 1000)] == [10]


def test_the_states_of_a_cleaning() -> None:
    cleaning = Cleaning()
    assert cleaning.begin()
    assert cleaning.state is CleaningState.IN_PROGRESS
    assert not cleaning.begin()
    cleaning.pause()
    cleaning.pause()
    assert cleaning.state is CleaningState.ABORTED
    cleaning.end()
    assert cleaning.state is CleaningState.PAUSED
    cleaning.resume()
    assert not cleaning.begin()  # the other pause holds
    cleaning.resume()
    assert cleaning.state is CleaningState.NONE
    assert cleaning.begin()
    cleaning.end()
    assert cleaning.state is CleaningState.NONE


def test_what_has_been_moved_is_paid_for_and_rest_is_not_saved_up() -> None:
    throttle = Throttle(1000)
    assert throttle.delay_s(500, 100.0) == pytest.approx(0.5)
    assert throttle.delay_s(500, 100.5) == pytest.approx(0.5)
    assert throttle.delay_s(100, 900.0) == pytest.approx(0.1)
    assert Throttle(float("inf")).delay_s(1 << 40, 1.0) == 0
