"""Two who write or remove the same small file at once: both succeed, and no log goes offline by it."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from log_storage_batches import batch, follow, lead, make_log, produced

from highwater.atomic_file import remove_temporaries, replace_file
from highwater.log_storage.config import LogConfig
from highwater.log_storage.files import checkpoints
from highwater.log_storage.producers import producer_snapshots

MEETING_S = 0.2


def meeting(monkeypatch: pytest.MonkeyPatch, name: str, of: Callable[[Any], bool]) -> list[Any]:
    """The next two calls of that operation happen at once, where two come at all."""
    barrier, real, met = threading.Barrier(2), getattr(os, name), []

    def call(path: Any, *arguments: Any, **named: Any) -> Any:
        if of(path):
            met.append(path)
            if len(met) <= 2:
                with contextlib.suppress(threading.BrokenBarrierError):
                    barrier.wait(MEETING_S)
        return real(path, *arguments, **named)

    monkeypatch.setattr(os, name, call)
    return met


def test_two_writers_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    met = meeting(monkeypatch, "replace", lambda source: str(source).startswith(str(path)))
    with ThreadPoolExecutor(2) as threads:
        for written in [threads.submit(replace_file, path, content) for content in (b"one" * 999, b"two" * 999)]:
            written.result()
    assert len(met) == 2
    assert path.read_bytes() in (b"one" * 999, b"two" * 999)
    assert os.listdir(tmp_path) == ["file"]


def test_a_flush_beside_a_raised_log_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both write the leader epochs, and what stands in the file then is what the log start relies on."""
    log = make_log(tmp_path, LogConfig(segment_bytes=300))
    for epoch in range(1, 6):
        lead(log, batch(value=b"x" * 250), epoch)
    log.offsets.raise_high_watermark(5)
    flush = log.flusher.begin_flush()
    follower_appends = batch(value=b"x" * 250, base_offset=5, epoch=6)
    epochs = str(tmp_path / checkpoints.LEADER_EPOCHS)
    meeting(monkeypatch, "replace", lambda source: str(source).startswith(epochs))
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(flush.run)
        follow(log, follower_appends, 6, high_watermark=6, log_start=6)
        running.result()
    log.flusher.finish_flush(flush)
    assert log.failure is None
    cache = checkpoints.read_epochs(tmp_path / checkpoints.LEADER_EPOCHS)
    assert cache is not None
    assert cache.latest_epoch == 6


def test_an_older_flush_does_not_take_back_the_epochs(tmp_path: Path) -> None:
    """The file is the only one that knows the last batch's epoch where retention has taken all batches."""
    log = make_log(tmp_path, LogConfig(segment_bytes=300))
    lead(log, batch(value=b"x" * 250), 1)
    flush = log.flusher.begin_flush()
    follow(log, batch(value=b"x" * 250, base_offset=1, epoch=6), 6, high_watermark=2, log_start=2)
    flush.run()
    log.flusher.finish_flush(flush)
    cache = checkpoints.read_epochs(tmp_path / checkpoints.LEADER_EPOCHS)
    assert cache is not None
    assert cache.latest_epoch == 6


def test_two_removals_of_a_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = make_log(tmp_path, LogConfig(segment_bytes=300))
    for number in range(6):
        lead(log, produced(1, sequence=number) + produced(1, sequence=number, producer_id=8))
    (tmp_path / f"{1:020}.snapshot").write_bytes(b"")  # stands at no segment's beginning
    met = meeting(monkeypatch, "unlink", lambda path: str(path).endswith(".snapshot"))
    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(producer_snapshots.remove_needless, tmp_path, log.segments) for _ in range(2)]:
            done.result()
    assert len(met) == 2
    assert log.failure is None


def test_the_snapshot_of_a_segment_that_is_begun_meanwhile_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make_log(tmp_path)
    lead(log, produced(1, sequence=0))
    offsets = producer_snapshots.offsets

    def then_two_more(directory: Path) -> list[int]:
        monkeypatch.setattr(producer_snapshots, "offsets", offsets)
        for number in (1, 2):
            log.writer.roll(log.log_end_offset)
            lead(log, produced(1, sequence=number))
        return offsets(directory)

    monkeypatch.setattr(producer_snapshots, "offsets", then_two_more)
    producer_snapshots.remove_needless(tmp_path, log.segments)
    assert offsets(tmp_path) == [1, 2]


def test_what_a_crash_has_left_of_a_file_that_was_replaced_is_removed(tmp_path: Path) -> None:
    for name in ("a.0.tmp", "a.17.tmp", "a.tmp", "a"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "directory.tmp").mkdir()
    remove_temporaries(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["a", "directory.tmp"]
