"""The progress of a replay, step by step, in the one place that outlives it.

    CHECKPOINT/000000000012.json    the step that was begun last

A step is written down before its first record is sent, with the ends that the topic has then: a replay that begins
again finds what of the step has arrived behind these ends, and sends the rest. The step after it, or the end, says that
all of it has arrived.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from highwater.spark.pipelines.archives.commits import Files, commit_numbers

PartitionOffsets = Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Step:
    """Offsets are of the archived partitions but for `ends`, which are of the topic's that is sent to."""

    number: int
    archive: str
    topic: str
    topic_id: str  # of the topic that is sent to, in hex: one that was made anew has another
    sent: PartitionOffsets  # everything before these was sent
    until: PartitionOffsets  # what this step sends ends here
    ends: PartitionOffsets
    keep_partitions: bool | None  # None: it was begun by a version that did not note it

    @property
    def empty(self) -> bool:
        """Nothing is left to send: the end of a replay."""
        return self.sent == self.until


class ReplayProgress:
    def __init__(self, files: Files, checkpoint: str) -> None:
        self._files = files
        self._checkpoint = checkpoint.rstrip("/")

    def last(self) -> Step | None:
        """The step that was begun last; None: no replay was."""
        numbers = commit_numbers(self._files.names(self._checkpoint))
        return _parsed(numbers[-1], self._files.read(self._path(numbers[-1]))) if numbers else None

    def write(self, step: Step) -> None:
        written = {
            "archive": step.archive,
            "topic": step.topic,
            "topic_id": step.topic_id,
            "sent": step.sent,
            "until": step.until,
            "ends": step.ends,
            "keep_partitions": step.keep_partitions,
        }
        self._files.write(self._path(step.number), json.dumps(written, indent=1).encode())
        self._files.delete(self._path(step.number - 1))

    def _path(self, number: int) -> str:
        return f"{self._checkpoint}/{number:012d}.json"


def _parsed(number: int, text: bytes) -> Step:
    read: dict[str, Any] = json.loads(text)
    sent, until, ends = (
        {int(partition): offset for partition, offset in read[name].items()} for name in ("sent", "until", "ends")
    )
    kept = read.get("keep_partitions")
    return Step(number, read["archive"], read["topic"], read["topic_id"], sent, until, ends, kept)


def next_until(sent: PartitionOffsets, ends: PartitionOffsets, offsets: int) -> dict[int, int]:
    """The offsets at which a step ends that sends about so many offsets: of each partition that has some left at least
    one, and as large a part as of the others, so that tasks have as much to do as each other up to the last step.
    Pure."""
    left = {partition: end - sent[partition] for partition, end in ends.items() if end > sent[partition]}
    further = max(offsets - len(left), 0)  # than the first of each
    all_further = sum(left.values()) - len(left)
    until = {partition: max(end, sent[partition]) for partition, end in ends.items()}
    if further < all_further:
        seen = taken = 0  # rounded together: what each loses by itself would be a step at the end
        for partition, count in left.items():
            seen += count - 1
            until[partition] = sent[partition] + 1 + seen * further // all_further - taken
            taken = seen * further // all_further
    return until
