"""The spans of a produce, and which followers are told of its trace."""

from __future__ import annotations

from highwater.errors import ErrorCode
from highwater.model.partition import PartitionKey
from highwater.records import Record, encode_rows, read_header, stamp
from highwater.replica_manager.replicas.traced_batches import MAX_BATCHES, TracedBatches
from highwater.replica_manager.requests.produce_trace import ProduceTrace
from highwater.telemetry.tracing import MAX_PARENTS, Span, Tracer, parse_traceparent

KEY = PartitionKey(bytes(16), 0)
OTHER = PartitionKey(bytes(16), 1)
BATCH = encode_rows([Record(0, 0, None, b"value")])


class Kept:
    def __init__(self) -> None:
        self.spans: list[Span] = []

    def take(self, span: Span) -> None:
        self.spans.append(span)

    def close(self) -> None: ...


def batch_at(offset: int) -> list[bytes | memoryview]:
    """In two pieces, as the tail cache has it."""
    return [stamp(read_header(BATCH), offset, 3), memoryview(BATCH)[16:]]


def test_followers_are_told_of_traced_batches_among_those_that_they_get() -> None:
    traced = TracedBatches()
    assert not traced
    traced.add(KEY, 7, "of 7")
    traced.add(KEY, 9, "of 9")
    assert traced
    assert traced.among(KEY, [*batch_at(6), *batch_at(7), *batch_at(8)]) == ["of 7"]
    assert traced.among(KEY, [*batch_at(7), *batch_at(9)]) == ["of 7", "of 9"]
    assert traced.among(KEY, batch_at(8)) == traced.among(OTHER, batch_at(7)) == traced.among(KEY, []) == []
    traced.remove(KEY, 7)
    traced.remove(KEY, 7)
    assert traced.among(KEY, [*batch_at(7), *batch_at(9)]) == ["of 9"]
    traced.remove(KEY, 9)
    assert not traced


def test_what_cannot_be_read_names_no_trace() -> None:
    traced = TracedBatches()
    traced.add(KEY, 7, "of 7")
    assert traced.among(KEY, [b"\x00" * 100]) == []


def test_so_many_are_remembered_and_no_more() -> None:
    traced = TracedBatches()
    for offset in range(MAX_BATCHES + 1):
        traced.add(KEY, offset, f"of {offset}")
    assert traced.among(KEY, batch_at(0)) == []
    assert traced.among(KEY, batch_at(1)) == ["of 1"]
    many = [piece for offset in range(1, 40) for piece in batch_at(offset)]
    assert len(traced.among(KEY, many)) == MAX_PARENTS


def test_the_steps_of_a_produce_follow_one_another() -> None:
    kept, traced = Kept(), TracedBatches()
    span = Tracer(kept).begin("produce")
    trace = ProduceTrace(span, traced, waits=True)
    trace.appends()
    (appending,) = trace.handed_over()
    trace.answered()  # all are handed over
    trace.answered()  # by log-storage
    trace.appended(KEY, 7)
    assert traced.among(KEY, batch_at(7)) == [span.traceparent]
    trace.responded([ErrorCode.NONE])
    assert not traced
    steps = kept.spans[:-1]
    assert [step.name for step in steps] == ["check", "append", "replicate"]
    assert [step.start_ns for step in steps[1:]] == [step.end_ns for step in steps[:-1]]
    assert parse_traceparent(appending) == (span.trace_id, steps[1].span_id)
    assert kept.spans[-1] is span
    assert not span.error


def test_followers_of_a_produce_that_does_not_wait_for_them_are_told_later() -> None:
    kept, traced = Kept(), TracedBatches()
    trace = ProduceTrace(Tracer(kept).begin("produce"), traced, waits=False)
    trace.appends()
    trace.handed_over()
    trace.answered()
    trace.answered()
    trace.appended(KEY, 7)
    trace.responded([ErrorCode.NONE])
    assert traced
    assert [span.name for span in kept.spans] == ["check", "append", "produce"]


def test_of_a_request_with_many_partitions_the_first_go_on() -> None:
    kept, traced = Kept(), TracedBatches()
    trace = ProduceTrace(Tracer(kept).begin("produce"), traced, waits=True)
    trace.appends()
    going_on = [bool(trace.handed_over()) for _ in range(MAX_PARENTS + 3)]
    assert going_on == [True] * MAX_PARENTS + [False] * 3
    for offset in range(MAX_PARENTS + 3):
        trace.appended(KEY, offset)
    assert traced.among(KEY, batch_at(MAX_PARENTS)) == []
    trace.responded([ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NONE, ErrorCode.INVALID_RECORD])
    assert not traced
    assert kept.spans[-1].error == "INVALID_RECORD, NOT_ENOUGH_REPLICAS"
