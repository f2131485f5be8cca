"""What a produced partition's bytes must be before they are appended: whole, known, allowed by the topic. Pure.

Headers only, except on compacted topics, where a record without a key must be found (RULES 10.3). The CRC is for
log-storage to check, which writes the bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from highwater import records
from highwater.errors import ErrorCode
from highwater.records import BatchHeader, CorruptBatchError
from highwater.replica_manager.topic_config import TopicConfig


@dataclass(frozen=True, slots=True)
class CheckedBatches:
    """`batches` are (position, header). Where `error` is set, `message` says what to do about it."""

    error: ErrorCode
    message: str = ""
    batches: tuple[tuple[int, BatchHeader], ...] = ()
    offsets: int = 0  # how many offsets they span together


def check(produced: bytes, config: TopicConfig) -> CheckedBatches:
    try:
        batches = tuple(records.iter_batches(produced))
    except CorruptBatchError as error:
        return CheckedBatches(ErrorCode.CORRUPT_MESSAGE, str(error))
    if not batches:
        return CheckedBatches(ErrorCode.INVALID_REQUEST, "a produced partition holds no batch: send one or more")
    offsets = 0
    for position, header in batches:
        problem = _problem(header, config)
        if problem is None and config.compacted:
            problem = _keyless(produced, position)
        if problem is not None:
            return CheckedBatches(problem[0], f"the batch at byte {position} {problem[1]}")
        offsets += header.last_offset_delta + 1
    return CheckedBatches(ErrorCode.NONE, "", batches, offsets)


def _problem(header: BatchHeader, config: TopicConfig) -> tuple[ErrorCode, str] | None:
    if header.size_bytes > config.max_message_bytes:
        return (
            ErrorCode.MESSAGE_TOO_LARGE,
            f"has {header.size_bytes} bytes, max.message.bytes is {config.max_message_bytes}: send smaller batches",
        )
    if header.record_count == 0 or header.record_count != header.last_offset_delta + 1:
        return (
            ErrorCode.INVALID_RECORD,
            f"holds {header.record_count} records over {header.last_offset_delta + 1} offsets: leave none out",
        )
    if header.control or header.transactional or header.delete_horizon_ms is not None:
        return (ErrorCode.INVALID_RECORD, "is a control or transactional batch: there are no transactions yet")
    if header.columnar and config.rows_only:
        return (
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,  # RULES 10.1
            "has a columnar payload, the topic's payload.format is rows: send rows",
        )
    return None


def _keyless(produced: bytes, position: int) -> tuple[ErrorCode, str] | None:
    """RULES 10.3. The keys are counted as a column: no record becomes a Python object."""
    try:
        keys = records.decode(produced, position).to_arrow().column("key")
    except ValueError as error:  # CorruptBatchError, and Arrow's own
        return (ErrorCode.CORRUPT_MESSAGE, f"cannot be decoded: {error}")
    if keys.null_count:
        return (ErrorCode.INVALID_RECORD, f"has {keys.null_count} records without a key, the topic is compacted")
    return None
