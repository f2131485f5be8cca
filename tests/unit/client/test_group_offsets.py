"""Offsets of a group in a consumer: where it begins, and what a table commits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

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


def test_options_of_groups_need_one() -> None:
    with pytest.raises(InvalidRequestError, match="pattern is of a consumer with a group"):
        Consumer(pattern="orders.*")
    with pytest.raises(InvalidRequestError, match="shared out"):
        Consumer("orders", group="readers").assign([("orders", 0)])
