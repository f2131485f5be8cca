"""The times at which records of a partition came, as far as looks at its end tell: no record is read for it. Pure."""

from __future__ import annotations

from typing import NamedTuple

MOST_ENDS = 16


class _End(NamedTuple):
    offset: int
    first_ms: int  # when it was first seen here: what is below had come
    last_ms: int  # and last: what is at it had not


class EndHistory:
    """Ends of one partition's log by ascending offset, `MOST_ENDS` of them: the older they are the further apart."""

    __slots__ = ("_ends",)

    def __init__(self) -> None:
        self._ends: list[_End] = []

    def saw(self, end: int, now_ms: int) -> None:
        ends = self._ends
        if ends and end < ends[-1].offset:
            ends.clear()  # the topic is another one, or its log was cut
        if ends and end == ends[-1].offset:
            ends[-1] = ends[-1]._replace(last_ms=now_ms)
            return
        ends.append(_End(end, now_ms, now_ms))
        if len(ends) > MOST_ENDS:
            del ends[self._least_missed(now_ms)]

    def _least_missed(self, now_ms: int) -> int:
        """The place of an end, not the first or last one, without which the ages around it change least in
        proportion."""
        ends = self._ends
        return min(
            range(1, len(ends) - 1),
            key=lambda at: (ends[at + 1].first_ms - ends[at - 1].last_ms) / (now_ms - ends[at].last_ms + 1),
        )

    def reaches(self, offset: int) -> bool:
        """Tells whether there is an end at or below this offset, from which to reckon."""
        return bool(self._ends) and self._ends[0].offset <= offset

    def read(self, offset: int, time_ms: int) -> None:
        """Takes the time of a record below all that was seen."""
        if self._ends and offset < self._ends[0].offset:
            time_ms = min(time_ms, self._ends[0].first_ms)
            self._ends.insert(0, _End(offset, time_ms, time_ms))
            if len(self._ends) > MOST_ENDS:
                del self._ends[1]

    def forget_below(self, offset: int) -> None:
        """Nobody asks for earlier records any more."""
        while len(self._ends) > 1 and self._ends[1].offset <= offset:
            del self._ends[0]

    def came_ms(self, offset: int) -> int:
        """The time at which the record at this offset, below the end that was seen last, came: reckoned between two
        ends. Of one below the first of them it is known only that it was there by then."""
        before = self._ends[0]
        if offset < before.offset:
            return before.first_ms
        for after in self._ends[1:]:
            if offset < after.offset:
                share = (offset - before.offset) / (after.offset - before.offset)
                return before.last_ms + round((after.first_ms - before.last_ms) * share)
            before = after
        return before.last_ms
