"""Offsets of a group in a consumer: where it begins, and what a table commits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from highwater.client import (
    Consumer,
    HighwaterError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    RetriableError,
    TopicPartition,
)
from highwater.client.consumer.arguments import offsets_to_commit
from highwater.client.consumer.committed_positions import CommittedPositions
from highwater.client.consumer.fetch_buffer import FetchBuffer
from highwater.client.topic_partition import EARLIEST_TIMESTAMP
from highwater.errors import ErrorCode

ZERO, ONE = TopicPartition("orders", 0), TopicPartition("orders", 1)


def table(**columns: Any) -> pa.Table:
    """Of two records, as they were consumed but for these columns."""
    return pa.table({"topic": ["a", "a"], "partition": [0, 0], "offset": [1, 2]} | columns)


class Answers:
    """A coordinator's answers, one after the other; the last one again and again."""

    def __init__(self, *answers: dict[TopicPartition, int] | HighwaterError) -> None:
        self.answers = list(answers)
        self.asked: list[list[TopicPartition]] = []

    async def fetch(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        self.asked.append(list(partitions))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, HighwaterError):
            raise answer
        return {partition: answer[partition] for partition in partitions if partition in answer}


class Begun:
    """`CommittedPositions` of these answers, running, and two buffers that wait for theirs."""

    def __init__(self, answers: Answers, reset_timestamp: int | None = EARLIEST_TIMESTAMP) -> None:
        self.changed = asyncio.Event()
        self.reset: list[TopicPartition] = []
        self.positions = CommittedPositions(answers, reset_timestamp, self.reset.append, self.changed.set)  # type: ignore[arg-type]
        self.zero, self.one = FetchBuffer(ZERO, lambda _: None), FetchBuffer(ONE, lambda _: None)
        self.positions.want(self.zero)
        self.positions.want(self.one)

    async def until_known(self) -> None:
        running = asyncio.create_task(self.positions.run())
        try:
            async with asyncio.timeout(10):
                while not all(
                    buffer.position is not None or buffer.error is not None or buffer.reset_timestamp is not None
                    for buffer in (self.zero, self.one)
                ):
                    self.changed.clear()
                    await self.changed.wait()
        finally:
            running.cancel()


@pytest.mark.parametrize(
    "error",
    [
        RetriableError("loading", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        RetriableError("an old epoch", ErrorCode.STALE_MEMBER_EPOCH),
        HighwaterError("out of the group", ErrorCode.UNKNOWN_MEMBER_ID),
    ],
    ids=lambda error: error.code.name,
)
async def test_an_error_resets_nothing(error: HighwaterError) -> None:
    answers = Answers(error, error, {ZERO: 7}, error, {ONE: 9})
    begun = Begun(answers)
    await begun.until_known()
    assert (begun.zero.position, begun.one.position, begun.reset) == (7, 9, [])
    assert answers.asked == [[ZERO, ONE]] * 3 + [[ONE]] * 2


async def test_auto_offset_reset_counts_where_none_was_committed() -> None:
    begun = Begun(Answers({ZERO: -1, ONE: 0}))
    await begun.until_known()
    assert begun.zero.reset_timestamp == EARLIEST_TIMESTAMP
    assert begun.one.position == 0
    assert begun.reset == [ZERO]


async def test_without_a_reset_it_is_an_error() -> None:
    begun = Begun(Answers({ZERO: -1, ONE: 0}), None)
    await begun.until_known()
    assert isinstance(begun.zero.error, OffsetOutOfRangeError)


async def test_a_refusal_for_good_is_raised() -> None:
    begun = Begun(Answers(HighwaterError("no such thing", ErrorCode.INVALID_GROUP_ID)))
    await begun.until_known()
    assert begun.zero.error is not None
    assert begun.one.error is not None


async def test_a_seek_wins() -> None:
    begun = Begun(Answers({ZERO: 7, ONE: 9}))
    begun.zero.seek(3)
    await begun.until_known()
    assert (begun.zero.position, begun.one.position) == (3, 9)


async def test_what_was_taken_away_is_not_looked_up() -> None:
    answers = Answers({ZERO: 7, ONE: 9})
    begun = Begun(answers)
    begun.positions.drop(ZERO)
    begun.zero.seek(0)
    await begun.until_known()
    assert answers.asked == [[ONE]]


def test_a_table_is_done_behind_its_last_row_of_each_partition() -> None:
    table = pa.table(
        {"topic": ["a", "a", "b", "a"], "partition": [0, 0, 0, 1], "offset": [4, 9, 2, 0], "value": [b""] * 4}
    )
    expected = {("a", 0): 10, ("b", 0): 3, ("a", 1): 1}
    assert offsets_to_commit(table) == expected
    assert offsets_to_commit(table.combine_chunks().to_batches()[0]) == expected

    class Frame:
        def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
            return table.__arrow_c_stream__(requested_schema)

    assert offsets_to_commit(Frame()) == expected
    assert offsets_to_commit(table.slice(0, 0)) == {}
    assert offsets_to_commit({("a", 0): 3}) == {TopicPartition("a", 0): 3}


def test_what_cannot_be_committed_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="no column offset, partition"):
        offsets_to_commit(pa.table({"topic": ["a"]}))
    with pytest.raises(InvalidRequestError, match="not of int"):
        offsets_to_commit(3)
    with pytest.raises(InvalidRequestError, match="negative"):
        offsets_to_commit({("a", 0): -1})


@pytest.mark.parametrize(
    ("done", "told"),
    [
        ({("a", 0): 1.0}, "a-0: offset 1.0 is no whole number"),
        ({("a", 0): None}, "a-0: offset None is no whole number"),
        ({("a", 0): True}, "a-0: offset True is no whole number"),
        ({("a", 0): 1 << 63}, "a-0: offset 9223372036854775808 is too high"),
        ({"a": 1}, "'a' is no partition"),
        ({("a", "0"): 1}, "is no partition"),
        ({("a", -1): 1}, "no partition has that number"),
        ({("a", 0, 0): 1}, "is no partition"),
        (table(offset=[1, None]), "column offset of the table has 1 nulls"),
        (table(partition=[None, None]), "column partition of the table is of null"),
        (table(topic=["a", None]), "column topic of the table has 1 nulls"),
        (table(offset=[1.0, 2.0]), "column offset of the table is of double"),
        (table(partition=[0.0, 1.0]), "column partition of the table is of double"),
        (table(topic=[1, 2]), "is no partition"),
        (table(offset=[1, (1 << 63) - 1]), "a-0: offset 9223372036854775808 is too high"),
        (table(offset=[1, -5]), "a-0: offset -5 is negative"),
    ],
)
def test_a_commit_of_nonsense_says_what_it_is(done: object, told: str) -> None:
    with pytest.raises(InvalidRequestError, match=told):
        offsets_to_commit(done)


def test_whole_numbers_of_any_kind_are_offsets() -> None:
    (offset,) = offsets_to_commit({("a", np.int32(1)): np.int64(3)}).items()
    assert offset == (TopicPartition("a", 1), 3)
    assert type(offset[1]) is int
    assert offsets_to_commit(table(offset=pa.array([1, 2], pa.uint64()))) == {("a", 0): 3}
    assert offsets_to_commit(table(topic=pa.array(["a", "a"]).dictionary_encode())) == {("a", 0): 3}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"max_poll_records": 0}, "max_poll_records is 0; it is a whole number from 1"),
        ({"max_poll_interval_ms": 1e6}, "max_poll_interval_ms is 1000000.0; it is a whole number"),
        ({"max_poll_interval_ms": 1 << 31}, "max_poll_interval_ms is 2147483648"),
        ({"fetch_min_bytes": -1}, "fetch_min_bytes is -1"),
        ({"fetch_max_bytes": True}, "fetch_max_bytes is True"),
        ({"auto_commit_interval_ms": "5000"}, "auto_commit_interval_ms is '5000'; it is a number of ms"),
        ({"auto_commit_interval_ms": float("nan")}, "auto_commit_interval_ms is nan"),
        ({"request_timeout_ms": None}, "request_timeout_ms is None"),
        ({"group": ""}, "group is ''; it is a str that is not empty"),
        ({"group": 7}, "group is 7; it is a str"),
        ({"pattern": ["a.*"]}, "pattern is .*; it is a str"),
        ({"client_id": None}, "client_id is None"),
        ({"enable_auto_commit": "false"}, "enable_auto_commit is 'false'; it is True or False"),
        ({"on_revoked": []}, "on_revoked is .*; it is a function"),
        ({"auto_offset_reset": 1.5}, "auto_offset_reset is 1.5"),
        ({"auto_offset_reset": None}, "auto_offset_reset is None"),
    ],
    ids=str,
)
def test_a_wrong_option_is_named(options: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidRequestError, match=told):
        Consumer("orders", **({"group": "readers"} | options))


def test_options_of_groups_need_one() -> None:
    with pytest.raises(InvalidRequestError, match="pattern is of a consumer with a group"):
        Consumer(pattern="orders.*")
    with pytest.raises(InvalidRequestError, match="shared out"):
        Consumer("orders", group="readers").assign([("orders", 0)])
