"""What a task of `mirror` that is run again passes over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.client import TopicPartition
from highwater.errors import UserError
from highwater.spark.pipelines.files.offset_log import offsets_text, parse_offsets
from highwater.spark.pipelines.sending.mirror_rows import AlreadyThere
from highwater.spark.source.columns import arrow_schema

SCHEMA = arrow_schema(("key", "value", "timestamp", "headers"))


def rows(values: list[int]) -> pa.RecordBatch:
    content: list[dict[str, Any]] = [
        {
            "key": None if value % 2 else b"k",
            "value": None if value == 0 else b"%d" % value,
            "timestamp": 1_000_000 + value // 3 * 1000,
            "headers": [{"key": "h", "value": None}] if value == 4 else None,
        }
        for value in values
    ]
    return pa.RecordBatch.from_pylist(content, SCHEMA)


def batches(values: list[int], size: int) -> Iterator[pa.RecordBatch]:
    return (rows(values[begin : begin + size]) for begin in range(0, len(values), size))


def sent(source: list[int], target: list[int], size: int) -> tuple[int, int]:
    """Rows that are passed over, rows that are sent."""
    there = AlreadyThere(batches(target, 3))
    left = [there.passed_over(pa.Table.from_batches([batch])).num_rows for batch in batches(source, size)]
    return there.count, sum(left)


@given(source=st.lists(st.integers(0, 5), max_size=20), done=st.integers(0, 20), size=st.integers(1, 7))
def test_a_beginning_that_is_there_is_passed_over(source: list[int], done: int, size: int) -> None:
    done = min(done, len(source))
    assert sent(source, source[:done], size) == (done, len(source) - done)


@given(source=st.lists(st.integers(0, 5), max_size=15), target=st.lists(st.integers(0, 5), max_size=15))
def test_nothing_is_lost_whatever_else_is_there(source: list[int], target: list[int]) -> None:
    """The rows that are passed over stand in the target, in their order."""
    passed, left = sent(source, target, 4)
    assert passed + left == len(source)
    found = iter(target)
    assert all(any(row == other for other in found) for row in source[:passed])


def test_notes() -> None:
    offsets = {TopicPartition("a", 0): 7, TopicPartition("a", 11): 0, TopicPartition("b", 2): 1 << 40}
    assert parse_offsets(offsets_text(offsets).encode(), "p") == offsets
    for text in (b"", b"[]", b'{"a": 1}', b'{"a": {"x": 1}}'):
        with pytest.raises(UserError, match="^p is not a note of this pipeline"):
            parse_offsets(text, "p")
