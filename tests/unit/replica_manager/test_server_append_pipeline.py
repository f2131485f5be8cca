"""The pipeline of one partition's appends against a log that answers later, refuses and recognises duplicates."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from highwater.errors import ErrorCode
from highwater.log_storage_client.values import Append, AppendAnswer
from highwater.model.log_state import LogState
from highwater.model.partition import PartitionKey
from highwater.replica_manager.storage.append_pipeline import AppendPipeline

KEY = PartitionKey(b"t" * 16, 0)
Answered = Callable[[AppendAnswer | None], None]


class FakeLog:
    """A log behind a stream: answers in order, one `answer_next` at a time."""

    def __init__(self) -> None:
        self.sent: deque[tuple[Append, Answered]] = deque()
        self.log_end_offset = 0
        self.appended: list[bytes] = []
        self.duplicates: set[bytes] = set()
        self.refused: set[bytes] = set()

    def send(self, append: Append, answered: Answered) -> None:
        self.sent.append((append, answered))

    def answer_next(self) -> None:
        append, answered = self.sent.popleft()
        records = bytes(append.records)
        error, base, duplicate = ErrorCode.NONE, self.log_end_offset, False
        if append.expected_offset != self.log_end_offset:
            error = ErrorCode.OFFSET_MISMATCH
        elif records in self.duplicates:
            base, duplicate = 0, True
        elif records in self.refused:
            error = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        else:
            self.appended.append(records)
            self.log_end_offset += len(records)
        answered(AppendAnswer(error, "", base, -1, duplicate, -1, LogState(self.log_end_offset, 0, 0, -1), "one"))

    def answer_all(self) -> None:
        while self.sent:
            self.answer_next()


def pipeline_over(log: FakeLog, interruptions: list[str] | None = None) -> AppendPipeline:
    interruptions = [] if interruptions is None else interruptions
    return AppendPipeline(
        KEY,
        3,
        0,
        send=log.send,
        log_ended=lambda answer: None,
        interrupted=lambda: interruptions.append("interrupted"),
        log_failed=lambda: interruptions.append("log failed"),
    )


def test_appends_are_sent_at_once_with_the_offsets_that_those_before_will_leave() -> None:
    log = FakeLog()
    pipeline = pipeline_over(log)
    for records in (b"a", b"bb", b"ccc"):
        pipeline.append(records, len(records), lambda _: None)
    assert [append.expected_offset for append, _ in log.sent] == [0, 1, 3]


def test_after_a_duplicate_nothing_is_sent_until_all_in_flight_is_answered_then_all_in_order() -> None:
    log = FakeLog()
    log.duplicates = {b"bb"}
    pipeline = pipeline_over(log)
    answers: dict[bytes, AppendAnswer] = {}
    for records in (b"a", b"bb", b"ccc", b"dddd"):
        pipeline.append(records, len(records), lambda answer, r=records: answers.__setitem__(r, answer))
    log.answer_next()
    log.answer_next()
    pipeline.append(b"eeeee", 5, lambda answer: answers.__setitem__(b"eeeee", answer))
    assert [bytes(append.records) for append, _ in log.sent] == [b"ccc", b"dddd"]  # the new one waits
    log.answer_next()
    log.answer_next()
    assert [(bytes(a.records), a.expected_offset) for a, _ in log.sent] == [(b"ccc", 1), (b"dddd", 4), (b"eeeee", 8)]
    log.answer_all()
    assert log.appended == [b"a", b"ccc", b"dddd", b"eeeee"]
    assert answers[b"bb"].duplicate
    assert all(answers[r].error is ErrorCode.NONE for r in (b"a", b"bb", b"ccc", b"dddd", b"eeeee"))


@given(st.lists(st.sampled_from(["ok", "duplicate", "refused"]), max_size=30), st.data())
def test_every_append_is_answered_once_and_what_is_written_keeps_its_order(
    kinds: list[str], data: st.DataObject
) -> None:
    log = FakeLog()
    answers: list[bytes] = []
    interruptions: list[str] = []
    pipeline = pipeline_over(log, interruptions)
    expected = []
    for number, kind in enumerate(kinds):
        records = b"%d:" % number + b"x" * (number % 3)
        {"ok": expected, "duplicate": [], "refused": []}[kind].append(records)
        if kind != "ok":
            getattr(log, "duplicates" if kind == "duplicate" else "refused").add(records)
        pipeline.append(records, len(records), lambda _, r=records: answers.append(r))
        for _ in range(data.draw(st.integers(0, 3))):
            if log.sent:
                log.answer_next()
    log.answer_all()
    assert log.appended == expected
    assert sorted(answers) == sorted(set(answers))
    assert len(answers) == len(kinds)
    assert pipeline.outstanding == 0
    assert interruptions == []


def test_an_unknown_outcome_ends_the_leadership_and_fails_all_that_is_outstanding() -> None:
    log = FakeLog()
    interruptions: list[str] = []
    pipeline = pipeline_over(log, interruptions)
    errors: list[ErrorCode] = []
    for records in (b"a", b"b"):
        pipeline.append(records, 1, lambda answer: errors.append(answer.error))
    log.sent[0][1](None)
    pipeline.append(b"c", 1, lambda answer: errors.append(answer.error))
    assert errors == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 3
    assert interruptions == ["interrupted"]
    log.answer_all()  # what comes late is not listened to
    assert len(errors) == 3


def test_a_log_that_is_offline_ends_the_leadership_with_a_definite_answer_to_the_append_that_found_it() -> None:
    """RULES 7.7."""
    log = FakeLog()
    interruptions: list[str] = []
    pipeline = pipeline_over(log, interruptions)
    errors: list[ErrorCode] = []
    for records in (b"a", b"b"):
        pipeline.append(records, 1, lambda answer: errors.append(answer.error))
    error = ErrorCode.LOG_STORAGE_ERROR
    log.sent[0][1](AppendAnswer(error, "EIO", -1, -1, False, -1, LogState(0, 0, 0, -1), "one", offline=True))
    assert errors == [error, ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert interruptions == ["log failed"]
    log.answer_all()
    assert len(errors) == 2


def test_a_full_disk_refuses_an_append_and_leadership_goes_on() -> None:
    log = FakeLog()
    interruptions: list[str] = []
    pipeline = pipeline_over(log, interruptions)
    errors: list[ErrorCode] = []
    pipeline.append(b"a", 1, lambda answer: errors.append(answer.error))
    full = AppendAnswer(ErrorCode.STORAGE_FULL, "", -1, -1, False, -1, LogState(0, 0, 0, -1), "one")
    log.sent.popleft()[1](full)
    pipeline.append(b"b", 1, lambda answer: errors.append(answer.error))
    log.answer_all()
    assert errors == [ErrorCode.STORAGE_FULL, ErrorCode.NONE]
    assert log.appended == [b"b"]
    assert interruptions == []


def test_a_fence_of_another_ends_the_leadership() -> None:
    log = FakeLog()
    interruptions: list[str] = []
    pipeline = pipeline_over(log, interruptions)
    errors: list[ErrorCode] = []
    pipeline.append(b"a", 1, lambda answer: errors.append(answer.error))
    log.sent[0][1](AppendAnswer(ErrorCode.STALE_FENCE, "", -1, -1, False, -1, LogState(0, -1, 0, -1), "one"))
    assert errors == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert interruptions == ["interrupted"]


def test_a_log_end_that_log_storage_itself_contradicts_ends_the_leadership() -> None:
    log = FakeLog()
    interruptions: list[str] = []
    pipeline = pipeline_over(log, interruptions)
    errors: list[ErrorCode] = []
    pipeline.append(b"a", 1, lambda answer: errors.append(answer.error))
    log.sent[0][1](AppendAnswer(ErrorCode.OFFSET_MISMATCH, "", -1, -1, False, -1, LogState(0, -1, 0, -1), "one"))
    assert errors == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert interruptions == ["interrupted"]


def test_what_rests_on_a_refused_append_is_not_sent_again() -> None:
    log = FakeLog()
    pipeline = pipeline_over(log)
    log.refused = {b"bb"}
    answers: list[ErrorCode] = []
    for records in (b"a", b"bb", b"c", b"d"):
        pipeline.append(records, len(records), lambda answer: answers.append(answer.error), resend=False)
    log.answer_all()
    mismatch = ErrorCode.OFFSET_MISMATCH
    assert answers == [ErrorCode.NONE, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, mismatch, mismatch]
    assert log.appended == [b"a"]
    pipeline.append(b"e", 1, lambda answer: answers.append(answer.error), resend=False)
    log.answer_all()
    assert (answers[-1], log.appended) == (ErrorCode.NONE, [b"a", b"e"])


async def test_it_is_idle_when_all_is_answered_or_leadership_is_over() -> None:
    log = FakeLog()
    pipeline = pipeline_over(log)
    await pipeline.idle()
    for end in (log.answer_all, pipeline.close):
        pipeline.append(b"a", 1, lambda answer: None)
        idle = asyncio.create_task(pipeline.idle())
        await asyncio.sleep(0)
        assert not idle.done()
        end()
        await idle
