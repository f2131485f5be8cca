"""The demands on what is in a produced partition's batches: what is appended can be read, as in Kafka, whose leader
validates each batch. Else one bad batch would stop all its readers, and every look-up that comes to it. Pure.

Keys must be there on compacted topics (RULES 10.3), and the header's times must be the records': look-ups by time and
retention believe them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from highwater.errors import ErrorCode
from highwater.records import BatchHeader, CorruptBatchError
from highwater.records.errors import PayloadTooLargeError, TooManyHeadersError
from highwater.records.limits import expansion_limit
from highwater.records.payload_scan import PayloadScan, scan_few_rows, scan_front, scan_payload
from highwater.replica_manager.partition.topic_config import TopicConfig
from highwater.replica_manager.requests.batch_check import CheckedBatches, timestamp_problem

# What is checked sooner than a thread takes it, in one request: so many rows, of no more than so many bytes a batch,
# and so many bytes of columns, which are not looked at but for their front.
INLINE_ROWS = 1_000
INLINE_ROW_BYTES = 8 << 10
INLINE_COLUMN_BYTES = 8 << 20
_LEAST_COLUMN_BYTES = 64 << 10  # what a batch of few costs as much as

Problem = tuple[ErrorCode, str]


class _Found(NamedTuple):
    """The answers that a check of a batch wants of its records. Timestamps in ms."""

    lowest: int
    largest: int
    first: int
    keyless: int


def check_payloads(produced: bytes, checked: CheckedBatches, config: TopicConfig, now_ms: int) -> CheckedBatches:
    """The outcome for batches whose headers were `checked`. For a thread: payloads expand to `expansion_limit`."""
    limit = expansion_limit(config.max_message_bytes)
    for position, header in checked.batches:
        problem: Problem | None
        try:
            scan = scan_payload(produced, position, header, max_payload_bytes=limit)
        except CorruptBatchError as error:
            problem = _unreadable(error, config)
        else:
            problem = _problem(_found(scan), header, config, now_ms)
        if problem is not None:
            return CheckedBatches(problem[0], f"the batch at byte {position} {problem[1]}")
    return checked


class InlineChecks:
    """The checks of a request's batches that take no longer than a thread's turn. Those are what is sound: what is not
    can take longer."""

    def __init__(self) -> None:
        self._rows = INLINE_ROWS
        self._column_bytes = INLINE_COLUMN_BYTES

    def sound(self, produced: bytes, checked: CheckedBatches, config: TopicConfig, now_ms: int) -> bool:
        """Tells whether `check_payloads` has nothing to say. False: nothing is known."""
        for position, header in checked.batches:
            found = self._look_into(produced, position, header)
            if found is None or _problem(found, header, config, now_ms) is not None:
                return False
        return True

    def _look_into(self, produced: bytes, position: int, header: BatchHeader) -> _Found | None:
        if header.columnar:
            front = scan_front(produced, position, header, max_payload_bytes=self._column_bytes)
            if front is None:
                return None
            scan, size = front
            self._column_bytes -= max(size, _LEAST_COLUMN_BYTES)
            return _found(scan)
        self._rows -= header.record_count
        if self._rows < 0 or header.size_bytes > INLINE_ROW_BYTES:
            return None
        rows = scan_few_rows(produced, position, header, max_payload_bytes=INLINE_ROW_BYTES)
        if rows is None:
            return None
        times = rows.timestamps
        return _Found(min(times), max(times), times[0], rows.keyless)


@dataclass(slots=True)
class PayloadCheck:
    """The check of a part's batches, by the topic and the clock as they were when it came."""

    records: bytes
    config: TopicConfig
    now_ms: int
    headers: CheckedBatches
    outcome: CheckedBatches | None  # None: what is in them is not known yet

    def run(self) -> None:
        if self.outcome is None:
            self.outcome = check_payloads(self.records, self.headers, self.config, self.now_ms)

    def fail(self, error: BaseException) -> None:
        if self.outcome is None:
            message = f"what is in the batches could not be checked: {error}"
            self.outcome = CheckedBatches(ErrorCode.UNKNOWN_SERVER_ERROR, message)


def run_checks(checks: Sequence[PayloadCheck | None]) -> None:
    for one in checks:
        if one is not None:
            one.run()


def _unreadable(error: CorruptBatchError, config: TopicConfig) -> Problem:
    if isinstance(error.__cause__, PayloadTooLargeError):
        return (
            ErrorCode.MESSAGE_TOO_LARGE,
            f"cannot be taken: {error.reason} where max.message.bytes is {config.max_message_bytes}: "
            "send smaller batches",
        )
    if isinstance(error.__cause__, TooManyHeadersError):
        return (ErrorCode.INVALID_RECORD, f"cannot be taken: {error.reason}")
    return (ErrorCode.CORRUPT_MESSAGE, f"cannot be decoded: {error.reason}")


def _found(scan: PayloadScan) -> _Found:
    times = scan.timestamps
    return _Found(int(times.min()), int(times.max()), int(times[0]), scan.keyless)


def _problem(found: _Found, header: BatchHeader, config: TopicConfig, now_ms: int) -> Problem | None:
    if found.keyless and config.compacted:
        return (ErrorCode.INVALID_RECORD, f"has {found.keyless} records without a key, the topic is compacted")
    problem = timestamp_problem((found.lowest, found.largest), config, now_ms)
    if problem is not None:
        return problem
    if found.largest != header.max_timestamp:
        return (
            ErrorCode.INVALID_TIMESTAMP,
            f"has the largest timestamp {header.max_timestamp} in its header, its records' is {found.largest}",
        )
    # Of rows, the records' times are told from it.
    if header.columnar and found.first != header.base_timestamp:
        return (
            ErrorCode.INVALID_TIMESTAMP,
            f"has the first timestamp {header.base_timestamp} in its header, its first record's is {found.first}",
        )
    return None
