"""Which files have an offset, and which beginnings of ranges are read in order by one task a file."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from highwater.spark.pipelines.archives.pieces import Piece, Pieces, Ranges

LARGE = 5_000_000


def piece(path: str, partition: int, first: int, end: int, *, in_order: bool = True) -> Piece:
    return Piece(path, partition, first, end, in_order)


def test_a_range_is_in_order_where_one_file_has_all_of_it_in_order() -> None:
    pieces = Pieces(
        [
            piece("a", 0, 0, 100),
            piece("b", 0, 100, 200),
            piece("c", 0, 200, 300, in_order=False),
            piece("b", 1, 0, 50),  # a file may have several partitions
            piece("d", 1, 40, 60),  # a record twice
        ]
    )
    assert (pieces.firsts, pieces.ends) == ({0: 0, 1: 0}, {0: 300, 1: 60})
    assert pieces.in_order({0: (10, 100), 1: (0, 40)})
    assert pieces.in_order({0: (100, 200), 1: (50, 60)})
    assert not pieces.in_order({0: (99, 101)})
    assert not pieces.in_order({0: (200, 210)})
    assert pieces.in_order({0: (200, 200)})
    assert not pieces.in_order({1: (30, 41)})
    assert pieces.paths({0: (99, 101), 1: (50, 60), 7: (0, 10)}) == ["a", "b", "d"]


def test_a_step_ends_where_files_end_if_that_leaves_enough_of_it() -> None:
    large = Pieces([piece("a", 0, 0, LARGE), piece("b", 0, LARGE, 2 * LARGE), piece("c", 1, 0, 2 * LARGE)])
    assert large.until_file_ends({0: (0, 6_000_000), 1: (0, 6_000_000)}) == {0: (0, LARGE), 1: (0, 6_000_000)}
    assert large.until_file_ends({0: (LARGE, 2 * LARGE), 1: (0, 10)}) == {0: (LARGE, 2 * LARGE), 1: (0, 10)}
    small = Pieces([piece(str(first), 0, first, first + 10) for first in range(0, 1000, 10)])
    assert small.until_file_ends({0: (0, 1000)}) == {0: (0, 1000)}
    assert small.until_file_ends({0: (5, 20)}) == {0: (5, 20)}  # 5 of 15 would be left
    assert small.until_file_ends({0: (0, 20)}) == {0: (0, 10)}
    mixed = Pieces([piece("a", 0, 0, LARGE, in_order=False), piece("b", 0, LARGE, 2 * LARGE)])
    assert mixed.until_file_ends({0: (0, 2 * LARGE)}) == {0: (0, 2 * LARGE)}


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60), st.integers(1, 30), st.booleans()), max_size=25),
    st.dictionaries(st.integers(0, 4), st.tuples(st.integers(0, 90), st.integers(0, 40)), max_size=5),
)
def test_they_are_those_that_a_look_at_all_finds(
    found: list[tuple[int, int, int, bool]], wanted: dict[int, tuple[int, int]]
) -> None:
    every = [piece(str(n), p, first, first + count, in_order=o) for n, (p, first, count, o) in enumerate(found)]
    ranges: Ranges = {partition: (first, first + count) for partition, (first, count) in wanted.items()}
    within = {
        partition: [one for one in every if one.partition == partition and one.first < until and one.end > first]
        for partition, (first, until) in ranges.items()
        if first < until
    }
    pieces = Pieces(every)
    paths = {one.path for some in within.values() for one in some}
    assert pieces.paths(ranges) == sorted(paths)
    assert pieces.in_order(ranges) == all(
        not some or [one.in_order for one in some] == [True] for some in within.values()
    )
    cut = pieces.until_file_ends(ranges)
    assert all(first <= cut[p][1] <= until and cut[p][0] == first for p, (first, until) in ranges.items())
    assert cut == ranges or pieces.in_order(cut)
    if any(first < until for first, until in ranges.values()):
        assert any(first < until for first, until in cut.values())
