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
from highwater.records.payload_scan import PayloadScan, scan_payload
from highwater.replica_manager.partition.topic_config import TopicConfig
from highwater.replica_manager.requests.batch_check import CheckedBatches, timestamp_problem

# Rows of no more than this, and that expand to no more, are checked sooner than a thread takes them.
INLINE_BYTES = 4 << 10
INLINE_EXPANDED_BYTES = 8 << 10

Problem = tuple[ErrorCode, str]


def check_payloads(produced: bytes, checked: CheckedBatches, config: TopicConfig, now_ms: int) -> CheckedBatches:
    """The outcome for batches whose headers were `checked`. For a thread: payloads expand to `expansion_limit`."""
    return _outcome(produced, checked, config, now_ms, expansion_limit(config.max_message_bytes))


def check_small_payloads(
    produced: bytes, checked: CheckedBatches, config: TopicConfig, now_ms: int
) -> CheckedBatches | None:
    """`check_payloads` where that takes no longer than a thread's turn; None: it may, and nothing is known."""
    if len(produced) > INLINE_BYTES or any(header.columnar for _, header in checked.batches):
        return None
    try:
        return _outcome(produced, checked, config, now_ms, INLINE_EXPANDED_BYTES, raise_too_large=True)
    except PayloadTooLargeError:
        return None


def _outcome(
    produced: bytes,
    checked: CheckedBatches,
    config: TopicConfig,
    now_ms: int,
    limit: int,
    *,
    raise_too_large: bool = False,
) -> CheckedBatches:
    for position, header in checked.batches:
        problem: Problem | None
        try:
            scan = scan_payload(produced, position, header, max_payload_bytes=limit)
        except CorruptBatchError as error:
            if raise_too_large and isinstance(error.__cause__, PayloadTooLargeError):
                raise error.__cause__ from None
            problem = _unreadable(error, config)
        else:
            problem = _problem(scan, header, config, now_ms)
        if problem is not None:
            return CheckedBatches(problem[0], f"the batch at byte {position} {problem[1]}")
    return checked


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
