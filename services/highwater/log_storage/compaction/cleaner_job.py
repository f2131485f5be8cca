"""The jobs that log-storage gives to a cleaner's process, and its answers, as one JSON object a line."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple


class SegmentFile(NamedTuple):
    """A sealed segment of the log, which nobody writes to."""

    base_offset: int
    next_offset: int  # where the next segment begins
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CleanJob:
    """A pass over a log. `segments` are all from the first up to `end_offset`, which is where the last of them ends."""

    directory: str
    segments: tuple[SegmentFile, ...]
    first_dirty_offset: int
    end_offset: int
    wall_clock_ms: int
    delete_retention_ms: int
    segment_bytes: int
    index_max_bytes: int
    index_interval_bytes: int
    contiguous: bool = False  # no offset is missing between two batches, unless one has been lost
    # Of each producer that the log knows, as int64, little-endian: its id, its last offset.
    producers: bytes = b""

    def to_json(self) -> str:
        fields = asdict(self)
        fields["producers"] = b64encode(self.producers).decode()  # there may be many
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str) -> CleanJob:
        fields = json.loads(line)
        fields["segments"] = tuple(SegmentFile(*segment) for segment in fields["segments"])
        fields["producers"] = b64decode(fields["producers"])
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class PassLimits:
    """The resources that a pass may use."""

    map_bytes: int = 128 << 20  # the offset map
    load_factor: float = 0.9  # how full it may be
    io_bytes: int = 512 << 10  # read at once; a larger batch is read whole
    bytes_per_second: float = float("inf")  # read and written


@dataclass(frozen=True, slots=True)
class CleanedGroup:
    """Segments for which one `.cleaned` segment is ready, with the base offset of the first, and what is in it."""

    base_offsets: tuple[int, ...]
    size_bytes: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class PassReport:
    """A pass that is done."""

    cleaned_to: int  # the log is clean up to here
    keys: int  # in the map
    records_read: int
    records_dropped: int
    keyless_dropped: int
    bytes_read: int
    bytes_written: int
    peak_memory_bytes: int  # of the process


@dataclass(frozen=True, slots=True)
class PassFailed:
    """A pass that was not done, and why. `uncleanable`: another one would fail as well."""

    message: str
    uncleanable: bool
    damaged: int | None = None  # base offset of a segment in which a batch is not what was written


Answer = CleanedGroup | PassReport | PassFailed

_KINDS: dict[str, type[Answer]] = {"group": CleanedGroup, "done": PassReport, "failed": PassFailed}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def answer_to_json(answer: Answer) -> str:
    return json.dumps({_NAMES[type(answer)]: asdict(answer)}, separators=(",", ":"))


def answer_from_json(line: str) -> Answer:
    """Raises `ValueError`."""
    told: dict[str, dict[str, Any]] = json.loads(line)
    ((name, fields),) = told.items()
    if name == "group":
        fields["base_offsets"] = tuple(fields["base_offsets"])
    answer: Answer = _KINDS[name](**fields)
    return answer
