"""Reads what is in the files of a log, for `highwater log dump FILE`: plain iterators over a file that nobody needs to
have open."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from highwater.log_storage.files.descriptor import Descriptor
from highwater.log_storage.segment.index_file import IndexFile
from highwater.log_storage.segment.offset_index import OffsetIndex
from highwater.log_storage.segment.segment_files import SEGMENT_SUFFIXES, TIME_INDEX_SUFFIX, base_offset_of
from highwater.log_storage.segment.time_index import TimeIndex
from highwater.log_storage.segment.walk import DamagedBatch, walk
from highwater.records import BatchHeader, CorruptBatchError, Record, decode


@dataclass(frozen=True, slots=True)
class DumpedBatch:
    """`header` is None where not even a header stands at `position`: then it is the last."""

    position: int
    header: BatchHeader | None
    problem: str  # what is wrong with it; empty: valid
    records: tuple[Record, ...] = ()


@dataclass(frozen=True, slots=True)
class DumpedEntry:
    """Of an offset index: (last offset, position). Of a time index: (timestamp in ms, last offset)."""

    first: int
    second: int


def dump_segment(path: Path, *, records: bool = False) -> Iterator[DumpedBatch]:
    """Every batch of a `.log` file. One with a bad CRC is reported and passed over; behind a bad header nothing can be
    found. Raises `OSError`."""
    file = Descriptor(path, os.O_RDONLY)
    try:
        for found in walk(file, 0, file.size_bytes, check_crcs=True, pass_over_damage=True):
            if isinstance(found, DamagedBatch):
                yield DumpedBatch(found.position, found.header, found.problem)
            elif records:
                yield _with_records(file, found.position, found.header)
            else:
                yield DumpedBatch(found.position, found.header, "")
    except OSError as error:
        error.filename = error.filename or str(path)  # a read by descriptor does not say which file it is of
        raise


def _with_records(file: Descriptor, position: int, header: BatchHeader) -> DumpedBatch:
    try:
        decoded = decode(os.pread(file.number, header.size_bytes, position)).records()
    except CorruptBatchError as error:
        return DumpedBatch(position, header, error.reason)
    return DumpedBatch(position, header, "", tuple(decoded))


def dump_index(path: Path) -> Iterator[DumpedEntry]:
    """Every entry of an `.index` or `.timeindex` file. Raises `OSError`, `ValueError` for another name."""
    check_name(path)
    base_offset = base_offset_of(path)
    index: IndexFile
    if path.name.endswith(TIME_INDEX_SUFFIX):
        index = TimeIndex(path, base_offset, os.path.getsize(path))
    else:
        index = OffsetIndex(path, base_offset, os.path.getsize(path))
    index.load()
    for number in range(len(index)):
        first, second = index.entry(number)
        if isinstance(index, TimeIndex):
            yield DumpedEntry(first, base_offset + second)
        else:
            yield DumpedEntry(base_offset + first, second)


def check_name(path: Path) -> None:
    """Raises `ValueError` where it is not that of a segment's or an index's file."""
    number, dot, suffix = path.name.partition(".")
    if not number.isdecimal() or dot + suffix not in SEGMENT_SUFFIXES:
        raise ValueError(f"{path} is not a segment: write <20 digits>.log, .index or .timeindex")
