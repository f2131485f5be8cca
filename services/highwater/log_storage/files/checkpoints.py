"""Kafka's checkpoint files: a version line, a count line, then one line an entry.

0
2
flights 0 4711            topic, partition, offset   (recovery points, high watermarks, log starts)
flights 1 815

0
1
3 4000                    leader epoch, start offset (`leader-epoch-checkpoint`)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from highwater.atomic_file import OversizedFileError, read_whole, replace_file
from highwater.model.leader_epochs import EpochEntry, LeaderEpochCache

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
LEADER_EPOCHS = "leader-epoch-checkpoint"

_VERSION = 0
_LARGEST = 2**63 - 1
_DIGITS = 19

TopicPartition = tuple[str, int]


class CheckpointError(ValueError):
    """A checkpoint file that does not say what it should. The message names the file and the line."""


def read_offsets(path: Path) -> dict[TopicPartition, int]:
    """Offsets by (topic, partition); none where there is no file. Raises `CheckpointError`."""
    offsets = {}
    for number, line in _entries(path):
        fields = line.split(" ")
        if len(fields) != 3:
            raise CheckpointError(f"{path}, line {number}: {line!r} is not `topic partition offset`")
        topic, partition, offset = fields
        offsets[topic, _natural(path, number, partition)] = _natural(path, number, offset)
    return offsets


def write_offsets(path: Path, offsets: Mapping[TopicPartition, int]) -> None:
    """Durable when it returns. Raises `OSError`."""
    _write(path, (f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items())))


def read_epochs(path: Path) -> LeaderEpochCache | None:
    """None where there is no file. Raises `CheckpointError`."""
    if not path.exists():
        return None
    entries = []
    for number, line in _entries(path):
        fields = line.split(" ")
        if len(fields) != 2:
            raise CheckpointError(f"{path}, line {number}: {line!r} is not `epoch offset`")
        entries.append(EpochEntry(_natural(path, number, fields[0]), _natural(path, number, fields[1])))
    try:
        return LeaderEpochCache(entries)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from None


def write_epochs(path: Path, entries: Iterable[EpochEntry]) -> None:
    """Durable when it returns. Raises `OSError`."""
    _write(path, (f"{entry.leader_epoch} {entry.start_offset}" for entry in entries))


def _write(path: Path, lines: Iterable[str]) -> None:
    body = list(lines)
    replace_file(path, "".join(f"{line}\n" for line in (str(_VERSION), str(len(body)), *body)).encode())


def _entries(path: Path) -> list[tuple[int, str]]:
    """The numbered entry lines of a file, as many as its count line says."""
    try:
        lines = read_whole(path).decode().splitlines()
    except FileNotFoundError:
        return []
    except OversizedFileError as error:
        raise CheckpointError(str(error)) from None
    except UnicodeDecodeError:
        raise CheckpointError(f"{path}: not a text file") from None
    if len(lines) < 2:
        raise CheckpointError(f"{path}: the version and count lines are missing")
    if _natural(path, 1, lines[0]) != _VERSION:
        raise CheckpointError(f"{path}, line 1: version {lines[0]}, only {_VERSION} is known")
    count = _natural(path, 2, lines[1])
    if len(lines) - 2 != count:
        raise CheckpointError(f"{path}: {len(lines) - 2} entries, line 2 says {count}")
    return list(enumerate(lines[2:], 3))


def _natural(path: Path, number: int, text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > _DIGITS or int(text) > _LARGEST:
        raise CheckpointError(f"{path}, line {number}: {text!r} is not a number from 0 to 2^63 - 1")
    return int(text)
