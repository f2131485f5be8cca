"""The progress of reads while their tasks run: the reports of tasks, and their sum over a read. Pure.

Reports are cumulative, so one that is lost is made good by the next.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from highwater.spark.offsets.ranges import OffsetRange

LISTENER_PROPERTY = "highwater.progress.listener"
"""Of a Spark job: where its tasks send reports to, as `token@host:port`."""
MAX_REPORT_BYTES = 1024
MAX_LABEL = 80
# Bounds of what a driver remembers. A range beyond them is not counted.
MAX_READS = 64
MAX_RANGES = 100_000


@dataclass(frozen=True, slots=True)
class RangeOfRead:
    """A task's range as a part of the batch read or micro-batch that it belongs to."""

    read_id: str  # of one planning: another use of the same plan has another stage
    label: str  # the topics
    index: int  # `0 <= index < ranges`
    ranges: int
    offsets: int  # of all ranges


@dataclass(frozen=True, slots=True)
class RangeReport:
    part: RangeOfRead
    stage_id: int
    done: int  # records so far; all of the range's offsets at its end


@dataclass(frozen=True, slots=True)
class ReadProgress:
    """A read as it stands: `done` of about `total` records (offsets: compaction leaves fewer)."""

    label: str
    done: int
    total: int


@dataclass(slots=True)
class _Read:
    label: str
    ranges: int
    offsets: int
    done: dict[int, int] = field(default_factory=dict)  # by index of the range


class ReadTally:
    """Sums of reports, by read."""

    def __init__(self) -> None:
        self._reads: dict[tuple[str, int], _Read] = {}  # by read and stage, oldest first

    def add(self, report: RangeReport) -> None:
        part = report.part
        read = self._reads.get((part.read_id, report.stage_id))
        if read is None:
            if len(self._reads) >= MAX_READS:
                del self._reads[next(iter(self._reads))]
            read = self._reads[part.read_id, report.stage_id] = _Read(part.label, part.ranges, part.offsets)
        if 0 <= part.index < min(read.ranges, MAX_RANGES):
            # A task that is run again begins anew: what was read before does not become less.
            read.done[part.index] = max(report.done, read.done.get(part.index, 0))

    def reads(self, active_stages: Collection[int] = ()) -> list[ReadProgress]:
        """Yields the newest read of each label, and with it those of the same label that are in active stages."""
        shown: dict[str, list[_Read]] = {}
        for (_, stage_id), read in reversed(self._reads.items()):
            if read.label not in shown or stage_id in active_stages:
                shown.setdefault(read.label, []).append(read)
        return [
            ReadProgress(label, sum(sum(read.done.values()) for read in reads), sum(read.offsets for read in reads))
            for label, reads in sorted(shown.items())
        ]


def ranges_of_read(read_id: str, ranges: Sequence[OffsetRange]) -> list[RangeOfRead]:
    """The part that each range is of its read."""
    topics = sorted({one.partition.topic for one in ranges})
    label = ", ".join(topics)
    if len(label) > MAX_LABEL:
        label = f"{len(topics)} topics"
    offsets = sum(one.size for one in ranges)
    return [RangeOfRead(read_id, label, index, len(ranges), offsets) for index in range(len(ranges))]


def encode_report(token: str, report: RangeReport) -> bytes:
    part = report.part
    fields = [token, part.read_id, part.label, part.index, part.ranges, part.offsets, report.stage_id, report.done]
    return json.dumps(fields).encode()


def decode_report(token: str, datagram: bytes) -> RangeReport | None:
    """Decodes a datagram; None where it is no report under this token."""
    try:
        given, read_id, label, *numbers = json.loads(datagram)
        index, ranges, offsets, stage_id, done = map(int, numbers)
    except (ValueError, TypeError):
        return None
    if given != token or not isinstance(read_id, str) or not isinstance(label, str):
        return None
    return RangeReport(RangeOfRead(read_id, label[:MAX_LABEL], index, ranges, offsets), stage_id, done)
