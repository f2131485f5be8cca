"""Spark's tasks and batches of the log that cannot be read: an error that names the option, or passed over."""

from __future__ import annotations

import pyarrow as pa
import pytest

from highwater.client.consumer.fetch_buffer import FetchBuffer
from highwater.client.exceptions import CorruptRecordError
from highwater.client.topic_partition import TopicPartition
from highwater.records import encode_columns
from highwater.spark.options.data_source_options import parse_read_options
from highwater.spark.source.range_reader import _new_consumer
from highwater.spark.source.read_plan import read_plan

BASE = {"highwater.bootstrap.servers": "a:1", "subscribe": "t"}


def buffer_of(options: dict[str, str]) -> FetchBuffer:
    """As a task has it, with two batches of which the first is damaged."""
    consumer = _new_consumer(read_plan(parse_read_options(options, streaming=True), options))
    buffer = consumer._empty_buffer(TopicPartition("t", 0))
    buffer.seek(100)
    damaged = bytearray(encode_columns(pa.table({"value": [b"a", b"b"]}), base_offset=100))
    damaged[-1] ^= 1
    buffer.accept(bytes(damaged) + encode_columns(pa.table({"value": [b"c"]}), base_offset=102), 103, 0)
    return buffer


async def test_the_error_names_the_option() -> None:
    buffer = buffer_of(BASE)
    taken = buffer.take_encoded()
    assert taken is not None
    with pytest.raises(CorruptRecordError, match="offsets 100 to 101.* set option onCorrupt to skip, or seek to 102"):
        buffer.decoded(taken[0])


async def test_a_task_passes_over_it_by_choice(caplog: pytest.LogCaptureFixture) -> None:
    buffer = buffer_of({**BASE, "onCorrupt": "Skip"})
    first, second = buffer.take_encoded(), buffer.take_encoded()
    assert first is not None
    assert second is not None
    assert buffer.decoded(first[0]) is None
    batch = buffer.decoded(second[0])
    assert batch is not None
    assert [record.offset for record in batch.records()] == [102]
    assert "t-0: offsets 100 to 101 cannot be read and are passed over" in caplog.text
