"""Tells whether the files of a log directory, or of one log, are what they should be, for `highwater log verify DIR`:
plain iterators that read everything and write nothing. No log-storage may be writing there meanwhile."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from highwater.errors import UserError
from highwater.log_storage.fence import Fence
from highwater.log_storage.files import (
    boot_record,
    checkpoints,
    fence_journal,
    future_files,
    meta_properties,
    partition_metadata,
)
from highwater.log_storage.files.boot_record import CLEAN_SHUTDOWN
from highwater.log_storage.files.checkpoints import CheckpointError
from highwater.log_storage.files.disk import LOCK
from highwater.log_storage.files.fence_journal import FenceJournalError
from highwater.log_storage.files.partition_metadata import PartitionMetadataError
from highwater.log_storage.inspect.dump import dump_index, dump_segment
from highwater.log_storage.producers import producer_snapshots
from highwater.log_storage.producers.producer_snapshots import SNAPSHOT_SUFFIX, SnapshotError
from highwater.log_storage.segment.segment_files import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    OFFSET_GAPS,
    TIME_INDEX_SUFFIX,
    file_name,
)
from highwater.model.partition import PartitionKey
from highwater.records import BatchHeader

_OF_EVERY_LOG = (checkpoints.RECOVERY_POINTS, checkpoints.HIGH_WATERMARKS, checkpoints.LOG_STARTS)
_OFFSET_CHECKPOINTS = (*_OF_EVERY_LOG, checkpoints.CLEANER_OFFSETS)
_DIRECTORY_ID = re.compile(r"[A-Za-z0-9_-]{22}")
_TOLD = 10


@dataclass(slots=True)
class VerifiedFile:
    """One file. Without `problems` it is sound."""

    path: Path
    batches: int = 0  # of a segment: with a good CRC
    size_bytes: int = 0
    problems: list[str] = field(default_factory=list)


def verify(directory: Path) -> Iterator[VerifiedFile]:
    """Every file of a directory of `log.dirs`, or of one log in it.

    Raises `UserError` where a log-storage has it open or it holds no log, `OSError`."""
    is_log = partition_metadata.parse_directory_name(directory.name) is not None and any(
        directory.glob(f"*{LOG_SUFFIX}")
    )
    with _locked(directory.parent if is_log else directory):
        if is_log:
            yield from verify_log(directory, {})
            return
        logs = [path for path in sorted(directory.iterdir()) if _is_log(path)]
        futures = [path for path in sorted(directory.iterdir()) if future_files.partition_of(path.name) is not None]
        if not logs and not (directory / LOCK).exists():
            raise UserError(f"{directory} holds no log: name a directory of log.dirs, or <topic>-<partition> in one")
        clean = (directory / CLEAN_SHUTDOWN).exists()
        present = {of for path in logs if (of := partition_metadata.parse_directory_name(path.name)) is not None}
        bounds: dict[str, Mapping[checkpoints.TopicPartition, int]] = {}
        for name in _OFFSET_CHECKPOINTS:
            verified = _verify_checkpoint(directory / name, bounds)
            if clean and name in bounds and not futures:
                verified.problems += _compare(set(bounds[name]), present, complete=name in _OF_EVERY_LOG)
            yield verified
        fences: dict[PartitionKey, Fence] = {}
        verified = _verify_fences(directory / fence_journal.FILE_NAME, fences, clean=clean)
        yield verified
        fenced = None if verified.problems else fences.keys()
        yield from _verify_properties(directory)
        for path in logs:
            name_and_partition = partition_metadata.parse_directory_name(path.name)
            assert name_and_partition is not None
            known = {name: offsets.get(name_and_partition, 0) for name, offsets in bounds.items()}
            yield from verify_log(path, known, fenced, clean=clean)
        for path in futures:
            yield from verify_log(path, {})


def _is_log(path: Path) -> bool:
    return path.is_dir() and partition_metadata.parse_directory_name(path.name) is not None


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Keeps a log-storage from opening the directory, where one has ever used it."""
    try:
        descriptor = os.open(directory / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise UserError(f"{directory} is in use by a log-storage: stop it first, or verify a copy") from None
    finally:
        os.close(descriptor)


def _verify_checkpoint(path: Path, bounds: dict[str, Mapping[checkpoints.TopicPartition, int]]) -> VerifiedFile:
    verified = VerifiedFile(path)
    try:
        bounds[path.name] = checkpoints.read_offsets(path)
    except CheckpointError as error:
        verified.problems.append(str(error))
    return verified


def _compare(
    entries: set[checkpoints.TopicPartition], present: set[checkpoints.TopicPartition], *, complete: bool
) -> Iterator[str]:
    """After a clean stop a checkpoint has the logs that there are, and no others."""
    for topic, partition in sorted(entries - present):
        yield f"it has an entry of {topic}-{partition}, which is not there"
    for topic, partition in sorted(present - entries) if complete else ():
        yield f"it has no entry of {topic}-{partition}"


def _verify_fences(path: Path, fences: dict[PartitionKey, Fence], *, clean: bool) -> VerifiedFile:
    verified = VerifiedFile(path)
    try:
        fences.update(fence_journal.read_fences(path, clean=clean))
    except (FenceJournalError, ValueError) as error:
        verified.problems.append(str(error))
    return verified


def _verify_properties(directory: Path) -> Iterator[VerifiedFile]:
    """Verifies whose directory it is: two files have to agree. They are there from the first start on."""
    record, record_file = boot_record.read_record(directory), VerifiedFile(directory / boot_record.FILE_NAME)
    if record_file.path.exists() and record is None:
        record_file.problems.append("it is no boot record: the next start takes the tail for lost")
    yield record_file
    verified = VerifiedFile(directory / meta_properties.FILE_NAME)
    if not verified.path.exists():
        return
    properties = meta_properties.read(directory)
    if not _DIRECTORY_ID.fullmatch(properties.directory_id):
        verified.problems.append(f"directory.id={properties.directory_id} is no id")
    if record is not None and properties.broker_id != str(record.broker_id):
        verified.problems.append(f"broker.id={properties.broker_id}; {boot_record.FILE_NAME} has {record.broker_id}")
    if record is not None and record.directory_ids and properties.directory_id not in record.directory_ids:
        verified.problems.append(
            f"directory.id={properties.directory_id} is not among those in {boot_record.FILE_NAME}"
        )
    yield verified


def verify_log(
    directory: Path, known: Mapping[str, int], fenced: Collection[PartitionKey] | None = None, *, clean: bool = False
) -> Iterator[VerifiedFile]:
    """The files of one log; `known` is what the offset checkpoints say of it, `fenced` are all logs of the directory
    that have a fence, `clean` tells whether it was stopped cleanly. Raises `OSError`."""
    metadata = VerifiedFile(directory / partition_metadata.FILE_NAME)
    try:
        topic_id = partition_metadata.read(directory)
        if topic_id is None:
            metadata.problems.append("missing: without its topic id nobody can ask for the log")
        elif fenced is not None and _unfenced(directory, topic_id, fenced):
            metadata.problems.append("its topic id has no fence, and yet there are batches: it is not the log's")
    except PartitionMetadataError as error:
        metadata.problems.append(str(error))
    yield metadata
    walk = _LogWalk(contiguous=not (directory / OFFSET_GAPS).exists())
    for path in sorted(directory.glob(f"*{LOG_SUFFIX}")):
        yield from walk.segment(path)
    yield walk.ends(directory, known, clean=clean)
    yield walk.epochs(directory / checkpoints.LEADER_EPOCHS, clean=clean)
    for path in sorted(directory.glob(f"*{SNAPSHOT_SUFFIX}")):
        yield walk.snapshot(path)


def _unfenced(directory: Path, topic_id: bytes, fenced: Collection[PartitionKey]) -> bool:
    """Nothing is appended without a fence (RULES 3.1): another id than the log's shows in that."""
    name = partition_metadata.parse_directory_name(directory.name)
    if name is None or PartitionKey(topic_id, name[1]) in fenced:
        return False
    return any(path.stat().st_size for path in directory.glob(f"*{LOG_SUFFIX}"))


class _LogWalk:
    """The facts that the batches so far have told. `contiguous`: compaction has left no gaps between them."""

    def __init__(self, *, contiguous: bool) -> None:
        self._contiguous = contiguous
        self.first_offset: int | None = None
        self.next_offset = 0
        self.last_epoch = -1
        self.epoch_starts: dict[int, int] = {}
        self._first_batch: BatchHeader | None = None

    def segment(self, path: Path) -> Iterator[VerifiedFile]:
        """The segment and its indexes."""
        verified = VerifiedFile(path, size_bytes=path.stat().st_size)
        stem = path.name.removesuffix(LOG_SUFFIX)
        if not stem.isdecimal() or file_name(int(stem), LOG_SUFFIX) != path.name:
            verified.problems.append("it is not the name of a segment")
            yield verified
            return
        base_offset = int(stem)
        index = _Index(path.with_name(stem + INDEX_SUFFIX))
        time_index = _Index(path.with_name(stem + TIME_INDEX_SUFFIX))
        if self.first_offset is None:
            self.first_offset = self.next_offset = base_offset
        if base_offset < self.next_offset:
            verified.problems.append(f"it begins below {self.next_offset}, where the segment before it ends")
        if self._contiguous and base_offset > self.next_offset:
            verified.problems.append(f"the offsets {self.next_offset} to {base_offset - 1} in front of it are missing")
        self.next_offset = max(self.next_offset, base_offset)
        largest = -1
        for batch in dump_segment(path):
            if batch.problem or batch.header is None:
                verified.problems.append(f"position {batch.position}: {batch.problem}")
            else:
                verified.batches += 1
                self._batch(verified, batch.position, batch.header)
                grown = max(largest, batch.header.max_timestamp)
                index.meet(batch.position, batch.header.last_offset)
                if grown > largest:
                    time_index.meet(batch.header.last_offset, grown)
                largest = grown
        yield verified
        yield index.verified("position", "offset")
        yield time_index.verified("offset", "timestamp")

    def _batch(self, verified: VerifiedFile, position: int, header: BatchHeader) -> None:
        # Compaction leaves gaps between batches; it never turns them round.
        if header.base_offset < self.next_offset or (self._contiguous and header.base_offset > self.next_offset):
            verified.problems.append(
                f"position {position}: base offset {header.base_offset}, the log goes on at {self.next_offset}"
            )
        if header.partition_leader_epoch < self.last_epoch:
            verified.problems.append(
                f"position {position}: leader epoch {header.partition_leader_epoch} comes after {self.last_epoch}"
            )
        self._first_batch = self._first_batch or header
        self.next_offset = max(self.next_offset, header.next_offset)
        self.last_epoch = max(self.last_epoch, header.partition_leader_epoch)
        self.epoch_starts.setdefault(header.partition_leader_epoch, header.base_offset)

    def ends(self, directory: Path, known: Mapping[str, int], *, clean: bool) -> VerifiedFile:
        """The log as a whole: it reaches as far as the checkpoints say, after a clean stop exactly."""
        verified = VerifiedFile(directory)
        if self.first_offset is None:
            verified.problems.append("there is no segment")
        verified.problems += [
            f"the log ends at {self.next_offset}, {name} says {offset}"
            for name, offset in known.items()
            if offset > self.next_offset
        ]
        flushed = known.get(checkpoints.RECOVERY_POINTS, self.next_offset)
        if clean and flushed < self.next_offset:
            verified.problems.append(
                f"the log ends at {self.next_offset}, a clean stop left it flushed up to {flushed}"
            )
        start = known.get(checkpoints.LOG_STARTS, self.next_offset)
        if clean and start < (self.first_offset or 0):
            verified.problems.append(f"the log begins at {self.first_offset}, {checkpoints.LOG_STARTS} says {start}")
        return verified

    def epochs(self, path: Path, *, clean: bool) -> VerifiedFile:
        """An epoch begins where the file says, as far as its batches are still there. The file may have some that have
        written nothing, and, but for a clean stop, lack the last ones (it is written by flushes)."""
        verified = VerifiedFile(path)
        try:
            cache = checkpoints.read_epochs(path)
        except CheckpointError as error:
            verified.problems.append(str(error))
            return verified
        for epoch, start_offset in cache.entries if cache is not None else ():
            found = self.epoch_starts.get(epoch, start_offset)
            if (
                found != start_offset
                and start_offset >= (self.first_offset or 0)
                and not self._begins_inside(start_offset)
            ):
                verified.problems.append(
                    f"leader epoch {epoch} begins at {start_offset}; its first batch is at {found}"
                )
        told = {entry.leader_epoch for entry in cache.entries} if cache is not None else set()
        for epoch in sorted(self.epoch_starts.keys() - told) if clean else ():
            verified.problems.append(f"leader epoch {epoch}, which begins at {self.epoch_starts[epoch]}, is missing")
        return verified

    def _begins_inside(self, start_offset: int) -> bool:
        """Tells whether the log starts there, inside its first batch: a follower whose leader's log did takes that for
        the beginning of its epoch, too."""
        first = self._first_batch
        return first is not None and first.base_offset < start_offset <= first.last_offset

    def snapshot(self, path: Path) -> VerifiedFile:
        verified = VerifiedFile(path)
        try:
            offset = int(path.name.removesuffix(SNAPSHOT_SUFFIX))
            states = producer_snapshots.decode(path.read_bytes(), 0, 0)
            if offset > self.next_offset:
                verified.problems.append(f"the log ends at {self.next_offset} already")
            for producer_id, state in states.items():
                if state.batches[-1].last_offset >= offset:
                    verified.problems.append(
                        f"producer {producer_id} wrote offset {state.batches[-1].last_offset}, which is above it"
                    )
        except (SnapshotError, ValueError) as error:
            verified.problems.append(str(error))
        return verified


class _Index:
    """The entries of an index by their second field, checked off one by one; at most `_TOLD` of the rest are told."""

    def __init__(self, path: Path) -> None:
        self._file = VerifiedFile(path)
        self._open: dict[int, int] = {}
        if not path.exists():
            return  # it is made again when it is needed
        entry_bytes = 12 if path.name.endswith(TIME_INDEX_SUFFIX) else 8
        self._file.size_bytes = path.stat().st_size
        if self._file.size_bytes % entry_bytes:
            self._file.problems.append(f"{self._file.size_bytes} bytes are no whole number of entries")
            return
        before = -1
        for number, entry in enumerate(dump_index(path)):
            if entry.first <= before:
                self._file.problems.append(f"entry {number}: {entry.first} comes after {before}")
            before = entry.first
            self._open[entry.second] = entry.first

    def meet(self, place: int, value: int) -> None:
        """A batch at `place` for which an entry has to say `value`."""
        if self._open.get(place) == value:
            del self._open[place]

    def verified(self, place: str, value: str) -> VerifiedFile:
        self._file.problems += [
            f"no batch has {value} {said} at {place} {at}" for at, said in sorted(self._open.items())[:_TOLD]
        ]
        return self._file
