"""The offsets that each file of an archive has of each partition, and which can be read in order, file by file. Pure.

A task that reads one file from its beginning to its end has the records of a partition in their order where that file
alone has them, in order. Nothing needs to be exchanged between tasks or sorted then.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate

Ranges = Mapping[int, tuple[int, int]]
"""Of a partition: from the first of these offsets to before the other."""
# Fewer offsets than these are better read with those of other files, exchanged and sorted: a step costs as much.
_WORTH_A_STEP = 1_000_000


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of one partition that one file has: offsets in `first <= offset < end`."""

    path: str
    partition: int
    first: int
    end: int
    in_order: bool


class Pieces:
    """All of one topic."""

    def __init__(self, pieces: Iterable[Piece]) -> None:
        by_partition: dict[int, list[Piece]] = defaultdict(list)
        for one in pieces:
            by_partition[one.partition].append(one)
        self._pieces = {
            partition: sorted(found, key=lambda one: one.first) for partition, found in by_partition.items()
        }
        # As far as any piece goes up to each of them: pieces may overlap where an archive has records twice.
        self._reached = {
            partition: list(accumulate((one.end for one in found), max)) for partition, found in self._pieces.items()
        }
        self.firsts: Mapping[int, int] = {partition: found[0].first for partition, found in self._pieces.items()}
        """The first archived offset of each partition."""
        self.ends: Mapping[int, int] = {partition: reached[-1] for partition, reached in self._reached.items()}
        """The offset after the last archived one."""

    def paths(self, ranges: Ranges) -> list[str]:
        """Paths of the files that have offsets in these ranges, sorted."""
        found = {one.path for partition, (first, until) in ranges.items() for one in self._of(partition, first, until)}
        return sorted(found)

    def in_order(self, ranges: Ranges) -> bool:
        """One file has all of each range, in order."""
        found = [self._of(partition, first, until) for partition, (first, until) in ranges.items()]
        return all(len(pieces) <= 1 and all(one.in_order for one in pieces) for pieces in found)

    def until_file_ends(self, ranges: Ranges) -> Ranges:
        """The ranges, or their beginnings, so that `in_order` holds where that leaves enough of them."""
        cut = {partition: (first, self._file_end(partition, first, end)) for partition, (first, end) in ranges.items()}
        enough = min(_count(ranges) // 2, _WORTH_A_STEP)
        return cut if _count(cut) >= enough and self.in_order(cut) else ranges

    def _file_end(self, partition: int, first: int, until: int) -> int:
        pieces = self._of(partition, first, until)
        return min(pieces[0].end, until) if pieces else until

    def _of(self, partition: int, first: int, until: int) -> list[Piece]:
        """Those that have offsets in a range, by their first offset."""
        if first >= until:
            return []
        pieces, reached = self._pieces.get(partition, []), self._reached.get(partition, [])
        index = bisect_left(pieces, until, key=lambda one: one.first)
        found = []
        while index and reached[index - 1] > first:
            index -= 1
            if pieces[index].end > first:
                found.append(pieces[index])
        return found[::-1]


def _count(ranges: Ranges) -> int:
    return sum(until - first for first, until in ranges.values())
