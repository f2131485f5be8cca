"""One followed partition: events in, actions out. Pure: no I/O, no clock; `now_ms` is monotonic.

    follow ──► TRUNCATING ──fenced──► FETCHING ──diverging, out of range, offset mismatch──► TRUNCATING
                    │                     │
                    └──────── error ──────┴──► DELAYED ──tick, follow──► TRUNCATING or FETCHING
                    └──────── the cut would go below the own high watermark ──► OFFLINE

Whoever drives it performs each action once and brings back the answer. There is no event for a lost connection to the
leader: a fetch that is never answered changes nothing, and `position` says at any time what to ask for.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum

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
from highwater.fetcher.follower.truncation import Cut, cut_for_divergence, cut_for_out_of_range, may_cut
from highwater.model.leader_epochs import NO_EPOCH, EpochEntry
from highwater.model.log_state import LogState
from highwater.model.partition import PartitionKey

FIRST_RETRY_MS = 100

_LEADERSHIP_IN_MOTION = frozenset(
    {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH}
)


class FollowerState(Enum):
    """RULES 4.7: each partition by itself."""

    FETCHING = "fetching"
    TRUNCATING = "truncating"  # its log's end is being read or cut; nothing is fetched
    DELAYED = "delayed"  # backs off after an error
    OFFLINE = "offline"  # RULES 4.4: would have to drop what was committed


@dataclass(frozen=True, slots=True)
class _Disagreement:
    """The leader did not accept (fetch_offset, last_epoch); how to mend it is decided on the log's state read anew."""

    fetch_offset: int
    last_epoch: int
    leader_log_start_offset: int
    leader_log_end_offset: int
    diverging: DivergingEpoch | None  # None: out of range


class Follower:
    """A partition that this broker follows.

    The acked offset is the log end offset of log-storage's latest answer under the present leader epoch and
    incarnation, and there is none (`position` is None) before the first (RULES 4.1). The fetch offset runs ahead of it
    while appends are under way (RULES 4.5).
    """

    def __init__(self, key: PartitionKey, topic: str, retry_ms: int) -> None:
        """`retry_ms`: `replica.fetch.backoff.ms`, the pause after an error and the limit of growing pauses."""
        self.key = key
        self.topic = topic
        self.state = FollowerState.TRUNCATING
        self.error = ErrorCode.NONE  # the last one, NONE since the last success
        self.error_message = ""
        self.leader_high_watermark = 0  # as the leader's latest response has it
        self.retry_at_ms: int | None = None  # set in DELAYED only
        self.retry_ms = retry_ms
        self._followed: Followed | None = None
        self._generation = 0
        self._log: LogState | None = None  # None: not known, to be read by a fence
        self._fetch_offset = 0
        self._fetch_epoch = NO_EPOCH  # of the last batch below _fetch_offset
        self._appends: deque[int] = deque()  # log end offset that each append under way must be answered with
        self._disagreement: _Disagreement | None = None
        self._leader_log_end_offset = 0
        # High watermark and log start of the leader's latest response; None since something was dropped.
        self._leader_marks: tuple[int, int] | None = None
        self._leader_failures = 0  # in a row; each makes the next short pause longer
        self._log_failures = 0

    # Queries.

    @property
    def followed(self) -> Followed | None:
        return self._followed

    @property
    def generation(self) -> int:
        """Grows each time what is in flight is dropped."""
        return self._generation

    @property
    def log(self) -> LogState | None:
        """The log as log-storage last answered for it, None while that is not known."""
        return self._log

    @property
    def fetch_offset(self) -> int:
        return self._fetch_offset

    @property
    def acked_offset(self) -> int | None:
        return self._log.log_end_offset if self._log is not None else None

    @property
    def appending(self) -> bool:
        return bool(self._appends)

    @property
    def leader_has_more(self) -> bool:
        """Tells whether the leader's latest response left data behind: the next fetch is answered at once."""
        return self.state is FollowerState.FETCHING and self._leader_log_end_offset > self._fetch_offset

    @property
    def lag(self) -> int:
        """Leader's high watermark less the fetch offset, 0 at least."""
        return max(0, self.leader_high_watermark - self._fetch_offset)

    @property
    def marks_are_behind(self) -> bool:
        """Tells whether the log has not taken yet what the leader has told of high watermark and log start: an append
        was under way, or a sync has not ended (RULES 4.6). The leader says it once; `take_marks` tries again."""
        return self._log is not None and self._marks_to_take(self._log) is not None

    def position(self) -> FetchPosition | None:
        """Returns what the next request asks for; None where nothing may be fetched now (RULES 4.7)."""
        if self.state is not FollowerState.FETCHING or self._log is None or self._followed is None:
            return None
        acked_offset = self._log.log_end_offset
        assert acked_offset <= self._fetch_offset, "RULES 4.1: acked above fetch offset"
        return FetchPosition(
            self._generation,
            self._followed.leader_epoch,
            self._fetch_offset,
            acked_offset,
            self._fetch_epoch,
            self._log.log_start_offset,
        )

    # Events.

    def follow(self, followed: Followed, now_ms: int) -> list[Action]:
        """The whole of what WatchFollowing says, as often as it says it. An equal one only ends a back-off."""
        if followed != self._followed:
            self._followed = followed
            self._leader_failures = self._log_failures = 0
            self._clear_error()
            return self._read_log()
        if self.state is FollowerState.DELAYED:
            self._leader_failures = self._log_failures = 0
            return self._resume()
        return []

    def registered_anew(self) -> list[Action]:
        """The broker has another broker epoch. The whole that says so does not tell what was stopped in between, and
        damage may have been cut then, under the same leader epoch (RULES 4.12, 7.6): the log may end before what was
        acknowledged."""
        return self._read_log()

    def moved(self) -> list[Action]:
        """The follower goes to another fetcher (RULES 4.9), which keeps its offsets. Whatever the old one had under way
        with log-storage is of unknown outcome."""
        if self._appends or self.state is FollowerState.TRUNCATING:
            return self._read_log()
        return []

    def tick(self, now_ms: int) -> list[Action]:
        """Ends a back-off whose time has come (`retry_at_ms`)."""
        if self.retry_at_ms is not None and now_ms >= self.retry_at_ms:
            return self._resume()
        return []

    def fenced(self, answer: FenceAnswer, now_ms: int) -> list[Action]:
        """log-storage answered a fence: the log's state from here on (RULES 3.2, 4.1)."""
        if answer.generation != self._generation or self.state is not FollowerState.TRUNCATING:
            return []
        assert self._followed is not None
        if answer.error is not ErrorCode.NONE or answer.log is None:
            return self._log_failed(answer.error, answer.message, now_ms)
        if answer.incarnation != self._followed.log_storage_incarnation:
            return self._other_incarnation(answer.incarnation, now_ms)
        self._adopt(answer.log)
        disagreement, self._disagreement = self._disagreement, None
        if disagreement is not None and (disagreement.fetch_offset, disagreement.last_epoch) == (
            answer.log.log_end_offset,
            answer.log.last_epoch,
        ):
            return self._truncate(disagreement, answer.log, answer.epochs, now_ms)
        self.state = FollowerState.FETCHING  # RULES 4.7: it was about another offset, if about any
        return []

    def fetched(self, answer: FetchAnswer, now_ms: int) -> list[Action]:
        """The leader answered for `position()` as it was when the request was made."""
        if (
            self.state is not FollowerState.FETCHING
            or self._log is None
            or answer.position.generation != self._generation
            or answer.position.fetch_offset != self._fetch_offset
        ):
            return []  # RULES 4.7
        if answer.error is ErrorCode.OFFSET_OUT_OF_RANGE or answer.diverging is not None:
            return self._disagreed(answer)
        if answer.error is not ErrorCode.NONE:
            return self._leader_failed(answer, now_ms)
        self._leader_failures = 0
        if answer.fetched is None and not self._appends:
            self._log_failures = 0  # else the append decides, lest one that always fails be tried without a pause
        if self._log_failures == 0:
            self._clear_error()
        self.leader_high_watermark = answer.high_watermark
        self._leader_log_end_offset = answer.log_end_offset
        self._leader_marks = (answer.high_watermark, answer.log_start_offset)
        if answer.fetched is None:
            return self.take_marks()
        return self._take_records(answer, answer.fetched, self._log, now_ms)

    def appended(self, answer: LogAnswer, now_ms: int) -> list[Action]:
        """log-storage answered the oldest append under way; the acked offset moves here and in no other flow."""
        if answer.generation != self._generation:
            return []
        assert self._followed is not None
        assert self._appends, "an answer without an append"
        if answer.error is not ErrorCode.NONE or answer.log is None:
            return self._log_failed(answer.error, answer.message, now_ms)
        if answer.incarnation != self._followed.log_storage_incarnation:
            return self._other_incarnation(answer.incarnation, now_ms)
        expected_end = self._appends.popleft()
        if answer.log.log_end_offset != expected_end:
            return self._log_failed(
                ErrorCode.OFFSET_MISMATCH,
                f"the log ends at {answer.log.log_end_offset} after an append that ends at {expected_end}",
                now_ms,
            )
        self._log = answer.log
        self._log_failures = 0
        return []

    def take_marks(self) -> list[Action]:
        """Takes the leader's high watermark and log start without records (RULES 4.6). While an append is under way
        they can wait."""
        if self.state is not FollowerState.FETCHING or self._log is None or self._followed is None or self._appends:
            return []
        marks = self._marks_to_take(self._log)
        if marks is None:
            return []
        self._appends.append(self._fetch_offset)
        return [Append(self._generation, self._followed.leader_epoch, self._fetch_offset, None, *marks)]

    def truncated(self, answer: LogAnswer, now_ms: int) -> list[Action]:
        """log-storage answered a truncation: the acked offset is its log end offset, whatever it was before."""
        if answer.generation != self._generation or self.state is not FollowerState.TRUNCATING:
            return []
        assert self._followed is not None
        if answer.error is ErrorCode.TRUNCATION_BELOW_HIGH_WATERMARK:
            return self._go_offline(answer.message)
        if answer.error is not ErrorCode.NONE or answer.log is None:
            return self._log_failed(answer.error, answer.message, now_ms)
        if answer.incarnation != self._followed.log_storage_incarnation:
            return self._other_incarnation(answer.incarnation, now_ms)
        before = (self._fetch_offset, self._fetch_epoch)
        self._adopt(answer.log)
        if (self._fetch_offset, self._fetch_epoch) == before:
            return self._delay(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"truncation left the log at {before[0]} in epoch {before[1]}, which the leader does not accept",
                now_ms,
                self.retry_ms,
            )
        self.state = FollowerState.FETCHING
        return []

    def outcome_unknown(self, generation: int, message: str, now_ms: int) -> list[Action]:
        """A fence, append or truncation was sent and will not be answered: settled by fencing again (RULES 3.4)."""
        if generation != self._generation:
            return []
        return self._log_failed(ErrorCode.NETWORK_EXCEPTION, message, now_ms)

    # What the leader said.

    def _take_records(self, answer: FetchAnswer, fetched: FetchedRecords, log: LogState, now_ms: int) -> list[Action]:
        assert self._followed is not None
        if fetched.base_offset < self._fetch_offset:
            # After DeleteRecords the leader's log may start inside a batch; an empty log started there takes it whole.
            empty = log.log_start_offset == log.log_end_offset == self._fetch_offset
            if not empty or fetched.next_offset <= self._fetch_offset:
                message = f"the leader answered a fetch at {self._fetch_offset} with batches from {fetched.base_offset}"
                return self._delay(ErrorCode.CORRUPT_MESSAGE, message, now_ms, self.retry_ms)
        append = Append(
            self._generation,
            self._followed.leader_epoch,
            self._fetch_offset,
            fetched.records,
            answer.high_watermark,
            answer.log_start_offset,
        )
        self._fetch_offset = fetched.next_offset
        self._fetch_epoch = fetched.last_epoch
        self._appends.append(fetched.next_offset)
        return [append]

    def _marks_to_take(self, log: LogState) -> tuple[int, int] | None:
        """The leader's high watermark and log start; None where the log would not move by them."""
        if self._leader_marks is None:
            return None
        high_watermark = max(log.high_watermark, min(self._leader_marks[0], log.log_end_offset))
        log_start_offset = max(log.log_start_offset, min(self._leader_marks[1], high_watermark))
        moved = (high_watermark, log_start_offset) != (log.high_watermark, log.log_start_offset)
        return self._leader_marks if moved else None

    def _disagreed(self, answer: FetchAnswer) -> list[Action]:
        actions = self._read_log()
        self._disagreement = _Disagreement(
            answer.position.fetch_offset,
            answer.position.last_epoch,
            answer.log_start_offset,
            answer.log_end_offset,
            answer.diverging,
        )
        return actions

    def _truncate(
        self, disagreement: _Disagreement, log: LogState, epochs: tuple[EpochEntry, ...], now_ms: int
    ) -> list[Action]:
        assert self._followed is not None
        cut: Cut | None
        if disagreement.diverging is not None:
            cut = cut_for_divergence(disagreement.diverging, disagreement.leader_log_start_offset, log, epochs)
        else:
            cut = cut_for_out_of_range(disagreement.leader_log_start_offset, disagreement.leader_log_end_offset, log)
        if cut is None:
            return self._delay(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"the leader calls {log.log_end_offset} out of its range {disagreement.leader_log_start_offset}"
                f" to {disagreement.leader_log_end_offset}",
                now_ms,
                self.retry_ms,
            )
        if not may_cut(cut.offset, log, self._followed.unclean_epoch):
            return self._go_offline(
                f"leader {self._followed.leader} (epoch {self._followed.leader_epoch}) wants the log cut from"
                f" {log.log_end_offset} to {cut.offset}, below its high watermark {log.high_watermark}"
            )
        kind = TruncateFullyAndStartAt if cut.fully else TruncateTo
        return [
            kind(
                self._generation,
                self._followed.leader_epoch,
                cut.offset,
                self._followed.unclean_epoch,
                log.log_end_offset,
                log.last_epoch,
            )
        ]

    # Transitions.

    def _adopt(self, log: LogState) -> None:
        assert not self._appends
        self._log = log
        self._fetch_offset = log.log_end_offset
        self._fetch_epoch = log.last_epoch
        self._leader_log_end_offset = 0

    def _drop(self) -> None:
        """Drops what is in flight, both ways: it is of no account from here on (RULES 4.5)."""
        self._generation += 1
        self._appends.clear()
        self._log = None
        self._leader_marks = None
        self._disagreement = None
        self.retry_at_ms = None

    def _read_log(self) -> list[Action]:
        assert self._followed is not None
        self._drop()
        self.state = FollowerState.TRUNCATING
        return [Fence(self._generation, self._followed.leader_epoch)]

    def _resume(self) -> list[Action]:
        self.retry_at_ms = None
        if self._log is None:
            return self._read_log()
        self.state = FollowerState.FETCHING
        return []

    def _clear_error(self) -> None:
        self.error = ErrorCode.NONE
        self.error_message = ""

    def _delay(self, error: ErrorCode, message: str, now_ms: int, pause_ms: int) -> list[Action]:
        self.state = FollowerState.DELAYED
        self.error, self.error_message = error, message
        self.retry_at_ms = now_ms + pause_ms
        return [Delayed(error, message, pause_ms)]

    def _go_offline(self, message: str) -> list[Action]:
        self._drop()
        self.state = FollowerState.OFFLINE
        self.error, self.error_message = ErrorCode.TRUNCATION_BELOW_HIGH_WATERMARK, message
        return [WentOffline(message)]

    def _leader_failed(self, answer: FetchAnswer, now_ms: int) -> list[Action]:
        """The log's state stays known; an append under way is still answered."""
        pause_ms = self.retry_ms
        if answer.error in _LEADERSHIP_IN_MOTION:
            pause_ms = self._short_pause_ms(self._leader_failures)
            self._leader_failures += 1
        return self._delay(answer.error, answer.message, now_ms, pause_ms)

    def _log_failed(self, error: ErrorCode, message: str, now_ms: int) -> list[Action]:
        """Drops what is in flight; the log's end is read again, at once for a first offset mismatch (RULES 4.5).

        A fence that is refused waits for the next Following message: this broker's role is about to change."""
        first = self._log_failures == 0
        self._log_failures += 1
        if error is ErrorCode.OFFSET_MISMATCH and first:
            return self._read_log()
        self._drop()
        pause_ms = self.retry_ms
        if error in (ErrorCode.OFFSET_MISMATCH, ErrorCode.NETWORK_EXCEPTION, ErrorCode.OVERLOADED):
            pause_ms = self._short_pause_ms(self._log_failures - 1)
        return self._delay(error, message, now_ms, pause_ms)

    def _other_incarnation(self, incarnation: str, now_ms: int) -> list[Action]:
        """An acked offset stands for the incarnation that this broker is registered with (RULES 1.4, 4.1): another one
        is fetched for only when Following names it."""
        assert self._followed is not None
        return self._log_failed(
            ErrorCode.LOG_STORAGE_ERROR,
            f"log-storage is incarnation {incarnation}, the registration has {self._followed.log_storage_incarnation}",
            now_ms,
        )

    def _short_pause_ms(self, failures: int) -> int:
        return min(FIRST_RETRY_MS << min(failures, 10), self.retry_ms)
