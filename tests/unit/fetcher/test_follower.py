"""One followed partition: a test for each rule of RULES 4 that it holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from highwater.errors import ErrorCode
from highwater.fetcher.follower.actions import (
    Action,
    Append,
    Delayed,
    DivergingEpoch,
    Fence,
    FenceAnswer,
    FetchAnswer,
    FetchedRecords,
    FetchPosition,
    Followed,
    LogAnswer,
    TruncateFullyAndStartAt,
    TruncateTo,
    WentOffline,
)
from highwater.fetcher.follower.follower import Follower, FollowerState
from highwater.model.leader_epochs import EpochEntry
from highwater.model.log_state import LogState
from highwater.model.partition import PartitionKey

KEY = PartitionKey(bytes(range(16)), 0)
FOLLOWED = Followed(leader=1, leader_epoch=5, unclean_epoch=-1, log_storage_incarnation="a")
RETRY_MS = 1_000


class Driven:
    """A follower whose log-storage answers are written out by the test."""

    def __init__(self, log: LogState | None = None, followed: Followed = FOLLOWED) -> None:
        self.follower = Follower(KEY, "flights", RETRY_MS)
        self.now_ms = 0
        self.actions: list[Action] = self.follower.follow(followed, 0)
        if log is not None:
            self.fence(log)

    @property
    def fence_action(self) -> Fence:
        (action,) = self.actions
        assert isinstance(action, Fence)
        return action

    @property
    def position(self) -> FetchPosition:
        position = self.follower.position()
        assert position is not None
        return position

    def fence(self, log: LogState, *epochs: tuple[int, int], incarnation: str = "a") -> list[Action]:
        entries = tuple(EpochEntry(*epoch) for epoch in epochs)
        answer = FenceAnswer(self.fence_action.generation, incarnation, log, entries)
        return self._took(self.follower.fenced(answer, self.now_ms))

    def fence_error(self, error: ErrorCode) -> list[Action]:
        answer = FenceAnswer(self.fence_action.generation, "a", None, error=error, message="no")
        return self._took(self.follower.fenced(answer, self.now_ms))

    def respond(self, *, position: FetchPosition | None = None, **fields: object) -> list[Action]:
        answer = FetchAnswer(position or self.position, high_watermark=0, log_start_offset=0, log_end_offset=0)
        return self._took(self.follower.fetched(replace(answer, **fields), self.now_ms))  # type: ignore[arg-type]

    def data(self, base: int, end: int, epoch: int = 5, **fields: object) -> list[Action]:
        return self.respond(fetched=FetchedRecords(base, end, epoch, b"batches"), **fields)

    def append(self, log: LogState | None, error: ErrorCode = ErrorCode.NONE, incarnation: str = "a") -> list[Action]:
        answer = LogAnswer(self.follower.generation, incarnation, log, error, "")
        return self._took(self.follower.appended(answer, self.now_ms))

    def truncate(self, log: LogState | None, error: ErrorCode = ErrorCode.NONE) -> list[Action]:
        answer = LogAnswer(self.follower.generation, "a", log, error, "refused")
        return self._took(self.follower.truncated(answer, self.now_ms))

    def _took(self, actions: list[Action]) -> list[Action]:
        self.actions = actions
        return actions


def log(end: int, epoch: int = 5, start: int = 0, high_watermark: int = 0) -> LogState:
    return LogState(end, epoch, start, high_watermark)


# 4.1: where the acked offset comes from


def test_nothing_is_fetched_before_log_storage_has_answered() -> None:
    driven = Driven()
    assert driven.fence_action.leader_epoch == 5
    assert driven.follower.position() is None
    assert driven.follower.acked_offset is None


def test_the_fence_gives_the_position() -> None:
    driven = Driven(log(10, epoch=4, start=2))
    assert driven.follower.state is FollowerState.FETCHING
    assert driven.position == FetchPosition(
        driven.follower.generation, 5, fetch_offset=10, acked_offset=10, last_epoch=4, log_start_offset=2
    )


def test_the_fetch_offset_runs_ahead_and_the_acked_offset_follows_the_answer() -> None:
    driven = Driven(log(10, epoch=4))
    (append,) = driven.data(10, 15, high_watermark=12, log_start_offset=3)
    assert append == Append(driven.follower.generation, 5, 10, b"batches", 12, 3)
    assert (driven.position.fetch_offset, driven.position.acked_offset) == (15, 10)
    assert driven.position.last_epoch == 5
    assert driven.append(log(15)) == []
    assert (driven.position.fetch_offset, driven.position.acked_offset) == (15, 15)


def test_appends_are_pipelined_and_acked_one_by_one() -> None:
    driven = Driven(log(10))
    driven.data(10, 15)
    driven.data(15, 20)
    driven.append(log(15))
    assert (driven.position.fetch_offset, driven.position.acked_offset) == (20, 15)
    driven.append(log(20))
    assert driven.position.acked_offset == 20


def test_an_acked_offset_does_not_outlive_its_leader_epoch() -> None:
    driven = Driven(log(10))
    driven.actions = driven.follower.follow(replace(FOLLOWED, leader=2, leader_epoch=6), 0)
    assert driven.fence_action.leader_epoch == 6
    assert driven.follower.acked_offset is None


def test_an_acked_offset_does_not_outlive_a_truncation() -> None:
    driven = Driven(log(10, epoch=4))
    driven.data(10, 15, epoch=4)
    late = LogAnswer(driven.follower.generation, "a", log(15, epoch=4))
    driven.respond(diverging=DivergingEpoch(4, 8))
    assert driven.follower.appended(late, 0) == []  # it is not told apart from an append that came after the cut
    assert driven.follower.acked_offset is None
    driven.fence(log(15, epoch=4), (4, 0))
    assert isinstance(driven.actions[0], TruncateTo)
    driven.truncate(log(8, epoch=4))
    assert driven.position.acked_offset == 8


# 4.3: divergence


def diverged(
    end: int, epoch: int, *epochs: tuple[int, int], leader: tuple[int, int], high_watermark: int = 0
) -> Driven:
    driven = Driven(log(end, epoch, high_watermark=high_watermark))
    driven.respond(diverging=DivergingEpoch(*leader))
    assert driven.follower.state is FollowerState.TRUNCATING
    assert driven.follower.position() is None
    driven.fence(log(end, epoch, high_watermark=high_watermark), *epochs)
    return driven


@pytest.mark.parametrize(
    ("own_epochs", "leader", "cut"),
    [
        (((1, 0), (3, 6)), (3, 8), 8),  # the leader's end of an epoch that both have
        (((1, 0), (3, 6)), (2, 9), 6),  # our end of the last epoch that the leader may have
        (((1, 0), (3, 6)), (1, 4), 4),
        (((1, 0), (3, 6)), (2, 4), 4),
    ],
)
def test_divergence_is_cut_at_the_smaller_end(
    own_epochs: tuple[tuple[int, int], ...], leader: tuple[int, int], cut: int
) -> None:
    driven = diverged(10, 3, *own_epochs, leader=leader)
    assert driven.actions == [TruncateTo(driven.follower.generation, 5, cut, -1, 10, 3)]


def test_truncation_goes_on_with_another_fetch_until_the_leader_agrees() -> None:
    driven = diverged(10, 3, (1, 0), (3, 6), leader=(2, 9))
    driven.truncate(log(6, epoch=1))
    assert (driven.position.fetch_offset, driven.position.last_epoch) == (6, 1)
    driven.respond(diverging=DivergingEpoch(1, 4))
    driven.fence(log(6, epoch=1), (1, 0))
    assert driven.actions == [TruncateTo(driven.follower.generation, 5, 4, -1, 6, 1)]
    driven.truncate(log(4, epoch=1))
    driven.data(4, 9)
    assert driven.position.fetch_offset == 9


def test_without_a_common_epoch_the_log_starts_anew_at_the_leaders_log_start() -> None:
    driven = Driven(log(110, epoch=3, start=90))
    driven.respond(diverging=DivergingEpoch(-1, 100), log_start_offset=100)
    driven.fence(log(110, epoch=3, start=90), (3, 90))
    assert driven.actions == [TruncateFullyAndStartAt(driven.follower.generation, 5, 100, -1, 110, 3)]


def test_a_cut_below_the_own_log_start_is_a_full_one() -> None:
    driven = Driven(log(110, epoch=3, start=90))
    driven.respond(diverging=DivergingEpoch(2, 80))
    driven.fence(log(110, epoch=3, start=90), (3, 90))
    assert driven.actions == [TruncateFullyAndStartAt(driven.follower.generation, 5, 80, -1, 110, 3)]


def test_a_divergence_about_another_offset_is_of_no_account() -> None:
    """The answer was for offset 15; the append of 10..15 was lost, so the log ends at 10."""
    driven = Driven(log(10, epoch=4))
    driven.data(10, 15, epoch=5)
    driven.respond(diverging=DivergingEpoch(4, 8))
    assert driven.fence(log(10, epoch=4), (4, 0)) == []
    assert driven.position.fetch_offset == 10


def test_a_truncation_that_changes_nothing_is_not_tried_in_a_circle() -> None:
    driven = diverged(10, 3, (3, 0), leader=(3, 10))
    driven.truncate(log(10, epoch=3))
    assert driven.follower.state is FollowerState.DELAYED


def test_a_late_truncation_answer_is_ignored() -> None:
    driven = diverged(10, 3, (3, 0), leader=(3, 8))
    old = driven.follower.generation
    driven.actions = driven.follower.follow(replace(FOLLOWED, leader_epoch=6), 0)
    assert driven.follower.truncated(LogAnswer(old, "a", log(8, 3)), 0) == []
    assert driven.follower.acked_offset is None


# 4.4: the high watermark is a floor


def test_a_cut_below_the_own_high_watermark_takes_the_replica_offline() -> None:
    driven = diverged(10, 3, (3, 0), leader=(3, 8), high_watermark=9)
    (action,) = driven.actions
    assert isinstance(action, WentOffline)
    assert "below its high watermark 9" in action.message
    assert driven.follower.state is FollowerState.OFFLINE
    assert driven.follower.error is ErrorCode.TRUNCATION_BELOW_HIGH_WATERMARK
    assert driven.follower.position() is None
    assert driven.follower.tick(1 << 40) == []
    assert driven.follower.follow(FOLLOWED, 0) == []  # the same again changes nothing


def test_an_unclean_election_above_the_last_epoch_permits_it() -> None:
    driven = Driven(log(10, 3, high_watermark=9), replace(FOLLOWED, unclean_epoch=4))
    driven.respond(diverging=DivergingEpoch(3, 8))
    driven.fence(log(10, 3, high_watermark=9), (3, 0))
    assert driven.actions == [TruncateTo(driven.follower.generation, 5, 8, 4, 10, 3)]


def test_an_unclean_election_that_the_log_has_seen_does_not() -> None:
    driven = Driven(log(10, 3, high_watermark=9), replace(FOLLOWED, unclean_epoch=3))
    driven.respond(diverging=DivergingEpoch(3, 8))
    driven.fence(log(10, 3, high_watermark=9), (3, 0))
    assert driven.follower.state is FollowerState.OFFLINE


def test_log_storages_refusal_takes_it_offline_too() -> None:
    driven = diverged(10, 3, (3, 0), leader=(3, 8))
    (action,) = driven.truncate(None, ErrorCode.TRUNCATION_BELOW_HIGH_WATERMARK)
    assert isinstance(action, WentOffline)
    assert driven.follower.state is FollowerState.OFFLINE


def test_a_new_leader_epoch_gives_an_offline_replica_another_chance() -> None:
    driven = diverged(10, 3, (3, 0), leader=(3, 8), high_watermark=9)
    driven.actions = driven.follower.follow(replace(FOLLOWED, leader_epoch=6, unclean_epoch=6), 0)
    assert driven.fence_action.leader_epoch == 6
    assert driven.follower.error is ErrorCode.NONE


def out_of_range(end: int, leader_start: int, leader_end: int, high_watermark: int = 0) -> Driven:
    state = log(end, 3, start=5, high_watermark=high_watermark)
    driven = Driven(state)
    driven.respond(error=ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=leader_start, log_end_offset=leader_end)
    driven.fence(state, (3, 5))
    return driven


def test_behind_the_leaders_log_start_the_log_starts_anew() -> None:
    driven = out_of_range(10, leader_start=20, leader_end=30, high_watermark=10)
    assert driven.actions == [TruncateFullyAndStartAt(driven.follower.generation, 5, 20, -1, 10, 3)]
    driven.truncate(log(20, epoch=-1, start=20, high_watermark=20))
    assert (driven.position.fetch_offset, driven.position.last_epoch) == (20, -1)


def test_ahead_of_the_leaders_log_end_it_is_cut_there() -> None:
    driven = out_of_range(10, leader_start=0, leader_end=8)
    assert driven.actions == [TruncateTo(driven.follower.generation, 5, 8, -1, 10, 3)]


def test_ahead_of_the_leaders_log_end_by_what_was_committed_it_goes_offline() -> None:
    driven = out_of_range(10, leader_start=0, leader_end=8, high_watermark=9)
    assert driven.follower.state is FollowerState.OFFLINE


def test_a_leader_that_ends_below_our_log_start_means_a_full_cut() -> None:
    driven = out_of_range(10, leader_start=0, leader_end=2)
    assert driven.actions == [TruncateFullyAndStartAt(driven.follower.generation, 5, 2, -1, 10, 3)]


def test_out_of_a_range_that_holds_the_offset_is_an_error() -> None:
    driven = out_of_range(10, leader_start=0, leader_end=30)
    assert driven.actions == [
        Delayed(ErrorCode.OFFSET_OUT_OF_RANGE, driven.follower.error_message, retry_in_ms=RETRY_MS)
    ]


# 4.5: what is in flight


def test_an_offset_mismatch_drops_what_is_in_flight_and_reads_the_log_end_again() -> None:
    driven = Driven(log(10))
    driven.data(10, 15)
    driven.data(15, 20)
    old = driven.follower.generation
    driven.append(None, ErrorCode.OFFSET_MISMATCH)
    assert driven.follower.appended(LogAnswer(old, "a", log(20)), 0) == []  # of the second append
    driven.fence(log(12))
    assert (driven.position.fetch_offset, driven.position.acked_offset) == (12, 12)


def test_mismatches_in_a_row_are_not_tried_without_a_pause() -> None:
    driven = Driven(log(10))
    pauses = []
    for _ in range(6):
        driven.data(10, 15)
        driven.append(None, ErrorCode.OFFSET_MISMATCH)
        if isinstance(driven.actions[0], Delayed):
            pauses.append(driven.actions[0].retry_in_ms)
            driven.now_ms += RETRY_MS
            driven.actions = driven.follower.tick(driven.now_ms)
        driven.fence(log(10))
    assert pauses == [200, 400, 800, 1_000, 1_000]


def test_an_append_that_does_not_end_where_it_should_is_a_mismatch() -> None:
    driven = Driven(log(10))
    driven.data(10, 15)
    driven.append(log(13))
    assert driven.fence_action.leader_epoch == 5
    assert driven.follower.acked_offset is None


def test_a_new_incarnation_in_following_drops_all_and_fences_anew() -> None:
    driven = Driven(log(10))
    driven.data(10, 15)
    old = driven.follower.generation
    driven.actions = driven.follower.follow(replace(FOLLOWED, log_storage_incarnation="b"), 0)
    assert driven.follower.appended(LogAnswer(old, "a", log(15)), 0) == []
    driven.fence(log(10), incarnation="b")
    assert driven.position.acked_offset == 10


@pytest.mark.parametrize("through", ["fence", "append"])
def test_an_incarnation_other_than_the_registered_one_waits_for_following(through: str) -> None:
    driven = Driven()
    if through == "fence":
        driven.fence(log(10), incarnation="b")
    else:
        driven.fence(log(10))
        driven.data(10, 15)
        driven.append(log(15), incarnation="b")
    assert driven.follower.state is FollowerState.DELAYED
    assert driven.follower.acked_offset is None
    driven.actions = driven.follower.follow(replace(FOLLOWED, log_storage_incarnation="b"), 0)
    driven.fence(log(15), incarnation="b")
    assert driven.position.acked_offset == 15


def test_an_append_of_unknown_outcome_is_settled_by_a_fence() -> None:
    driven = Driven(log(10))
    driven.data(10, 15)
    (delayed,) = driven.follower.outcome_unknown(driven.follower.generation, "broken", 0)
    assert delayed == Delayed(ErrorCode.NETWORK_EXCEPTION, "broken", 100)
    assert driven.follower.tick(99) == []
    driven.actions = driven.follower.tick(100)
    driven.fence(log(15))
    assert driven.position.acked_offset == 15


def test_an_outcome_of_an_earlier_generation_is_ignored() -> None:
    driven = Driven(log(10))
    assert driven.follower.outcome_unknown(driven.follower.generation - 1, "broken", 0) == []
    assert driven.follower.state is FollowerState.FETCHING


# 4.6: high watermark and log start


def test_a_response_without_data_carries_the_high_watermark_on() -> None:
    driven = Driven(log(10, high_watermark=4))
    (append,) = driven.respond(high_watermark=8)
    assert append == Append(driven.follower.generation, 5, 10, None, 8, 0)
    driven.append(log(10, high_watermark=8))
    assert driven.respond(high_watermark=8) == []


def test_a_high_watermark_above_the_own_log_end_is_taken_once() -> None:
    driven = Driven(log(10, high_watermark=4))
    assert len(driven.respond(high_watermark=50)) == 1
    driven.append(log(10, high_watermark=10))
    assert driven.respond(high_watermark=60) == []


def test_the_log_start_rises_to_the_leaders() -> None:
    driven = Driven(log(10, high_watermark=8))
    (append,) = driven.respond(high_watermark=8, log_start_offset=6)
    assert isinstance(append, Append)
    assert append.leader_log_start_offset == 6
    driven.append(log(10, start=6, high_watermark=8))
    assert driven.position.log_start_offset == 6


def test_marks_wait_for_an_append_that_is_under_way() -> None:
    driven = Driven(log(10))
    driven.data(10, 15)
    assert driven.respond(high_watermark=12) == []
    driven.append(log(15))
    assert len(driven.respond(high_watermark=12)) == 1


def test_marks_are_not_taken_from_an_error_or_a_divergence() -> None:
    driven = Driven(log(10, epoch=3))
    (delayed,) = driven.respond(error=ErrorCode.NOT_LEADER_OR_FOLLOWER, high_watermark=9)
    assert isinstance(delayed, Delayed)
    driven = Driven(log(10, epoch=3))
    (fence,) = driven.respond(diverging=DivergingEpoch(3, 8), high_watermark=9)
    assert isinstance(fence, Fence)


# 4.7: which responses count, and back-off


def test_a_response_for_another_offset_is_dropped() -> None:
    driven = Driven(log(10))
    asked = driven.position
    driven.data(10, 15)
    assert driven.data(10, 15, position=asked) == []
    assert driven.position.fetch_offset == 15


def test_a_response_of_an_earlier_generation_is_dropped() -> None:
    driven = Driven(log(10))
    asked = driven.position
    driven.data(10, 15)
    driven.append(None, ErrorCode.OFFSET_MISMATCH)
    driven.fence(log(10))
    assert driven.data(10, 15, position=asked) == []
    assert driven.position.fetch_offset == 10


def test_a_response_while_delayed_is_dropped() -> None:
    driven = Driven(log(10))
    asked = driven.position
    driven.respond(error=ErrorCode.REPLICA_NOT_ASSIGNED)
    assert driven.data(10, 15, position=asked) == []


@pytest.mark.parametrize(
    "error", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH]
)
def test_leadership_in_motion_is_asked_about_again_soon(error: ErrorCode) -> None:
    driven = Driven(log(10))
    pauses = []
    for _ in range(5):
        (delayed,) = driven.respond(error=error)
        assert isinstance(delayed, Delayed)
        pauses.append(delayed.retry_in_ms)
        driven.now_ms += delayed.retry_in_ms
        assert driven.follower.tick(driven.now_ms - 1) == []
        assert driven.follower.tick(driven.now_ms) == []
        assert driven.position.acked_offset == 10  # the log's state is still known
    assert pauses == [100, 200, 400, 800, 1_000]
    driven.respond()
    assert driven.respond(error=error) == [Delayed(error, "", 100)]  # a success starts the pauses over


def test_other_errors_back_off_for_the_whole_interval() -> None:
    driven = Driven(log(10))
    assert driven.respond(error=ErrorCode.LOG_STORAGE_ERROR) == [Delayed(ErrorCode.LOG_STORAGE_ERROR, "", RETRY_MS)]
    assert driven.follower.retry_at_ms == RETRY_MS


def test_following_ends_a_back_off() -> None:
    driven = Driven(log(10))
    driven.respond(error=ErrorCode.UNKNOWN_LEADER_EPOCH)
    assert driven.follower.follow(FOLLOWED, 1) == []
    assert driven.position.fetch_offset == 10
    assert driven.follower.retry_at_ms is None


def test_an_append_under_way_is_answered_while_delayed() -> None:
    driven = Driven(log(10))
    driven.data(10, 15)
    driven.respond(error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    driven.append(log(15))
    driven.follower.tick(100)
    assert (driven.position.fetch_offset, driven.position.acked_offset) == (15, 15)


@pytest.mark.parametrize("error", [ErrorCode.STALE_FENCE, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.LOG_STORAGE_ERROR])
def test_a_refused_fence_waits(error: ErrorCode) -> None:
    driven = Driven()
    assert driven.fence_error(error) == [Delayed(error, "no", RETRY_MS)]
    assert driven.follower.position() is None
    driven.actions = driven.follower.follow(FOLLOWED, 1)
    driven.fence(log(10))
    assert driven.follower.state is FollowerState.FETCHING


def test_corrupt_data_is_fetched_again_after_a_pause() -> None:
    driven = Driven(log(10))
    driven.data(10, 15)
    driven.append(None, ErrorCode.CORRUPT_MESSAGE)
    assert driven.actions == [Delayed(ErrorCode.CORRUPT_MESSAGE, "", RETRY_MS)]
    driven.actions = driven.follower.tick(RETRY_MS)
    driven.fence(log(10))
    assert driven.follower.error is ErrorCode.CORRUPT_MESSAGE  # until something has gone well
    driven.data(10, 15)
    driven.append(log(15))
    driven.respond()
    assert driven.follower.error is ErrorCode.NONE


def test_batches_below_the_fetch_offset_are_refused() -> None:
    driven = Driven(log(10))
    (delayed,) = driven.data(8, 15)
    assert isinstance(delayed, Delayed)
    assert delayed.error is ErrorCode.CORRUPT_MESSAGE


def test_a_log_that_was_started_inside_a_batch_takes_it_whole() -> None:
    """DeleteRecords moved the leader's log start to 25, inside its batch 20..29."""
    driven = Driven(log(25, epoch=-1, start=25, high_watermark=25))
    (append,) = driven.data(20, 30, log_start_offset=25, high_watermark=30)
    assert isinstance(append, Append)
    assert (append.expected_offset, append.leader_log_start_offset) == (25, 25)
    driven.append(log(30, start=25, high_watermark=30))
    assert driven.position.acked_offset == 30


# 4.9: moving to another fetcher


def test_a_moved_follower_keeps_its_offsets() -> None:
    driven = Driven(log(10))
    driven.data(10, 15)
    driven.append(log(15))
    assert driven.follower.moved() == []
    assert (driven.position.fetch_offset, driven.position.acked_offset) == (15, 15)


def test_a_moved_follower_settles_what_was_under_way() -> None:
    driven = Driven(log(10))
    driven.data(10, 15)
    driven.actions = driven.follower.moved()
    driven.fence(log(15))
    assert driven.position.acked_offset == 15


def test_leader_has_more_tells_whether_a_response_left_data_behind() -> None:
    driven = Driven(log(10))
    driven.data(10, 15, log_end_offset=20)
    assert driven.follower.leader_has_more
    driven.data(15, 20, log_end_offset=20)
    assert not driven.follower.leader_has_more


def test_lag_is_counted_from_the_leaders_high_watermark() -> None:
    driven = Driven(log(10))
    driven.respond(high_watermark=25)
    assert driven.follower.lag == 15
