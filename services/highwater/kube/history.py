"""The records that a load has sent and read, and whether the two agree. Pure.

Every writer has a key of its own and numbers its records from 0. What must hold at the end, whatever died meanwhile:

- an acknowledged record stands at the offset that was acknowledged (invariant 1);
- a writer's records stand in one partition, each once, in the order in which they were sent;
- an offset that was read once is read the same for ever: nothing was seen above the high watermark (invariant 3).
"""

from __future__ import annotations

import zlib
from array import array
from collections import Counter
from dataclasses import dataclass, field

_UNACKNOWLEDGED = -1
_OFFSET_BITS = 48
SHOWN = 20  # problems in words; the others are counted


def record_value(writer: int, number: int, filler: bytes = b"") -> bytes:
    return b"%d:%d:%s" % (writer, number, filler)


def parsed(value: bytes | None) -> tuple[int, int]:
    """Writer and number. Raises `ValueError`."""
    writer, number, _ = (value or b"").split(b":", 2)
    return int(writer), int(number)


@dataclass
class History:
    """8 bytes a record that was sent, 4 an offset that was read."""

    writers: int
    problems: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._places = [array("q") for _ in range(self.writers)]
        self._digests: dict[int, array[int]] = {}

    def problem(self, kind: str, said: str) -> None:
        self.counts[kind] += 1
        if len(self.problems) < SHOWN:
            self.problems.append(f"{kind}: {said}")

    # While it runs

    def sent(self, writer: int) -> int:
        """The number of the writer's next record."""
        self._places[writer].append(_UNACKNOWLEDGED)
        self.counts["sent"] += 1
        return len(self._places[writer]) - 1

    def acknowledged(self, writer: int, number: int, partition: int, offset: int) -> None:
        self._places[writer][number] = partition << _OFFSET_BITS | offset
        self.counts["acknowledged"] += 1

    def failed(self, writer: int, number: int, error: Exception) -> None:
        """Not acknowledged: perhaps it is in the log, perhaps not."""
        self.problem("failed sends", f"record {number} of writer {writer}: {error}")

    def read(self, partition: int, offset: int, key: bytes | None, value: bytes | None) -> None:
        """A reader saw this record; in every partition they are seen from offset 0 on, the next or one seen before."""
        digest = zlib.crc32(value or b"", zlib.crc32(key or b""))
        seen = self._digests.setdefault(partition, array("L"))
        if offset > len(seen):
            self.problem("skipped offsets", f"partition {partition} goes on at {offset} after {len(seen) - 1}")
            seen.extend([0] * (offset - len(seen)))
        if offset == len(seen):
            seen.append(digest)
            self.counts["read"] += 1
        elif seen[offset] != digest:
            self.problem("changed records", f"offset {offset} of partition {partition} was another record before")

    def next_offset(self, partition: int) -> int:
        """The offset at which a reader of the partition goes on."""
        return len(self._digests.get(partition, ()))


class Checker:
    """The whole log, read once more from its beginning, against a history."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._next: dict[int, int] = {}
        self._last = [-1] * history.writers
        self._partitions: dict[int, int] = {}
        self._found = 0

    def record(self, partition: int, offset: int, key: bytes | None, value: bytes | None) -> None:
        """In the order of their offsets in each partition."""
        history = self._history
        if (expected := self._next.get(partition, 0)) != offset:
            history.problem("skipped offsets", f"partition {partition} goes on at {offset} instead of {expected}")
        self._next[partition] = offset + 1
        history.read(partition, offset, key, value)
        writer, number = parsed(value)
        if number <= self._last[writer]:
            kind = "repeated records" if number == self._last[writer] else "reordered records"
            history.problem(kind, f"writer {writer}: {number} after {self._last[writer]} at {partition}-{offset}")
        self._last[writer] = number
        if self._partitions.setdefault(writer, partition) != partition:
            history.problem("scattered keys", f"writer {writer} is in partition {partition}, too")
        place = history._places[writer][number]
        if place == _UNACKNOWLEDGED:
            history.counts["in the log though not acknowledged"] += 1
        elif place == partition << _OFFSET_BITS | offset:
            self._found += 1
        else:
            said = f"record {number} of writer {writer} was acknowledged at {place & (1 << _OFFSET_BITS) - 1}"
            history.problem("moved records", f"{said}, and stands at {offset} of partition {partition}")

    def end(self) -> None:
        """All has been read."""
        lost = self._history.counts["acknowledged"] - self._found
        if lost:
            self._history.problem("lost records", f"{lost} acknowledged records are not where they were acknowledged")
