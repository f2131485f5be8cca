"""Whether the files of a log directory, or of one log, are what they should be, for `highwater log verify DIR`: plain
iterators that read everything and write nothing. No log-storage may be writing there meanwhile."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from highwater.log_storage import checkpoints, fence_journal, partition_metadata, producer_snapshots
from highwater.log_storage.checkpoints import CheckpointError
from highwater.log_storage.disk import LOCK
from highwater.log_storage.dump import dump_index, dump_segment
from highwater.log_storage.fence_journal import FenceJournalError
from highwater.log_storage.partition_metadata import PartitionMetadataError
from highwater.log_storage.producer_snapshots import SNAPSHOT_SUFFIX, SnapshotError
from highwater.log_storage.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, file_name
from highwater.records import BatchHeader
from highwater.rpc.server import UserError

_OFFSET_CHECKPOINTS = (checkpoints.RECOVERY_POINTS, checkpoints.HIGH_WATERMARKS, checkpoints.LOG_STARTS)
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
        if not logs and not (directory / LOCK).exists():
            raise UserError(f"{directory} holds no log: name a directory of log.dirs, or <topic>-<partition> in one")
        bounds: dict[str, Mapping[checkpoints.TopicPartition, int]] = {}
        for name in _OFFSET_CHECKPOINTS:
            yield _verify_checkpoint(directory / name, bounds)
        journal = VerifiedFile(directory / fence_journal.FILE_NAME)
        try:
            fence_journal.read_fences(journal.path)
        except (FenceJournalError, ValueError) as error:
            journal.problems.append(str(error))
        yield journal
        for path in logs:
            name_and_partition = partition_metadata.parse_directory_name(path.name)
            assert name_and_partition is not None
            known = {name: offsets.get(name_and_partition, 0) for name, offsets in bounds.items()}
            yield from verify_log(path, known)


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


def verify_log(directory: Path, known: Mapping[str, int]) -> Iterator[VerifiedFile]:
    """The files of one log; `known` is what the offset checkpoints say of it. Raises `OSError`."""
    metadata = VerifiedFile(directory / partition_metadata.FILE_NAME)
    try:
        if partition_metadata.read(directory) is None:
            metadata.problems.append("missing: without its topic id nobody can ask for the log")
    except PartitionMetadataError as error:
        metadata.problems.append(str(error))
    yield metadata
    walk = _LogWalk()
    for path in sorted(directory.glob(f"*{LOG_SUFFIX}")):
        yield from walk.segment(path)
    yield walk.ends(directory, known)
    yield walk.epochs(directory / checkpoints.LEADER_EPOCHS)
    for path in sorted(directory.glob(f"*{SNAPSHOT_SUFFIX}")):
        yield walk.snapshot(path)


class _LogWalk:
    """What the batches so far have told."""

    def __init__(self) -> None:
        self.first_offset: int | None = None
        self.next_offset = 0
        self.last_epoch = -1
        self.epoch_starts: dict[int, int] = {}

    def segment(self, path: Path) -> Iterator[VerifiedFile]:
        """The segment and its indexes."""
        verified = VerifiedFile(path, size_bytes=path.stat().st_size)
        stem = path.name.removesuffix(LOG_SUFFIX)
        if not stem.isdigit() or file_name(int(stem), LOG_SUFFIX) != path.name:
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
        if header.base_offset < self.next_offset:
            verified.problems.append(
                f"position {position}: base offset {header.base_offset}, the log goes on at {self.next_offset}"
            )
        if header.partition_leader_epoch < self.last_epoch:
            verified.problems.append(
                f"position {position}: leader epoch {header.partition_leader_epoch} comes after {self.last_epoch}"
            )
        self.next_offset = max(self.next_offset, header.next_offset)
        self.last_epoch = max(self.last_epoch, header.partition_leader_epoch)
        self.epoch_starts.setdefault(header.partition_leader_epoch, header.base_offset)

    def ends(self, directory: Path, known: Mapping[str, int]) -> VerifiedFile:
        """The log as a whole: it reaches as far as the checkpoints say."""
        verified = VerifiedFile(directory)
        if self.first_offset is None:
            verified.problems.append("there is no segment")
        verified.problems += [
            f"the log ends at {self.next_offset}, {name} says {offset}"
            for name, offset in known.items()
            if offset > self.next_offset
        ]
        return verified

    def epochs(self, path: Path) -> VerifiedFile:
        """An epoch begins where the file says, as far as its batches are still there. The file may lack the last ones
        (it is written by flushes), and have some that have written nothing."""
        verified = VerifiedFile(path)
        try:
            cache = checkpoints.read_epochs(path)
        except CheckpointError as error:
            verified.problems.append(str(error))
            return verified
        for epoch, start_offset in cache.entries if cache is not None else ():
            found = self.epoch_starts.get(epoch, start_offset)
            if found != start_offset and start_offset >= (self.first_offset or 0):
                verified.problems.append(
                    f"leader epoch {epoch} begins at {start_offset}; its first batch is at {found}"
                )
        return verified

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
