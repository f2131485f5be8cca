"""The demands on what is in a produced partition's batches: what is appended can be read, as in Kafka, whose leader
validates each batch. Else one bad batch would stop all its readers, and every look-up that comes to it. Pure.

Keys must be there on compacted topics (RULES 10.3), and the header's times must be the records': look-ups by time and
retention believe them.
"""

from __future__ import annotations

from highwater.errors import ErrorCode
from highwater.records import BatchHeader, CorruptBatchError
from highwater.records.errors import PayloadTooLargeError, TooManyHeadersError
from highwater.records.limits import expansion_limit
from highwater.records.payload_scan import PayloadScan, scan_front, scan_payload
from highwater.replica_manager.partition.topic_config import TopicConfig
from highwater.replica_manager.requests.batch_check import CheckedBatches, timestamp_problem

# What is checked sooner than a thread takes it, in one request: so many rows, of no more than so many bytes a batch,
# and so many bytes of columns, which are not looked at but for their front.
INLINE_ROWS = 1_000
INLINE_ROW_BYTES = 8 << 10
INLINE_COLUMN_BYTES = 8 << 20
_LEAST_COLUMN_BYTES = 64 << 10  # what a batch of few costs as much as

Problem = tuple[ErrorCode, str]


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
            problem = _problem(scan, header, config, now_ms)
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
            scan = self._scan(produced, position, header)
            if scan is None or _problem(scan, header, config, now_ms) is not None:
                return False
        return True

    def _scan(self, produced: bytes, position: int, header: BatchHeader) -> PayloadScan | None:
        if header.columnar:
            found = scan_front(produced, position, header, max_payload_bytes=self._column_bytes)
            if found is None:
                return None
            scan, size = found
            self._column_bytes -= max(size, _LEAST_COLUMN_BYTES)
            return scan
        self._rows -= header.record_count
        if self._rows < 0 or header.size_bytes > INLINE_ROW_BYTES:
            return None
        try:
            return scan_payload(produced, position, header, max_payload_bytes=INLINE_ROW_BYTES)
        except CorruptBatchError:
            return None


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


def _problem(scan: PayloadScan, header: BatchHeader, config: TopicConfig, now_ms: int) -> Problem | None:
    if scan.keyless and config.compacted:
        return (ErrorCode.INVALID_RECORD, f"has {scan.keyless} records without a key, the topic is compacted")
    lowest, largest = int(scan.timestamps.min()), int(scan.timestamps.max())
    problem = timestamp_problem((lowest, largest), config, now_ms)
    if problem is not None:
        return problem
    if largest != header.max_timestamp:
        return (
            ErrorCode.INVALID_TIMESTAMP,
            f"has the largest timestamp {header.max_timestamp} in its header, its records' is {largest}",
        )
    # Of rows, the records' times are told from it.
    if header.columnar and (first := int(scan.timestamps[0])) != header.base_timestamp:
        return (
            ErrorCode.INVALID_TIMESTAMP,
            f"has the first timestamp {header.base_timestamp} in its header, its first record's is {first}",
        )
    return None
