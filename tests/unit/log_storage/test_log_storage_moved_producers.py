"""A log that is copied to another directory takes over what its source knew of producers."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from log_storage_batches import append, batch, header_of, make_log, produced
from log_storage_producers import SMALL, filled_with, last_of, record_syncs, snapshot_at, tear_unsynced

from highwater.log_storage.errors import LogError
from highwater.log_storage.log import log_copy
from highwater.log_storage.log.log import Log
from highwater.log_storage.producers import producer_snapshots
from highwater.log_storage.producers.producer_states import Duplicate, ProducerBatch
from highwater.log_storage.recovery.recovery import Checkpointed


def copy_of(log: Log, directory: Path) -> Log:
    """With its batches; nothing is taken over yet."""
    copy = make_log(directory, SMALL)
    for segment in log.segments:
        for position, header in segment.headers(0):
            log_copy.append_copy(copy, segment.batch_at(position, header), 0)
    return copy


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    return record_syncs(monkeypatch)


@pytest.mark.parametrize("then", ["DeleteRecords", "truncation"])
def test_a_moved_log_keeps_producers_whose_records_were_gone_before(
    tmp_path: Path, synced: set[str], then: str
) -> None:
    log = make_log(tmp_path / "t-0", SMALL)
    bases = filled_with(log, 4)
    log.log_start.raise_to(bases[1])
    moved = copy_of(log, tmp_path / "moved" / "t-0")
    if then == "truncation":
        log.offsets.high_watermark = log.segments[1].base_offset + 1  # as on a follower
    log_copy.take_over(moved, log)
    assert last_of(moved) == ProducerBatch(2, 2, 2, 2)

    if then == "DeleteRecords":
        while len(moved.segments) < 4:
            append(moved, batch(value=b"y"))
        moved.flush()
        moved.offsets.raise_high_watermark(moved.log_end_offset)
        kept = moved.segments[1].base_offset
        moved.log_start.raise_to(kept)
        assert 7 in dict(snapshot_at(moved, kept).items())
    else:
        moved.truncation.truncate_to(moved.high_watermark)
        moved.flush()
    tear_unsynced(moved, synced)
    known = Checkpointed(
        recovery_point=moved.recovery_point,
        log_start_offset=moved.log_start_offset,
        high_watermark=moved.high_watermark,
    )
    assert last_of(make_log(moved.directory, SMALL, known)) == ProducerBatch(2, 2, 2, 2)


def test_a_source_that_cannot_be_read_is_no_fault_of_the_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make_log(tmp_path / "t-0", SMALL)
    filled_with(log, 3)
    moved = copy_of(log, tmp_path / "moved" / "t-0")
    read = producer_snapshots._content

    def failing(path: Path) -> bytes:
        if path.parent == log.directory:
            raise OSError(errno.ENXIO, "No such device", str(path))
        return read(path)

    monkeypatch.setattr(producer_snapshots, "_content", failing)
    with pytest.raises(LogError, match=str(log.directory)):
        log_copy.take_over(moved, log)
    assert log.disk.failure
    assert not moved.disk.failure
    moved.context.check_online()


def test_no_snapshot_of_the_copying_replaces_what_the_source_knew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They could not be written while it was copied, for want of descriptors."""
    log = make_log(tmp_path / "t-0", SMALL)
    kept = filled_with(log, 4)[1]
    log.log_start.raise_to(kept)
    with monkeypatch.context() as patched:
        patched.setattr(producer_snapshots, "write", _lacking)
        moved = copy_of(log, tmp_path / "moved" / "t-0")
    assert moved.producer_state.pending
    log_copy.take_over(moved, log)
    last = moved.segments[-1]
    assert last.producers_kept
    assert 7 in dict(snapshot_at(moved, last.base_offset).items())


def _lacking(*_: object, **__: object) -> None:
    raise OSError(errno.EMFILE, "Too many open files")


def test_a_moved_log_knows_as_many_batches_as_its_source(tmp_path: Path) -> None:
    """The copy has the last of them only: the others had been deleted."""
    log = make_log(tmp_path / "t-0", SMALL)
    for sequence in range(5):
        append(log, produced(1, producer_id=7, sequence=sequence))
        log.producer_state.write_snapshots()
    while len(log.segments) < 3:
        append(log, batch())
        log.producer_state.write_snapshots()
    log.offsets.raise_high_watermark(log.log_end_offset)
    log.log_start.raise_to(log.segments[1].base_offset)
    append(log, produced(1, producer_id=7, sequence=5))
    moved = copy_of(log, tmp_path / "moved" / "t-0")
    log_copy.take_over(moved, log)
    for one in (log, moved):
        one.truncation.truncate_to(one.high_watermark)
    assert moved.producers == log.producers
    assert moved.producers.check(header_of(produced(1, producer_id=7, sequence=2))) == Duplicate(2, 2)


def test_a_moved_log_is_cut_to_what_its_source_knew(tmp_path: Path) -> None:
    """The five batches of producer 7 that are in memory are above the cut, the one before them was gone."""
    log = make_log(tmp_path / "t-0", SMALL)
    append(log, produced(1, producer_id=7, sequence=0))
    while len(log.segments) < 4:
        append(log, batch())
        log.producer_state.write_snapshots()
    log.offsets.raise_high_watermark(log.log_end_offset)
    log.log_start.raise_to(log.segments[2].base_offset)
    for sequence in range(1, 6):
        append(log, produced(1, producer_id=7, sequence=sequence))
        log.producer_state.write_snapshots()
    moved = copy_of(log, tmp_path / "moved" / "t-0")
    log_copy.take_over(moved, log)
    for one in (log, moved):
        one.truncation.truncate_to(one.high_watermark)
        assert last_of(one) == ProducerBatch(0, 0, 0, 0)
