"""The demands on the headers of a produced partition's batches: whole, known, allowed by the topic. Pure.

What is in the batches is checked next (`payload_check`). The CRC is for log-storage to check, which writes the bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from highwater import records
from highwater.errors import ErrorCode
from highwater.records import BatchHeader, CorruptBatchError
from highwater.records.limits import most_records
from highwater.records.timestamps import MAX_TIMESTAMP_MS, NO_TIMESTAMP, writable
from highwater.replica_manager.partition.topic_config import TopicConfig


@dataclass(frozen=True, slots=True)
class CheckedBatches:
    """`batches` are (position, header). Where `error` is set, `message` says what to do about it."""

    error: ErrorCode
    message: str = ""
    batches: tuple[tuple[int, BatchHeader], ...] = ()
    offsets: int = 0  # how many offsets they span together


def check(produced: bytes, config: TopicConfig, now_ms: int) -> CheckedBatches:
    """`now_ms` is the broker's wall clock."""
    try:
        batches = tuple(records.iter_batches(produced))
    except CorruptBatchError as error:
        return CheckedBatches(ErrorCode.CORRUPT_MESSAGE, str(error))
    if not batches:
        return CheckedBatches(ErrorCode.INVALID_REQUEST, "a produced partition holds no batch: send one or more")
    offsets = 0
    for position, header in batches:
        times = (header.base_timestamp, header.max_timestamp)
        problem = _problem(header, config) or timestamp_problem(times, config, now_ms)
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
    if header.record_count > (most := most_records(header)):
        return (
            ErrorCode.CORRUPT_MESSAGE,
            f"claims {header.record_count} records: its {header.size_bytes} bytes can hold {most} at the most",
        )
    if header.control or header.transactional or header.delete_horizon_ms is not None:
        return (ErrorCode.INVALID_RECORD, "is a control or transactional batch: there are no transactions yet")
    if header.log_append_time:
        return (ErrorCode.INVALID_TIMESTAMP, "says that its timestamps are the log append time: the broker says that")
    if header.columnar and config.rows_only:
        return (
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,  # RULES 10.1
            "has a columnar payload, the topic's payload.format is rows: send rows",
        )
    return None


def timestamp_problem(timestamps_ms: tuple[int, int], config: TopicConfig, now_ms: int) -> tuple[ErrorCode, str] | None:
    """Of the first record and of the latest, or of the lowest; -1 is none, as in Kafka."""
    for timestamp_ms in timestamps_ms:
        if not writable(timestamp_ms):
            return (
                ErrorCode.INVALID_TIMESTAMP,
                f"has the timestamp {timestamp_ms}: it is ms since 1970, from 0 to {MAX_TIMESTAMP_MS}, or -1 for none",
            )
        if timestamp_ms == NO_TIMESTAMP:
            continue
        if config.timestamp_before_max_ms is not None and now_ms - timestamp_ms > config.timestamp_before_max_ms:
            return (
                ErrorCode.INVALID_TIMESTAMP,
                f"has the timestamp {timestamp_ms}, {now_ms - timestamp_ms} ms before the broker's clock: "
                f"message.timestamp.before.max.ms is {config.timestamp_before_max_ms}",
            )
        if config.timestamp_after_max_ms is not None and timestamp_ms - now_ms > config.timestamp_after_max_ms:
            return (
                ErrorCode.INVALID_TIMESTAMP,
                f"has the timestamp {timestamp_ms}, {timestamp_ms - now_ms} ms after the broker's clock: "
                f"message.timestamp.after.max.ms is {config.timestamp_after_max_ms}",
            )
    return None
