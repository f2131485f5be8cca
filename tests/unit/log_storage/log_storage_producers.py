"""Logs with a producer whose batches only a snapshot may know, for the tests of what becomes of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from log_storage_batches import append, batch, produced

from highwater.log_storage.config import LogConfig
from highwater.log_storage.log.log import Log
from highwater.log_storage.producers import producer_snapshots
from highwater.log_storage.producers.producer_states import ProducerBatch, ProducerStates
from highwater.log_storage.segment.segment import Segment

SMALL = LogConfig(segment_bytes=300)  # three batches


def filled_with(log: Log, segments: int, filling: bytes | None = None) -> list[int]:
    """Segments behind three batches of producer 7, which nobody else writes; where they begin."""
    for sequence in range(3):
        append(log, produced(1, producer_id=7, sequence=sequence))
        log.producer_state.write_snapshots()
    while len(log.segments) < segments:
        append(log, filling if filling is not None else batch())
        log.producer_state.write_snapshots()
    log.offsets.raise_high_watermark(log.log_end_offset)
    return [segment.base_offset for segment in log.segments]


def last_of(log: Log, producer_id: int = 7) -> ProducerBatch | None:
    state = log.producers.get(producer_id)
    return state.batches[-1] if state is not None else None


def snapshot_at(log: Log, offset: int) -> ProducerStates:
    return producer_snapshots.decode(producer_snapshots.path_of(log.directory, offset).read_bytes(), 0, 0)


def tear_unsynced(log: Log, synced: set[str]) -> None:
    """What a power loss may do to the snapshots."""
    for path in log.directory.glob("*.snapshot"):
        if str(path) not in synced:
            path.write_bytes(b"")


def record_syncs(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The paths of what was synced, under the names that they have in the end."""
    fsync, names, replace = os.fsync, set[str](), os.replace

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        names.add(os.readlink(f"/proc/self/fd/{descriptor}"))

    def replaced(source: Path, target: Path) -> None:
        replace(source, target)
        (names.add if str(source) in names else names.discard)(str(target))

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(os, "replace", replaced)
    return names


def record_batch_syncs(monkeypatch: pytest.MonkeyPatch) -> dict[Path, int]:
    """How many bytes of each segment were synced."""
    sync, sizes = Segment.sync_batches, dict[Path, int]()

    def noted(segment: Segment) -> None:
        sync(segment)
        sizes[segment.path] = segment.size_bytes

    monkeypatch.setattr(Segment, "sync_batches", noted)
    return sizes


def lose_batches(log: Log, on_disk: dict[Path, int]) -> None:
    """What a power loss may do to the segments."""
    for segment in log.segments:
        os.truncate(segment.path, on_disk.get(segment.path, 0))
