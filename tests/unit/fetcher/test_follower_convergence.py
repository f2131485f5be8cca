"""Whatever two logs share, the follower ends with the leader's log, or offline where that would drop committed data."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from highwater.errors import ErrorCode
from highwater.fetcher.follower.actions import (
    Action,
    Append,
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
)
from highwater.fetcher.follower.follower import Follower, FollowerState
from highwater.model.leader_epochs import EpochEntry
from highwater.model.log_state import LogState
from highwater.model.partition import PartitionKey


@dataclass
class Log:
    """One record a batch; `epochs[i]` is the leader epoch of offset `start + i`."""

    epochs: list[int]
    start: int = 0
    high_watermark: int = 0

    @property
    def end(self) -> int:
        return self.start + len(self.epochs)

    @property
    def entries(self) -> list[tuple[int, int]]:
        firsts = [(epoch, self.start + i) for i, epoch in enumerate(self.epochs)]
        return firsts[:1] + [after for before, after in pairwise(firsts) if after[0] != before[0]]

    def last_epoch_below(self, offset: int) -> int:
        return self.epochs[offset - self.start - 1] if offset > self.start else -1

    def state(self) -> LogState:
        return LogState(self.end, self.last_epoch_below(self.end), self.start, self.high_watermark)

    def state_end(self) -> tuple[int, int]:
        return self.end, self.last_epoch_below(self.end)

    def since(self, offset: int) -> dict[int, int]:
        return {self.start + i: epoch for i, epoch in enumerate(self.epochs) if self.start + i >= offset}


@dataclass
class Pair:
    """A leader and a follower, each answer given at once or, where `lost` says so, never."""

    leader: Log
    own: Log
    leader_epoch: int
    unclean_epoch: int
    batch: int
    lost: list[bool]
    actions: list[Action] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.follower = Follower(PartitionKey(bytes(16), 0), "t", 1_000)
        self.now_ms = 0
        self.actions += self.follower.follow(Followed(1, self.leader_epoch, self.unclean_epoch, "a"), 0)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            if self.actions:
                self._perform(self.actions.pop(0))
                continue
            self.now_ms += 1_000
            self.actions += self.follower.tick(self.now_ms)
            position = self.follower.position()
            if position is not None:
                assert position.acked_offset == self.own.end  # 4.1: nothing is under way here
                self.actions += self.follower.fetched(self._lead(position), self.now_ms)

    def _lead(self, position: FetchPosition) -> FetchAnswer:
        """RULES 4.2, 4.3, as a leader does it."""
        leader = self.leader
        answer = FetchAnswer(position, leader.high_watermark, leader.start, leader.end)
        offset, last_epoch = position.fetch_offset, position.last_epoch
        if not leader.start <= offset <= leader.end:
            return _with(answer, error=ErrorCode.OFFSET_OUT_OF_RANGE)
        if last_epoch >= 0:
            below = [entry for entry in leader.entries if entry[0] <= last_epoch]
            above = [entry for entry in leader.entries if entry[0] > last_epoch]
            end = above[0][1] if above else leader.end
            if not below:
                return _with(answer, diverging=DivergingEpoch(-1, leader.start))
            if below[-1][0] != last_epoch or end < offset:
                return _with(answer, diverging=DivergingEpoch(below[-1][0], end))
        epochs = leader.epochs[offset - leader.start :][: self.batch]
        if not epochs:
            return answer
        return _with(answer, fetched=FetchedRecords(offset, offset + len(epochs), epochs[-1], epochs))

    def _perform(self, action: Action) -> None:
        lost = self.lost.pop() if self.lost else False
        if not isinstance(action, Fence | Append | TruncateTo | TruncateFullyAndStartAt):
            return
        generation = action.generation
        if lost and self.now_ms % 2_000:  # before it was applied
            self.actions += self.follower.outcome_unknown(generation, "lost", self.now_ms)
            return
        error = self._apply(action)
        if lost:  # after it was applied
            self.actions += self.follower.outcome_unknown(generation, "lost", self.now_ms)
            return
        log = self.own.state() if error is ErrorCode.NONE else None
        match action:
            case Fence():
                entries = tuple(EpochEntry(*entry) for entry in self.own.entries)
                self.actions += self.follower.fenced(FenceAnswer(generation, "a", log, entries), self.now_ms)
            case Append():
                self.actions += self.follower.appended(LogAnswer(generation, "a", log, error), self.now_ms)
            case _:
                self.actions += self.follower.truncated(LogAnswer(generation, "a", log, error), self.now_ms)

    def _apply(self, action: Action) -> ErrorCode:
        own = self.own
        match action:
            case Append():
                if action.expected_offset != own.end:
                    return ErrorCode.OFFSET_MISMATCH
                own.epochs += action.records or []
                own.high_watermark = max(own.high_watermark, min(action.leader_high_watermark, own.end))
                start = max(own.start, min(action.leader_log_start_offset, own.high_watermark))
                del own.epochs[: start - own.start]
                own.start = start
            case TruncateTo():
                assert (action.expected_log_end_offset, action.expected_last_epoch) == own.state_end()
                assert own.start <= action.offset <= own.end
                self._check_floor(action.offset)
                del own.epochs[action.offset - own.start :]
                own.high_watermark = min(own.high_watermark, own.end)
            case TruncateFullyAndStartAt():
                assert (action.expected_log_end_offset, action.expected_last_epoch) == own.state_end()
                self._check_floor(action.offset)
                self.own = Log([], action.offset, action.offset)
        return ErrorCode.NONE

    def _check_floor(self, offset: int) -> None:
        assert offset >= self.own.high_watermark or self.unclean_epoch > self.own.state().last_epoch  # 4.4


def _with(answer: FetchAnswer, **fields: object) -> FetchAnswer:
    return replace(answer, **fields)  # type: ignore[arg-type]


logs = st.lists(st.integers(0, 4), max_size=8)


@given(
    shared=logs,
    leader_tail=logs,
    own_tail=logs,
    leader_start=st.integers(0, 12),
    own_start=st.integers(0, 12),
    high_watermarks=st.tuples(st.integers(0, 16), st.integers(0, 16)),
    unclean=st.booleans(),
    batch=st.integers(1, 4),
    lost=st.lists(st.booleans(), max_size=20),
)
def test_the_follower_ends_with_the_leaders_log(
    shared: list[int],
    leader_tail: list[int],
    own_tail: list[int],
    leader_start: int,
    own_start: int,
    high_watermarks: tuple[int, int],
    unclean: bool,
    batch: int,
    lost: list[bool],
) -> None:
    # One epoch has one author: what the tails hold is of different epochs (the leader's even, ours odd).
    shared = sorted(shared)
    base = max(shared, default=0)
    leader_epochs = shared + sorted(base + 2 + 2 * epoch for epoch in leader_tail)
    own_epochs = shared + sorted(base + 1 + 2 * epoch for epoch in own_tail)
    leader, own = _started(leader_epochs, leader_start), _started(own_epochs, own_start)
    leader.high_watermark = max(leader.start, min(high_watermarks[0], leader.end))
    own.high_watermark = max(own.start, min(high_watermarks[1], own.end))
    agreed = len(shared) if leader_tail or own_tail else leader.end
    committed_alike = own.high_watermark <= agreed
    pair = Pair(leader, own, 100, 99 if unclean else -1, batch, lost)

    pair.run(200)

    if pair.follower.state is FollowerState.OFFLINE:
        assert not committed_alike, "only committed data that the leader lacks takes a replica offline"
        assert not unclean
        return
    assert pair.follower.state is FollowerState.FETCHING
    assert pair.own.end == leader.end
    assert pair.own.since(leader.start) == leader.since(pair.own.start)
    assert pair.follower.acked_offset == leader.end
    assert pair.own.high_watermark >= leader.high_watermark


def _started(epochs: list[int], start: int) -> Log:
    start = min(start, len(epochs))
    return Log(epochs[start:], start)
