"""Tasks of an audit, each of which reads one segment of one replica.

First a digest of each stretch of offsets; where two replicas' digests differ, their batches; where compaction lets them
differ, their records. Functions for `mapInArrow`, over rows that hold pickled lists of `AuditTask`.
"""

from __future__ import annotations

import os
import pickle
import struct
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pyarrow as pa

from highwater.errors import UserError
from highwater.log_storage.inspect.segment_audit import (
    Damage,
    DamagedRange,
    Descriptor,
    SegmentTask,
    WalkedBatch,
    audit_open_segment,
    audit_segment,
)
from highwater.records import BatchHeader, Record, decode

TASKS_SCHEMA = "tasks binary"
# Offsets of a stretch. A digest stands for some hundred to some ten thousand batches.
STRETCH = 1 << 16

SEGMENT = "segment"
DIGEST = "digest"

_BATCH = struct.Struct(">qqiIi")
_ROWS = 50_000


@dataclass(frozen=True, slots=True)
class AuditTask:
    group: int
    replica: int
    segment: SegmentTask
    bounds: tuple[int, ...]  # where replicas of the group begin and end: no stretch reaches across one
    stretches: frozenset[tuple[int, int]] | None = None  # whose batches are wanted

    def stretch(self, offset: int) -> tuple[int, int]:
        return offset // STRETCH, bisect_right(self.bounds, offset)


Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

SCAN_SCHEMA = (
    "what string, group int, replica int, file string, stretch bigint, part int, digest bigint, "
    "first bigint, last bigint, problem string, batches bigint, bytes bigint"
)


def scan(tasks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows `SEGMENT` with sums, `DIGEST` of a stretch, and one for each `Damage`."""
    for task in _tasks(tasks):
        _check_visible(task.segment)
        digests: dict[tuple[int, int], int] = defaultdict(int)
        damages: list[DamagedRange] = []
        batches = size = 0
        for found in audit_segment(task.segment):
            if isinstance(found, DamagedRange):
                _add(damages, found)
                continue
            header = found.header
            batches += 1
            size += header.size_bytes
            if _compared_as_batch(task.segment, header):
                digests[task.stretch(header.base_offset)] ^= _digest(header)
        common = {"group": task.group, "replica": task.replica, "file": task.segment.path}
        rows: list[dict[str, Any]] = [{"what": SEGMENT, **common, "batches": batches, "bytes": size}]
        rows += [
            {"what": DIGEST, **common, "stretch": stretch, "part": part, "digest": digest}
            for (stretch, part), digest in digests.items()
        ]
        rows += [
            {
                "what": one.kind.value,
                **common,
                "first": one.first_offset,
                "last": one.last_offset,
                "problem": one.problem,
            }
            for one in damages
        ]
        yield from _record_batches(rows, _SCANNED)


def _check_visible(segment: SegmentTask) -> None:
    """Raises `UserError` where this executor does not see the directory, and every file would seem to be gone."""
    directory = Path(segment.path).parent.parent
    if not directory.is_dir():
        raise UserError(f"an executor does not see {directory}: mount it there, too, under the same path")


BATCH_SCHEMA = (
    "group int, replica int, file string, position bigint, base bigint, last bigint, epoch int, crc bigint, size int"
)


def batches(tasks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The whole batches of the stretches that a task names."""
    for task in _tasks(tasks):
        yield from _record_batches(_batch_rows(task), _BATCHES)


def _batch_rows(task: AuditTask) -> Iterator[dict[str, Any]]:
    for found in audit_segment(task.segment):
        if not isinstance(found, WalkedBatch) or not _compared_as_batch(task.segment, found.header):
            continue
        header = found.header
        if task.stretches is None or task.stretch(header.base_offset) in task.stretches:
            yield {
                "group": task.group,
                "replica": task.replica,
                "file": task.segment.path,
                "position": found.position,
                "base": header.base_offset,
                "last": header.last_offset,
                "epoch": header.partition_leader_epoch,
                "crc": header.crc,
                "size": header.size_bytes,
            }


RECORD_SCHEMA = "group int, replica int, file string, offset bigint, key bigint, digest bigint, tombstone boolean"


def records(tasks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The records below `compacted_to` that compaction decides upon: those with a key."""
    for task in _tasks(tasks):
        yield from _record_batches(_record_rows(task), _RECORDS)


def _record_rows(task: AuditTask) -> Iterator[dict[str, Any]]:
    segment = task.segment
    try:
        file = Descriptor(Path(segment.path), os.O_RDONLY)
    except FileNotFoundError:
        return  # the scan has told it
    for found in audit_open_segment(segment, file):
        if not isinstance(found, WalkedBatch) or found.header.base_offset >= segment.compacted_to:
            continue
        if not found.header.control:
            content = os.pread(file.number, found.header.size_bytes, found.position)
            for record in decode(content).records():
                if record.key is not None and record.offset >= segment.log_start_offset:
                    yield _record_row(task, record)


def _record_row(task: AuditTask, record: Record) -> dict[str, Any]:
    assert record.key is not None
    content = (record.timestamp, record.key, record.value, record.headers)
    return {
        "group": task.group,
        "replica": task.replica,
        "file": task.segment.path,
        "offset": record.offset,
        "key": _hash(record.key),
        "digest": _hash(repr(content).encode()),
        "tombstone": record.value is None,
    }


def _compared_as_batch(segment: SegmentTask, header: BatchHeader) -> bool:
    """Tells whether the batch is compared as a whole: not where compaction may have changed it, nor where a part of it
    is deleted: another replica may lack the whole."""
    return header.base_offset >= max(segment.compacted_to, segment.log_start_offset)


def _digest(header: BatchHeader) -> int:
    """A digest of what makes a batch: the CRC speaks for its records, the rest stands outside of it."""
    return _hash(
        _BATCH.pack(
            header.base_offset, header.last_offset, header.partition_leader_epoch, header.crc, header.size_bytes
        )
    )


def _hash(content: bytes) -> int:
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "big", signed=True)


def _add(damages: list[DamagedRange], found: DamagedRange) -> None:
    """Damage that goes on is one."""
    if damages and damages[-1].kind is found.kind and damages[-1].last_offset + 1 == found.first_offset:
        found = replace(damages.pop(), last_offset=found.last_offset)
    damages.append(found)


def _tasks(rows: Iterator[pa.RecordBatch]) -> Iterator[AuditTask]:
    for batch in rows:
        for tasks in batch.column(0):
            yield from pickle.loads(tasks.as_py())


def _schema(text: str) -> pa.Schema:
    types = {"string": pa.utf8(), "int": pa.int32(), "bigint": pa.int64(), "boolean": pa.bool_()}
    pairs = (part.split() for part in text.split(","))
    return pa.schema([pa.field(name, types[kind]) for name, kind in pairs])


def _record_batches(rows: Iterable[dict[str, Any]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    held: list[dict[str, Any]] = []
    for row in rows:
        held.append(row)
        if len(held) == _ROWS:
            yield pa.RecordBatch.from_pylist(held, schema)
            held = []
    if held:
        yield pa.RecordBatch.from_pylist(held, schema)


_SCANNED, _BATCHES, _RECORDS = _schema(SCAN_SCHEMA), _schema(BATCH_SCHEMA), _schema(RECORD_SCHEMA)

KINDS = tuple(kind.value for kind in Damage)
