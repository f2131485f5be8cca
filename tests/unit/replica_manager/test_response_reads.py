"""The partitions of one response: in their order, within its room, and those that log-storage has side by side."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from highwater.model.partition import PartitionKey
from highwater.replica_manager.responses.fetch_parts import FetchedPart, FetchPart
from highwater.replica_manager.responses.response_reads import READS_AT_ONCE, PartRead, ResponseReads, shares

BATCH = 10


class Reader:
    """Partitions with so many bytes each, in batches; `cached` are those that need not be asked for."""

    def __init__(self, room: int, sizes: Sequence[int], *, cached: Sequence[int] = (), batch: int = BATCH) -> None:
        self.sizes = sizes
        self.batch = batch
        self.asked: list[list[int]] = []  # side by side
        self.given: dict[int, int] = {}
        self.left_out: list[int] = []
        self.limits: dict[int, int] = {}
        self.asked_for: list[FetchedPart] = []
        self.read_bytes: list[int] = []  # side by side
        self._cached = cached
        self.reads: ResponseReads[int] = ResponseReads(self._read, room, BATCH, self._done)

    async def read(self) -> None:
        for number in range(len(self.sizes)):
            key = PartitionKey(bytes(16), number)
            hosted: Any = SimpleNamespace(is_cached=lambda _, number=number: number in self._cached)
            self.asked_for.append(FetchedPart(key))
            await self.reads.add(number, hosted, FetchPart(key, 0, 0, self.limits.get(number, 0)), self.asked_for[-1])
        await self.reads.finish()

    async def _read(self, reads: Sequence[PartRead]) -> list[tuple[FetchedPart, int]]:
        self.asked.append([read.part.key.partition for read in reads])
        found = []
        for read in reads:
            size = self.sizes[read.part.key.partition]
            fits = max(self.batch, read.max_bytes // self.batch * self.batch)
            found.append((read.admitted, min(size, fits)))
            read.admitted.pieces = (bytes(min(size, fits)),)
        self.read_bytes.append(sum(size for _, size in found))
        return found

    def _done(self, number: int, found: FetchedPart | None, size_bytes: int) -> None:
        if found is None:
            self.left_out.append(number)
        else:
            self.given[number] = size_bytes


async def test_what_log_storage_has_is_read_side_by_side() -> None:
    reader = Reader(10_000, [100] * 20)
    await reader.read()
    assert [len(asked) for asked in reader.asked] == [READS_AT_ONCE, READS_AT_ONCE, 4]
    assert list(reader.given) == list(range(20))
    assert not reader.left_out


async def test_what_is_cached_is_not_kept_waiting_by_what_is_not() -> None:
    reader = Reader(10_000, [100] * 4, cached=[0, 1, 2, 3])
    await reader.read()
    assert reader.asked == [[0], [1], [2], [3]]  # each takes what it has, and the rest is the others'
    reader = Reader(150, [100] * 4, cached=[0, 1, 2, 3])
    await reader.read()
    assert reader.given == {0: 100, 1: 50}
    assert reader.left_out == [2, 3]


async def test_no_more_are_read_side_by_side_than_there_is_room_for_batches() -> None:
    reader = Reader(3 * BATCH, [1_000] * 8)
    await reader.read()
    assert reader.asked == [[0, 1, 2]]
    assert reader.given == {0: 10, 1: 10, 2: 10}
    assert reader.left_out == [3, 4, 5, 6, 7]


async def test_what_is_not_used_of_a_share_is_the_next_ones() -> None:
    reader = Reader(200, [10] * 8 + [1_000])
    await reader.read()
    assert reader.asked == [list(range(8)), [8]]
    assert reader.given[8] == 120


async def test_the_first_batch_comes_whole_and_others_are_left_out_after_it() -> None:
    reader = Reader(20, [500, 500], batch=500)
    await reader.read()
    assert reader.given == {0: 500}
    assert reader.left_out == [1]


async def test_small_limits_of_some_leave_room_for_their_first_batches() -> None:
    reader = Reader(8 * BATCH, [1_000] * 8)
    reader.limits = dict.fromkeys(range(7), 1)  # a batch comes all the same
    await reader.read()
    assert reader.given == dict.fromkeys(range(8), BATCH)


async def test_a_batch_for_which_there_is_no_room_left_is_left_out_whole() -> None:
    reader = Reader(25, [1_000] * 2, cached=[0, 1], batch=20)
    reader.limits = {0: 20}
    await reader.read()
    assert reader.given == {0: 20}
    assert reader.left_out == [1]
    assert not reader.asked_for[1].pieces


async def test_behind_a_batch_for_which_there_is_no_room_nothing_is_read() -> None:
    reader = Reader(25, [1_000] * 100, cached=range(0, 100, 2), batch=20)
    reader.limits = {0: 20}
    await reader.read()
    assert reader.given == {0: 20}
    assert reader.asked == [[0], [1]]
    assert reader.left_out == list(range(1, 100))


@given(
    st.integers(1, 400),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 50), st.booleans()), min_size=1, max_size=30),
)
async def test_a_response_has_no_more_than_its_room_or_its_first_batch(
    room: int, partitions: list[tuple[int, int, bool]]
) -> None:
    sizes = [size for size, _, _ in partitions]
    reader = Reader(room, sizes, cached=[n for n, (_, _, cached) in enumerate(partitions) if cached])
    reader.limits = {number: limit for number, (_, limit, _) in enumerate(partitions)}
    await reader.read()
    assert sum(reader.given.values()) <= max(room, BATCH)
    assert sorted([*reader.given, *reader.left_out]) == list(range(len(sizes)))
    assert max(reader.read_bytes, default=0) <= max(room, BATCH)  # nor is more than that read side by side
    if any(sizes):
        assert any(reader.given.values())


@given(st.integers(1, 10_000), st.lists(st.integers(1, 10_000), min_size=1, max_size=8))
def test_shares_are_equal_but_for_limits_and_leave_nothing_that_is_wanted(room: int, limits: list[int]) -> None:
    made = shares(room, limits)
    assert all(1 <= share <= limit for share, limit in zip(made, limits, strict=True))
    if room >= len(limits):
        assert sum(made) <= room
        unlimited = [share for share, limit in zip(made, limits, strict=True) if share < limit]
        assert not unlimited or (max(made) == max(unlimited) and max(unlimited) - min(unlimited) <= 1)
        assert not unlimited or sum(made) == room
