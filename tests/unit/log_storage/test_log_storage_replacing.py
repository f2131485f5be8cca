"""Segments that take the place of others (as a cleaner leaves them), crashes at every step included."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from log_storage_batches import batch, follow, lead, make_log, read_all

from highwater.log_storage.config import LogConfig
from highwater.log_storage.log.log import Log
from highwater.log_storage.recovery.recovery import Checkpointed
from highwater.log_storage.segment.segment import Segment
from highwater.log_storage.segment.segment_files import CLEANED_SUFFIX
from highwater.records import read_header

SMALL = LogConfig(segment_bytes=1024, index_interval_bytes=100)


def filled(directory: Path) -> Log:
    """Five segments of two batches of one record; all flushed and committed."""
    log = make_log(directory, SMALL)
    for number in range(10):
        lead(log, batch(value=b"x" * 300, timestamp=1_000 + number))
    log.offsets.raise_high_watermark(10)
    log.flush()
    return log


def cleaned(log: Log, old: Sequence[Segment], kept: Sequence[int], *, split_at: int | None = None) -> list[Segment]:
    """`.cleaned` segments that hold the batches `kept` of `old`; a second one from the offset `split_at` on."""
    made = []
    bases = [old[0].base_offset] if split_at is None else [old[0].base_offset, split_at]
    for number, base in enumerate(bases):
        segment = Segment(
            log.directory,
            base,
            index_interval_bytes=100,
            index_max_bytes=1000,
            create=True,
            suffix=CLEANED_SUFFIX,
        )
        end = bases[number + 1] if number + 1 < len(bases) else 2**62
        for offset in kept:
            if base <= offset < end:
                content = log.read(offset, -1, 1)
                header = read_header(content)
                position = segment.append([content], len(content))
                segment.note(position, len(content), header.last_offset, header.max_timestamp)
        segment.seal()
        segment.flush()
        made.append(segment)
    return made


def offsets(log: Log) -> list[int]:
    return [header.base_offset for header in read_all(log)]


def test_a_run_is_replaced(tmp_path: Path) -> None:
    log = filled(tmp_path)
    old = log.segments[1:4]
    plan = log.reader.plan_read(3, -1, 1)
    assert plan is not None
    assert log.replacement.replace(old, cleaned(log, old, [3, 6, 7]))
    assert [segment.base_offset for segment in log.segments] == [0, 2, 8]
    assert offsets(log) == [0, 1, 3, 6, 7, 8, 9]
    assert read_header(plan.run()).base_offset == 3  # of a segment that is not in the log any more
    assert log.read(4, -1, 1) == log.read(6, -1, 1)  # offsets never change (invariant 8)
    assert log.reader.list_offset(1_004).offset == 6
    assert len(log.segment_list.removable) == 9
    assert all(path.name.endswith(".deleted") and path.exists() for path in log.segment_list.removable)
    log.remove_deleted()
    assert not list(tmp_path.glob("*.deleted"))
    assert not list(tmp_path.glob("*.swap")) + list(tmp_path.glob("*.cleaned"))
    lead(log, batch())
    log.close()
    for known in (Checkpointed(True, 11, 0, 10), Checkpointed(False, 11, 0, 10)):
        again = make_log(tmp_path, SMALL, known)
        assert offsets(again) == [0, 1, 3, 6, 7, 8, 9, 10]
        assert again.state == log.state


def test_nothing_is_replaced_once_one_of_them_has_gone(tmp_path: Path) -> None:
    log = filled(tmp_path)
    old = log.segments[0:3]
    new = cleaned(log, old, [1, 5])
    log.log_start.raise_to(3)
    assert not log.replacement.replace(old, new)
    assert offsets(log) == [3, 4, 5, 6, 7, 8, 9]
    assert not list(tmp_path.glob("*.swap")) + list(tmp_path.glob("*.cleaned"))
    active = log.segments[-2:]
    assert not log.replacement.replace(active, cleaned(log, active, [6, 9]))  # the active segment is never replaced
    assert log.log_end_offset == 10


def test_neither_a_roll_nor_a_raised_log_start_waits_for_the_renaming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They happen in the event loop, in the middle of an append; the renames in a thread."""
    log = filled(tmp_path)
    old = log.segments[1:4]
    new = cleaned(log, old, [3, 7])
    begun, go_on = threading.Event(), threading.Event()
    mark_deleted = Segment.mark_deleted

    def mark_slowly(segment: Segment) -> list[Path]:
        if segment is old[0]:
            begun.set()
            assert go_on.wait(20)
        return mark_deleted(segment)

    monkeypatch.setattr(Segment, "mark_deleted", mark_slowly)
    replaced: list[bool] = []
    replacing = threading.Thread(target=lambda: replaced.append(log.replacement.replace(old, new)))
    replacing.start()
    assert begun.wait(20)

    assert log.segment_list.changing.acquire(timeout=10), "a roll would wait"
    log.segment_list.changing.release()
    log.writer.roll(10)
    first = log.segments[0]
    log.offsets.raise_high_watermark(log.log_end_offset)
    log.log_start.raise_to(8)  # what has just been put in goes as well, though its files have no names yet

    assert not replaced
    assert [segment.base_offset for segment in log.segments] == [8, 10]
    go_on.set()
    replacing.join()
    assert replaced == [True]
    assert not list(tmp_path.glob("*.swap")) + list(tmp_path.glob("*.cleaned"))
    assert {path.name[:20] for path in tmp_path.glob("*.log")} == {f"{base:020d}" for base in (8, 10)}
    assert first.path.with_name(first.path.name + ".deleted") in log.segment_list.removable
    log.remove_deleted()
    assert not list(tmp_path.glob("*.deleted"))
    lead(log, batch())
    log.close()
    assert offsets(make_log(tmp_path, SMALL, Checkpointed(True, 11, 8, 10))) == [8, 9, 10]


@pytest.mark.parametrize("split_at", [None, 5])
def test_a_crash_at_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split_at: int | None) -> None:
    """What the directory looks like before each renaming and removal, opened."""
    directory = tmp_path / "log"
    log = filled(directory)
    before = offsets(log)
    old = log.segments[0:4]
    new = cleaned(log, old, [0, 3, 6], split_at=split_at)
    states: list[Path] = []

    def remember(*_: object) -> None:
        states.append(tmp_path / f"state-{len(states)}")
        shutil.copytree(directory, states[-1])

    rename, unlink = os.replace, Path.unlink

    def observed_rename(source: Path, target: Path) -> None:
        remember()
        rename(source, target)

    def observed_unlink(path: Path, *, missing_ok: bool = False) -> None:
        remember()
        unlink(path, missing_ok=missing_ok)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", observed_rename)
        patched.setattr(Path, "unlink", observed_unlink)
        assert log.replacement.replace(old, new)
        log.remove_deleted()
    remember()
    after = offsets(log)
    assert after == [0, 3, 6, 8, 9]
    assert len(states) > 20
    found = []
    for state in states:
        opened = make_log(state, SMALL, Checkpointed(False, 10, 0, 10))
        assert not [path.name for path in state.iterdir() if path.suffix in (".swap", ".cleaned", ".deleted")]
        found.append(offsets(opened))
        assert opened.state == log.state
        if len(opened.segments) < 5:
            assert found[-1] == after
    # The originals of a run whose last batches were dropped may outlive a crash: they are cleaned again.
    assert all(some == before or set(after) <= set(some) for some in found)
    assert found[0] == before
    assert found[-1] == after


def test_a_crash_while_a_swap_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recovery from a swap may itself be killed."""
    directory = tmp_path / "log"
    log = filled(directory)
    old = log.segments[0:4]
    new = cleaned(log, old, [0, 3, 6], split_at=5)
    log.segment_list.note_gaps()
    for segment in reversed(new):
        segment.change_suffix(".cleaned", ".swap")
    states: list[Path] = []
    unlink, rename = Path.unlink, os.replace

    def remember() -> None:
        states.append(tmp_path / f"state-{len(states)}")
        shutil.copytree(directory, states[-1])

    def observed_unlink(path: Path, *, missing_ok: bool = False) -> None:
        remember()
        unlink(path, missing_ok=missing_ok)

    def observed_rename(source: Path, target: Path) -> None:
        remember()
        rename(source, target)

    known = Checkpointed(False, 10, 0, 10)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", observed_unlink)
        patched.setattr(os, "replace", observed_rename)
        opened = make_log(directory, SMALL, known)
    assert offsets(opened) == [0, 3, 6, 8, 9]
    for state in states:
        assert offsets(make_log(state, SMALL, known)) == [0, 3, 6, 8, 9], state


def test_a_log_takes_another_directory_s_place(tmp_path: Path) -> None:
    log = filled(tmp_path / "events-0.future")
    log.log_start.raise_to(3)
    log.move_to(tmp_path / "events-0")
    assert log.directory == tmp_path / "events-0"
    log.remove_deleted()
    follow(log, batch(base_offset=10, epoch=1))
    log.flush()
    log.close()
    again = make_log(tmp_path / "events-0", SMALL, Checkpointed(True, 11, 3, 10))
    assert again.state == log.state
    assert not (tmp_path / "events-0.future").exists()


@pytest.mark.parametrize("read_from", [0, 2, None])
def test_who_looks_into_segments_while_they_are_replaced_meets_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_from: int | None
) -> None:
    """Since a start nobody has used them: they are opened by names that have become those of others."""
    filled(tmp_path).close()
    log = make_log(tmp_path, SMALL, Checkpointed(True, 10, 0, 10))
    twin = make_log(tmp_path, SMALL, Checkpointed(True, 10, 0, 10))  # what the cleaner reads
    old, new = log.segments[0:4], cleaned(twin, twin.segments[0:4], [7])
    method = "position_of" if read_from is not None else "first_at_or_after"
    real = getattr(Segment, method)

    def replace_first(segment: Segment, argument: int) -> object:
        monkeypatch.setattr(Segment, method, real)
        assert log.replacement.replace(old, new)  # as the cleaner's thread does
        return real(segment, argument)

    monkeypatch.setattr(Segment, method, replace_first)
    if read_from is not None:
        assert read_header(log.read(read_from, -1, 1)).base_offset == 7
    else:
        assert log.reader.list_offset(1_002).offset == 7
    assert offsets(log) == [7, 8, 9]
    assert all(path.exists() for segment in log.segments for path in segment.paths())
