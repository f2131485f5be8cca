"""Times that a broker takes in a produced batch, rows and columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from highwater.configuration.value_checks import LONG_MAX
from highwater.errors import ErrorCode
from highwater.records import Record, TimestampType, encode_columns, encode_rows
from highwater.records.timestamps import MAX_TIMESTAMP_MS
from highwater.replica_manager.partition.topic_config import TopicConfig, parse
from highwater.replica_manager.requests import batch_check
from highwater.replica_manager.requests.batch_check import CheckedBatches
from highwater.replica_manager.requests.payload_check import check_payloads

NOW = 1_800_000_000_000
HOUR = 3_600_000
ANY = TopicConfig(min_insync_replicas=1, max_message_bytes=1 << 20, rows_only=False, compacted=False)
OPEN = replace(ANY, timestamp_after_max_ms=LONG_MAX)
NARROW = replace(ANY, timestamp_before_max_ms=1000, timestamp_after_max_ms=1000)
APPEND_TIME = replace(ANY, timestamp_before_max_ms=None, timestamp_after_max_ms=None)


def check(produced: bytes, config: TopicConfig, now_ms: int) -> CheckedBatches:
    """Of the headers, and then of what is in the batches."""
    checked = batch_check.check(produced, config, now_ms)
    return checked if checked.error is not ErrorCode.NONE else check_payloads(produced, checked, config, now_ms)


def rows(*timestamps: int) -> bytes:
    return encode_rows([Record(0, timestamp, b"k", b"v", ()) for timestamp in timestamps])


def columns(*timestamps: int) -> bytes:
    count = len(timestamps)
    table = {"timestamp": pa.array(timestamps, pa.int64()), "key": [b"k"] * count, "value": [b"v"] * count}
    return encode_columns(pa.table(table))


@pytest.mark.parametrize("encode", [rows, columns])
@pytest.mark.parametrize(
    ("timestamps", "config", "error"),
    [
        ((NOW,), ANY, ErrorCode.NONE),
        ((0,), ANY, ErrorCode.NONE),
        ((-1,), ANY, ErrorCode.NONE),  # none
        ((-1, -1), NARROW, ErrorCode.NONE),
        ((-5,), ANY, ErrorCode.INVALID_TIMESTAMP),
        ((-5, NOW), ANY, ErrorCode.INVALID_TIMESTAMP),
        ((2**62,), OPEN, ErrorCode.INVALID_TIMESTAMP),
        ((NOW, 2**62), OPEN, ErrorCode.INVALID_TIMESTAMP),
        ((-(2**63),), OPEN, ErrorCode.INVALID_TIMESTAMP),
        ((MAX_TIMESTAMP_MS,), OPEN, ErrorCode.NONE),
        ((MAX_TIMESTAMP_MS + 1,), OPEN, ErrorCode.INVALID_TIMESTAMP),
        ((NOW + HOUR,), ANY, ErrorCode.NONE),
        ((NOW + HOUR + 1,), ANY, ErrorCode.INVALID_TIMESTAMP),
        ((NOW, NOW + HOUR + 1, NOW), ANY, ErrorCode.INVALID_TIMESTAMP),
        ((NOW - 1000, NOW + 1000), NARROW, ErrorCode.NONE),
        ((NOW - 1001,), NARROW, ErrorCode.INVALID_TIMESTAMP),
        ((NOW + 1001,), NARROW, ErrorCode.INVALID_TIMESTAMP),
        ((NOW + 2 * HOUR,), APPEND_TIME, ErrorCode.NONE),  # the broker's own takes their place
        ((-5,), APPEND_TIME, ErrorCode.INVALID_TIMESTAMP),
        ((NOW, -5), ANY, ErrorCode.INVALID_TIMESTAMP),  # in no header
        ((NOW, -5, NOW), APPEND_TIME, ErrorCode.INVALID_TIMESTAMP),
        ((NOW, NOW - 1001, NOW), NARROW, ErrorCode.INVALID_TIMESTAMP),
    ],
)
def test_times_are_taken_or_refused(
    encode: Callable[..., bytes], timestamps: tuple[int, ...], config: TopicConfig, error: ErrorCode
) -> None:
    checked = check(encode(*timestamps), config, NOW)
    assert checked.error is error, checked.message
    assert bool(checked.message) is (error is not ErrorCode.NONE)


def test_a_refusal_says_what_is_wrong_and_what_the_topic_takes() -> None:
    assert "has the timestamp -5: it is ms since 1970" in check(rows(-5), ANY, NOW).message
    message = check(columns(NOW + 5000), NARROW, NOW).message
    assert "5000 ms after the broker's clock: message.timestamp.after.max.ms is 1000" in message
    assert "message.timestamp.before.max.ms is 1000" in check(rows(NOW - 5000), NARROW, NOW).message


def test_no_producer_says_that_the_times_are_the_brokers() -> None:
    batch = encode_rows([Record(0, NOW, b"k", b"v", ())], timestamp_type=TimestampType.LOG_APPEND_TIME)
    assert check(batch, ANY, NOW).error is ErrorCode.INVALID_TIMESTAMP


def test_what_a_topic_takes_is_its_configuration() -> None:
    def parsed(**config: str) -> TopicConfig:
        named = {key.replace("_", "."): value for key, value in config.items()}
        return parse(named, min_insync_replicas=1, message_max_bytes=1 << 20, cleanup_policy="delete")

    assert parsed() == ANY
    assert parsed(message_timestamp_after_max_ms="9", message_timestamp_before_max_ms="0") == replace(
        ANY, timestamp_before_max_ms=0, timestamp_after_max_ms=9
    )
    assert parsed(message_timestamp_type="LogAppendTime", message_timestamp_after_max_ms="9") == APPEND_TIME
