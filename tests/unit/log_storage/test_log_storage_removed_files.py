"""The files of a log directory removed one by one, after a clean stop and after a kill: what can be made again is, and
what cannot is told, at the start or when it is read; nothing of what was on disk is passed over in silence (invariant
7). Once the file is back, so is the log."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from log_storage_batches import batch, follow, lead, make_log, manager_with_log, produced

from highwater.errors import ErrorCode
from highwater.log_storage.config import LogConfig
from highwater.log_storage.errors import LogError
from highwater.log_storage.fence import Fence
from highwater.log_storage.inspect.verify import verify
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.log_storage.recovery.recovery import Checkpointed
from highwater.log_storage.segment.damage import check_segment
from highwater.model.fence_role import Role
from highwater.model.partition import PartitionKey
from highwater.records import iter_batches

KEY = PartitionKey(b"t" * 16, 0)
FENCE = Fence(3, Role.LEADER, "rm", "ls")
CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=100)
TIMES = range(995, 1_120, 5)


class Seen(NamedTuple):
    refused: str  # the log, or the first read that was; empty: none
    batches: list[bytes]
    timed: list[int]
    producers: object


def made(data: Path, *, clean: bool) -> None:
    manager = manager_with_log(data, KEY, CONFIG, FENCE)
    log = manager.logs.get(KEY).online()
    for number in range(10):
        log.become_leader(1 + number // 4)
        lead(log, batch(2, timestamp=1_000 + 10 * number), epoch=1 + number // 4)
        lead(log, produced(2, sequence=2 * number), epoch=1 + number // 4)
    log.offsets.raise_high_watermark(40)
    assert len(log.segments) >= 5
    if clean:
        manager.close()
    else:
        log.flush()
        manager.logs.write_checkpoints(manager.logs.log_dirs[0])
        manager.unlock()


def look(data: Path) -> Seen:
    manager = LogManager([data], CONFIG, broker_id=1)
    batches: list[bytes] = []
    try:
        manager.load()
        assert [hosted.key for hosted in manager.logs] in ([KEY], [])
        log = manager.logs.get(KEY).online()
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            content = log.read(offset, -1, 1)
            [(_, header)] = iter_batches(content)
            assert header.base_offset == offset  # nothing is passed over
            batches.append(content)
            offset = header.next_offset
        producers = {who: (state.epoch, state.batches) for who, state in log.producers.items()}
        return Seen("", batches, [log.reader.list_offset(time).offset for time in TIMES], producers)
    except LogError as error:
        return Seen(f"{error.code.name}: {error}", batches, [], None)
    finally:
        manager.unlock()


@pytest.mark.parametrize("clean", [True, False])
def test_removed_one_by_one(tmp_path: Path, clean: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fsync", "fdatasync", "posix_fallocate"):
        monkeypatch.setattr(f"os.{name}", lambda *arguments: None)
    sound, work = tmp_path / "sound", tmp_path / "work"
    made(sound, clean=clean)
    shutil.copytree(sound, work)
    good = look(work)
    assert not good.refused
    assert len(good.batches) == 20
    segments = sorted(path.name for path in (sound / "t-0").glob("*.log"))
    for path in sorted(path.relative_to(sound) for path in sound.rglob("*") if path.is_file()):
        shutil.rmtree(work)
        shutil.copytree(sound, work)
        (work / path).unlink()
        told = [file.path.name for file in verify(work) if file.problems]
        seen = look(work)
        if path.name == segments[0]:  # as if retention had let it go: reads of it are out of range
            assert (seen.refused, seen.batches) == ("", good.batches[-len(seen.batches) :])
            assert told or not clean
        elif path.name in segments:
            assert seen.refused.startswith(("CORRUPT_MESSAGE", "LOG_STORAGE_ERROR")), path
            assert seen.batches == good.batches[: len(seen.batches)]
            assert told, path
        elif path.name == "partition.metadata":
            assert seen.refused.startswith("UNKNOWN_TOPIC_ID")
            assert told
        else:
            assert seen == good, path
        if seen.refused:
            assert look(work).refused == seen.refused
            shutil.copy(sound / path, work / path)
            assert look(work) == good, path


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("witness", ["high watermark", "snapshot"])
def test_a_log_that_ends_below_what_was_on_disk_is_offline(tmp_path: Path, clean: bool, witness: str) -> None:
    """Two files have to say so: the checkpoints have no CRC."""
    log = make_log(tmp_path, CONFIG)
    for number in range(12):
        lead(log, produced(2, sequence=2 * number))
    log.close()
    log.segments[-1].path.rename(tmp_path / "kept")
    if witness == "high watermark":
        (tmp_path / f"{24:020}.snapshot").unlink()
    known = Checkpointed(clean, 24, 0, 24 if witness == "high watermark" else 0)
    for _ in range(2):
        with pytest.raises(LogError, match=r"ends at offset \d+ and was on disk up to 24", check=_is_storage_error):
            make_log(tmp_path, CONFIG, known)
    (tmp_path / "kept").rename(log.segments[-1].path)
    assert make_log(tmp_path, CONFIG, known).log_end_offset == 24
    # A checkpoint alone is not believed.
    assert make_log(tmp_path, CONFIG, Checkpointed(clean, 99, 0, 24)).log_end_offset == 24
    assert make_log(tmp_path, CONFIG, Checkpointed(clean, 24, 0, 99)).log_end_offset == 24


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_that_ends_in_a_gap_of_compaction_has_lost_nothing(tmp_path: Path, clean: bool) -> None:
    """After a truncation there its last batch is below its end, its recovery point and its high watermark."""
    log = make_log(tmp_path, CONFIG)
    for offset in (0, 10):
        follow(log, batch(base_offset=offset, epoch=1))
    log.offsets.raise_high_watermark(6)
    log.flush()
    cut = log.truncation.cut_for(7, -1)
    log.offsets.promise_at_most(cut)
    log.truncation.truncate_to(cut)
    assert (log.log_end_offset, log.recovery_point, log.high_watermark) == (7, 7, 6)
    again = make_log(tmp_path, CONFIG, Checkpointed(clean, 7, 0, 6))
    assert again.read(0, -1, 1) == log.read(0, -1, 1)
    assert again.log_end_offset <= 7


def _is_storage_error(error: LogError) -> bool:
    return error.code is ErrorCode.LOG_STORAGE_ERROR


def test_a_hole_is_told_by_reads_and_by_a_scrub(tmp_path: Path) -> None:
    """Also where the file is there, and ends early between two batches."""
    log = make_log(tmp_path, CONFIG)
    for number in range(20):
        lead(log, batch(2, timestamp=1_000 + number))
    log.close()
    second, third = log.segments[1:3]
    [(_, first), *_] = second.headers(0)
    content = second.path.read_bytes()
    second.path.write_bytes(content[: first.size_bytes])
    log.segments[3].path.unlink()
    again = make_log(tmp_path, CONFIG, Checkpointed(True, 40, 0, 40))
    assert again.read(second.base_offset, -1, 1)
    missing = [(first.next_offset, third.base_offset), (third.end_offset, again.segments[3].base_offset)]
    for lost, following in missing:
        for offset in range(lost, following):
            with pytest.raises(LogError, match=f"{offset} to {following - 1} are missing", check=_is_corrupt):
                again.read(offset, -1, 1)
            with pytest.raises(LogError, match="are missing"):
                again.read(offset, offset + 1, 1)  # also below a high watermark that is below what comes next
        assert again.read(following, -1, 1)
    found = [
        (damaged.first_offset, damaged.last_offset + 1)
        for segment, behind in zip(again.segments, again.segments[1:], strict=False)
        for damaged in check_segment(segment, 0, check_crcs=True, end_offset=behind.base_offset, contiguous=True)
        if not hasattr(damaged, "header")
    ]
    assert found == missing


def _is_corrupt(error: LogError) -> bool:
    return error.code is ErrorCode.CORRUPT_MESSAGE
