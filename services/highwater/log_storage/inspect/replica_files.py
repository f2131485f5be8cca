"""The logs that a directory of `log.dirs` holds, as they are found beside the log-storage that may be using it: nothing
is written, no lock is taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from highwater.errors import UserError
from highwater.log_storage.files import boot_record, checkpoints, partition_metadata
from highwater.log_storage.files.checkpoints import CheckpointError, TopicPartition
from highwater.log_storage.files.partition_metadata import PartitionMetadataError
from highwater.log_storage.segment.segment_files import LOG_SUFFIX
from highwater.model.partition import format_topic_id


@dataclass(frozen=True, slots=True)
class SegmentFile:
    base_offset: int
    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ReplicaFiles:
    """One replica: what its directory's checkpoints say of it, and its segments in order.

    `segments` are of a moment after the high watermark and before the log start were read: whatever is committed by
    the one and not deleted by the other is in them."""

    broker: str  # its id; of a directory that no broker has used yet, its path
    directory: str
    topic: str
    partition: int
    topic_id: str  # as Kafka prints it; empty: not known
    log_start_offset: int
    high_watermark: int
    cleaned_to: int  # compaction has gone over what is below
    segments: tuple[SegmentFile, ...]


@dataclass(frozen=True, slots=True)
class DirectoryFiles:
    """One directory of `log.dirs`."""

    path: str
    broker: str
    replicas: tuple[ReplicaFiles, ...]
    lost: tuple[TopicPartition, ...]  # a checkpoint names them, and they have no directory
    problems: tuple[str, ...]  # files beside the logs that cannot be read


def read_directory(directory: Path, wanted: Callable[[str], bool]) -> DirectoryFiles:
    """The logs of the topics that are wanted. Raises `UserError` where it is no directory of `log.dirs`, `OSError`."""
    if not directory.is_dir():
        raise UserError(f"{directory} is not a directory; name directories of log.dirs")
    problems: list[str] = []
    high_watermarks = _offsets(directory / checkpoints.HIGH_WATERMARKS, problems)
    listed = {}
    names = sorted(path.name for path in directory.iterdir() if path.is_dir())
    for name in names:
        key = partition_metadata.parse_directory_name(name)
        if key is not None and wanted(key[0]):
            segments = _segments(directory / name)
            if segments is not None:
                listed[key] = segments
    log_starts = _offsets(directory / checkpoints.LOG_STARTS, problems)
    cleaned = _offsets(directory / checkpoints.CLEANER_OFFSETS, problems)
    record = boot_record.read_record(directory)
    if not listed and record is None and not high_watermarks:
        raise UserError(f"{directory} holds no log: name directories of log.dirs")
    broker = str(record.broker_id) if record is not None else str(directory)
    replicas = tuple(
        ReplicaFiles(
            broker,
            str(directory / partition_metadata.directory_name(topic, partition)),
            topic,
            partition,
            _topic_id(directory / partition_metadata.directory_name(topic, partition), problems),
            log_starts.get((topic, partition), 0),
            high_watermarks.get((topic, partition), 0),
            cleaned.get((topic, partition), 0),
            segments,
        )
        for (topic, partition), segments in sorted(listed.items())
    )
    lost = tuple(sorted(key for key in high_watermarks if key not in listed and wanted(key[0])))
    return DirectoryFiles(str(directory), broker, replicas, lost, tuple(problems))


def _segments(directory: Path) -> tuple[SegmentFile, ...] | None:
    """None where the log is being deleted."""
    found = []
    try:
        for path in directory.glob(f"*{LOG_SUFFIX}"):
            stem = path.name.removesuffix(LOG_SUFFIX)
            if stem.isdecimal():
                try:
                    found.append(SegmentFile(int(stem), str(path), path.stat().st_size))
                except FileNotFoundError:
                    continue  # deleted meanwhile: the log start, read after this, says that it may be
    except FileNotFoundError:
        return None
    return tuple(sorted(found, key=lambda segment: segment.base_offset)) if directory.exists() else None


def _offsets(path: Path, problems: list[str]) -> Mapping[TopicPartition, int]:
    try:
        return checkpoints.read_offsets(path)
    except CheckpointError as error:
        problems.append(str(error))
        return {}


def _topic_id(directory: Path, problems: list[str]) -> str:
    try:
        topic_id = partition_metadata.read(directory)
    except PartitionMetadataError as error:
        problems.append(str(error))
        return ""
    return "" if topic_id is None else format_topic_id(topic_id)
