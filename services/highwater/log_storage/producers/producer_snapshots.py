"""`<offset, 20 digits>.snapshot`: what a log knows of its producers below that offset. Kafka's layout, big-endian:

int16  version, 1
uint32 CRC-32C of the rest
int32  number of entries
       then of each entry, 42 bytes:
int64  producer id
int16  producer epoch
int32  last sequence of a batch
int64  last offset of the batch
int32  its last offset delta
int64  when the producer last appended, ms since the epoch
int32  coordinator epoch (transactions): -1
int64  first offset of the open transaction: -1

A producer has an entry for each of its batches that are kept, oldest first. (Kafka writes the last one alone; of
several it takes the last.)

A snapshot is there to be used or not: one that is damaged counts as missing, and the batches from the one before it on
are replayed. It must never be about batches that the log no longer has: they go before a truncation.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

from highwater.atomic_file import fsync_directory, fsync_file, replace_file, write_whole
from highwater.log_storage.files.disk import is_unreadable
from highwater.log_storage.producers.producer_states import (
    MAX_SEQUENCE,
    NO_LIMITS,
    ProducerBatch,
    ProducerLimits,
    ProducerState,
    ProducerStates,
)
from highwater.log_storage.segment.segment import Segment
from highwater.records.header import crc32c
from highwater.telemetry.log import get_logger

SNAPSHOT_SUFFIX = ".snapshot"

_VERSION = 1
_HEAD = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")
ENTRY_BYTES = _ENTRY.size
_NO_COORDINATOR = -1
_NO_TRANSACTION = -1
_AT_ONCE = 128  # producers

_log = get_logger("log_storage.producer_snapshots")


class SnapshotError(ValueError):
    """Raised for a damaged snapshot, with what is wrong with it."""


def encode(states: ProducerStates, wall_offset_ms: int, pause: Callable[[], None] | None = None) -> bytes:
    """`wall_offset_ms`: what has to be added to `updated_ms` to have ms since the epoch. `pause` is called after some
    producers each."""
    body = bytearray(_COUNT.size)
    for number, (producer_id, state) in enumerate(states.items()):
        if pause is not None and number % _AT_ONCE == _AT_ONCE - 1:
            pause()
        updated_ms = state.updated_ms + wall_offset_ms
        for _, last_sequence, base_offset, last_offset in state.batches:
            body += _ENTRY.pack(
                producer_id,
                state.epoch,
                last_sequence,
                last_offset,
                last_offset - base_offset,
                updated_ms,
                _NO_COORDINATOR,
                _NO_TRANSACTION,
            )
    _COUNT.pack_into(body, 0, (len(body) - _COUNT.size) // _ENTRY.size)
    content = bytes(body)
    return _HEAD.pack(_VERSION, crc32c(content)) + content


def decode(content: bytes, now_ms: int, wall_offset_ms: int, limits: ProducerLimits = NO_LIMITS) -> ProducerStates:
    """Raises `SnapshotError`. No producer appended later than `now_ms`, whatever the clock was then."""
    if len(content) < _HEAD.size + _COUNT.size:
        raise SnapshotError(f"it has {len(content)} bytes")
    version, crc = _HEAD.unpack_from(content)
    if version != _VERSION:
        raise SnapshotError(f"version {version}, only {_VERSION} is known")
    body = content[_HEAD.size :]
    if crc != crc32c(body):
        raise SnapshotError(f"CRC-32C is {crc32c(body):#010x}, the file says {crc:#010x}")
    (count,) = _COUNT.unpack_from(body)
    if len(body) != _COUNT.size + count * _ENTRY.size:
        raise SnapshotError(f"{len(body)} bytes do not hold {count} entries")
    states: dict[int, ProducerState] = {}
    for entry in _ENTRY.iter_unpack(body[_COUNT.size :]):
        producer_id, epoch, last_sequence, last_offset, delta, timestamp = entry[:6]
        first_sequence = last_sequence - delta
        if first_sequence < 0:
            first_sequence += MAX_SEQUENCE + 1
        batch = ProducerBatch(first_sequence, last_sequence, last_offset - delta, last_offset)
        before = states.get(producer_id)
        batches = (batch,) if before is None or before.epoch != epoch else (*before.batches, batch)
        states[producer_id] = ProducerState(epoch, batches, min(timestamp - wall_offset_ms, now_ms))
    return ProducerStates(limits).merged(states.items())  # in order, whoever wrote the snapshot


def path_of(directory: Path, offset: int) -> Path:
    return directory / f"{offset:020d}{SNAPSHOT_SUFFIX}"


def offsets(directory: Path) -> list[int]:
    """Of the snapshots that there are, in order. Raises `OSError`."""
    names = (name.removesuffix(SNAPSHOT_SUFFIX) for name in os.listdir(directory) if name.endswith(SNAPSHOT_SUFFIX))
    return sorted(int(name) for name in names if name.isdecimal())


def write(
    directory: Path,
    offset: int,
    states: ProducerStates,
    wall_offset_ms: int,
    *,
    pause: Callable[[], None] | None = None,
) -> None:
    """Puts the snapshot in place. A crash of the machine may leave one that does not hold its CRC. Raises `OSError`."""
    write_whole(path_of(directory, offset), encode(states, wall_offset_ms, pause), sync=False)


def write_durably(
    directory: Path,
    offset: int,
    states: ProducerStates,
    wall_offset_ms: int,
    *,
    pause: Callable[[], None] | None = None,
) -> None:
    """The same; it is on disk when this returns. One that is there and says so takes no space. Raises `OSError`."""
    path, content = path_of(directory, offset), encode(states, wall_offset_ms, pause)
    if _present(path) == content:
        sync(directory, offset)
    else:
        replace_file(path, content)


def _present(path: Path) -> bytes | None:
    """Raises `OSError`."""
    try:
        return _content(path)
    except SnapshotError:
        return None
    except OSError as error:
        if isinstance(error, FileNotFoundError) or is_unreadable(error):
            return None
        raise


def _content(path: Path) -> bytes:
    """The bytes of a file that has as many as it says: of another no more than that is read. Raises `OSError`,
    `SnapshotError`."""
    with open(path, "rb", buffering=0) as file:
        begin = file.read(_HEAD.size + _COUNT.size) or b""
        size = os.fstat(file.fileno()).st_size
        if len(begin) < _HEAD.size + _COUNT.size:
            raise SnapshotError(f"it has {len(begin)} bytes")
        (count,) = _COUNT.unpack_from(begin, _HEAD.size)
        if size != len(begin) + count * _ENTRY.size:
            raise SnapshotError(f"{size} bytes do not hold {count} entries")
        return begin + file.readall()


def sync(directory: Path, offset: int) -> None:
    """Brings the snapshot as it is to disk. Raises `OSError`, `FileNotFoundError` where there is none."""
    fsync_file(path_of(directory, offset))
    fsync_directory(directory)


def latest(
    directory: Path,
    start_offset: int,
    end_offset: int,
    now_ms: int,
    wall_offset_ms: int,
    damaged: Callable[[int], None] = lambda _: None,
    *,
    limits: ProducerLimits = NO_LIMITS,
) -> tuple[int, ProducerStates]:
    """The last good snapshot from `start_offset`, where the log's batches begin, up to `end_offset`, and what is in it;
    `start_offset` and nothing where there is none. (From an earlier one on nobody can tell what came between.) Damaged
    ones are removed, after `damaged` was called with their offsets. Raises `OSError`, and what `damaged` raises."""
    for offset in reversed(offsets(directory)):
        if start_offset <= offset <= end_offset:
            path = path_of(directory, offset)
            try:
                return offset, decode(_content(path), now_ms, wall_offset_ms, limits)
            except FileNotFoundError:  # needless by now, and removed beside this
                continue
            except (SnapshotError, OSError) as error:
                if isinstance(error, OSError) and not is_unreadable(error):
                    raise
                _log.warning("%s is damaged and not used: %s", path, error)
                damaged(offset)
                path.unlink(missing_ok=True)
    return start_offset, ProducerStates(limits)


def restore(
    directory: Path,
    segments: Sequence[Segment],
    end_offset: int,
    now_ms: int,
    wall_offset_ms: int,
    limits: ProducerLimits = NO_LIMITS,
) -> ProducerStates:
    """The producers of a log that ends at `end_offset`: the last snapshot, and the batches behind it.

    Raises `CorruptBatchError`, `OSError`."""
    start, states = latest(directory, segments[0].base_offset, end_offset, now_ms, wall_offset_ms, limits=limits)
    replay(states, segments, start, now_ms)
    return states


def replay(states: ProducerStates, segments: Sequence[Segment], start_offset: int, now_ms: int) -> None:
    """Takes in the batches from `start_offset` on. Raises `CorruptBatchError`, `OSError`."""
    for segment in segments:
        if segment.end_offset > start_offset:
            found = segment.position_of(start_offset) if segment.base_offset < start_offset else (0, None)
            for _, header in segment.headers(found[0]) if found is not None else ():
                if header.base_offset >= start_offset:
                    states.update(header, header.base_offset, now_ms)


def remove_above(directory: Path, offset: int, spared: int = -1) -> None:
    """Removes the snapshots of a part of the log that is not there any more, or will not be, but for the one at
    `spared`; for good when this returns. Raises `OSError`."""
    gone = [found for found in offsets(directory) if found > offset and found != spared]
    for found in gone:
        path_of(directory, found).unlink(missing_ok=True)
    if gone:
        fsync_directory(directory)


def remove_needless(directory: Path, segments: Sequence[Segment]) -> None:
    """Keeps those at the beginning of a segment, for truncations, and the last. `segments` is the log's own list, to
    which others may add meanwhile. Raises `OSError`."""
    present = offsets(directory)
    # Looked at after the files: the snapshot of a segment that is begun meanwhile is not among them, or its last one.
    bases = {segment.base_offset for segment in tuple(segments)}
    for found in present:
        if found not in bases and (found != present[-1] or found < segments[0].base_offset):
            path_of(directory, found).unlink(missing_ok=True)
