"""Tails that are lost under one and the same boot (RULES 7.2): what a start makes of what it finds."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest
from faulty_disk import SYNCS, WRITES, FaultyDisk
from log_storage_batches import batch, follow, lead, manager_with_log, produced, read_all

from highwater.log_storage.config import LogConfig
from highwater.log_storage.errors import LogError
from highwater.log_storage.fence import Fence
from highwater.log_storage.files import boot_record
from highwater.log_storage.files.boot_record import Boot, BootRecord, Cut
from highwater.log_storage.log.log import Log
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.log_storage.producers import producer_snapshots
from highwater.log_storage.recovery import recovery
from highwater.model.fence_role import Role
from highwater.model.partition import PartitionKey

KEY = PartitionKey(b"t" * 16, 0)
FENCE = Fence(1, Role.LEADER, "rm", "ls")
SEGMENT = Path("t-0") / "00000000000000000000.log"


def begun(data: Path, config: LogConfig | None = None) -> LogManager:
    return manager_with_log(data, KEY, config or LogConfig(), FENCE)


def started(data: Path, config: LogConfig | None = None) -> LogManager:
    manager = LogManager([data], config or LogConfig(), broker_id=1)
    manager.load()
    return manager


def log_of(manager: LogManager) -> Log:
    return manager.logs.get(KEY).online()


def lost(data: Path) -> bool:
    """Whether a start finds the tail lost. It is killed at once."""
    manager = started(data)
    found = manager.logs.log_dirs[0].tail_lost
    manager.unlock()
    return found


def written(data: Path, batches: int, committed: int = 0, flushed: int = 0) -> list[int]:
    """Appends batches of a record each and kills log-storage; the position at which each of them ends."""
    manager = begun(data)
    log = log_of(manager)
    ends = []
    for number in range(batches):
        lead(log, batch(value=b"v" * 50))
        ends.append(log.size_bytes)
        if number + 1 == flushed:
            log.flush()
    log.offsets.raise_high_watermark(committed)
    manager.logs.write_checkpoints(manager.logs.log_dirs[0])
    manager.unlock()
    return ends


def truncate(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


def test_a_log_that_ends_below_its_high_watermark_has_lost_its_tail(tmp_path: Path) -> None:
    """The pages behind offset 39 were never written, and the kernel has dropped them."""
    ends = written(tmp_path, 60, committed=60, flushed=20)
    truncate(tmp_path / SEGMENT, ends[38])
    manager = started(tmp_path)
    assert log_of(manager).log_end_offset == 39
    assert manager.logs.log_dirs[0].tail_lost
    manager.close()
    assert lost(tmp_path)  # until the broker has registered so, though it is cut now
    manager = started(tmp_path)
    manager.logs.log_dirs[0].record_boot()
    manager.unlock()
    assert not lost(tmp_path)


def test_pages_that_are_gone_in_the_midst_of_a_log(tmp_path: Path) -> None:
    """Whatever the checkpoint says: what a kill leaves has no hole."""
    ends = written(tmp_path, 60)
    path = tmp_path / SEGMENT
    content = bytearray(path.read_bytes())
    content[ends[38] : ends[39]] = bytes(ends[39] - ends[38])
    path.write_bytes(content)
    manager = started(tmp_path)
    assert log_of(manager).log_end_offset == 39
    assert manager.logs.log_dirs[0].tail_lost
    manager.unlock()
    assert lost(tmp_path)


def test_a_segment_that_begins_behind_the_end_shows_what_is_gone(tmp_path: Path) -> None:
    """The kernel has forgotten the sizes of files, too: both end with a whole batch, and the last has none."""
    manager = begun(tmp_path, LogConfig(segment_bytes=300))
    log = log_of(manager)
    while len(log.segments) < 3:
        lead(log, batch(value=b"v" * 50))
    *_, before, last = log.segments
    found = before.position_of(last.base_offset - 1)
    assert found is not None
    manager.unlock()
    truncate(before.path, found[0])
    truncate(last.path, 0)
    manager = started(tmp_path)
    assert log_of(manager).log_end_offset == last.base_offset - 1
    assert manager.logs.log_dirs[0].tail_lost
    manager.unlock()


def test_an_empty_segment_behind_a_gap_shows_nothing(tmp_path: Path) -> None:
    """The log was cut within a gap of compaction, and all of it was let go of: the active segment begins at the cut."""
    manager = begun(tmp_path, LogConfig(retention_ms=1))
    log = log_of(manager)
    for offset in (0, 10, 30):
        log.append_as_follower(batch(base_offset=offset, epoch=1), 1, log.log_end_offset, -1, -1, 0)
    cut = log.truncation.cut_for(20, -1)
    log.offsets.promise_at_most(cut)
    log.truncation.truncate_to(cut)
    log.offsets.raise_high_watermark(cut)
    log.log_start.move_behind(log.log_start.expired(10**13))
    manager.unlock()
    assert log.segments[-1].base_offset == 20
    assert not lost(tmp_path)


def test_a_snapshot_of_which_pages_are_gone_shows_that_others_may_be(tmp_path: Path) -> None:
    """It was renamed when it was whole. The log ends with a whole batch, at a segment's end."""
    manager = begun(tmp_path, LogConfig(segment_bytes=300))
    log = log_of(manager)
    lead(log, produced(1, sequence=0))
    while len(log.segments) < 3:
        lead(log, batch(value=b"v" * 50))
    manager.unlock()
    snapshot = producer_snapshots.path_of(log.directory, log.segments[-1].base_offset)
    truncate(snapshot, 0)
    truncate(log.segments[-1].path, 0)
    manager = started(tmp_path)
    assert manager.logs.log_dirs[0].tail_lost
    assert not snapshot.exists()
    manager.unlock()


def test_a_snapshot_that_was_damaged_below_what_is_flushed_shows_nothing(tmp_path: Path) -> None:
    """An earlier loss of power may have left it, and nobody has read it since."""
    manager = begun(tmp_path, LogConfig(segment_bytes=300))
    log = log_of(manager)
    lead(log, produced(1, sequence=0))
    while len(log.segments) < 3:
        lead(log, batch(value=b"v" * 50))
    log.flush()
    manager.logs.write_checkpoints(manager.logs.log_dirs[0])
    manager.unlock()
    truncate(producer_snapshots.path_of(log.directory, log.segments[-1].base_offset), 0)
    assert not lost(tmp_path)


def test_what_is_lost_is_on_disk_before_recovery_cuts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = written(tmp_path, 60)
    path = tmp_path / SEGMENT
    content = bytearray(path.read_bytes())
    content[ends[38] + 30] ^= 1
    path.write_bytes(content)
    real = recovery._cut

    def killed(*arguments: object) -> None:
        real(*arguments)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(recovery, "_cut", killed)
        manager = LogManager([tmp_path], LogConfig(), broker_id=1)
        with pytest.raises(KeyboardInterrupt):
            manager.load()
        manager.unlock()
    assert lost(tmp_path)


def test_a_kill_in_the_midst_of_a_write_loses_nothing(tmp_path: Path) -> None:
    """Of an append of three batches every beginning that a kill can leave: the batches were never answered for."""
    ends = written(tmp_path, 3, committed=3)
    path = tmp_path / SEGMENT
    manager = started(tmp_path)
    lead(log_of(manager), b"".join(batch(2) for _ in range(3)))
    manager.unlock()
    content = path.read_bytes()
    length = (len(content) - ends[-1]) // 3
    marks = {
        ends[-1] + number * length + more for number in range(3) for more in (0, 1, 11, 12, 17, 60, 61, length - 1)
    }
    for size in sorted(marks | {len(content)}, reverse=True):
        path.write_bytes(content[:size])
        manager = started(tmp_path)
        log = log_of(manager)
        assert not manager.logs.log_dirs[0].tail_lost, size
        whole = (size - ends[-1]) // length
        assert log.log_end_offset == 3 + 2 * whole, size
        manager.unlock()


def test_a_whole_log_after_a_kill_has_lost_nothing(tmp_path: Path) -> None:
    written(tmp_path, 60, committed=60)
    assert not lost(tmp_path)


# -- a disk that does not take what was written ----------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_after_a_failed_sync_a_start_does_not_believe_what_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The pages may still be there, marked as written, and be gone when they are read again."""
    manager = begun(tmp_path)
    disk = FaultyDisk(tmp_path, monkeypatch)
    lead(log_of(manager), batch(5))
    disk.fail(("fdatasync",), number)
    with pytest.raises(LogError):
        log_of(manager).flush()
    disk.heal()
    assert manager.logs.log_dirs[0].disk.doubt
    manager.unlock()
    manager = started(tmp_path)
    assert log_of(manager).log_end_offset == 5
    assert manager.logs.log_dirs[0].tail_lost
    assert not manager.logs.log_dirs[0].disk.doubt
    manager.logs.log_dirs[0].record_boot()
    manager.unlock()
    assert not lost(tmp_path)


def test_what_a_process_has_lost_it_cannot_settle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = begun(tmp_path)
    disk = FaultyDisk(tmp_path, monkeypatch)
    lead(log_of(manager), batch(5))
    disk.fail(("fdatasync",), errno.ENOSPC)  # the log is offline, its directory is not
    with pytest.raises(LogError):
        log_of(manager).flush()
    disk.heal()
    manager.logs.log_dirs[0].record_boot()  # the broker registers anew, log-storage goes on
    manager.close()
    assert lost(tmp_path)


def test_a_disk_that_takes_nothing_any_more_forgets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the replica-manager is told, to keep it in etcd."""
    manager = begun(tmp_path)
    disk = FaultyDisk(tmp_path, monkeypatch)
    lead(log_of(manager), batch(5))
    disk.fail((*WRITES, *SYNCS))
    with pytest.raises(LogError):
        log_of(manager).flush()
    assert manager.logs.log_dirs[0].disk.doubt
    manager.unlock()
    disk.heal()
    assert not lost(tmp_path)


# -- flush.messages=1 ------------------------------------------------------------------------------------------------


def test_a_high_watermark_above_what_is_on_disk_is_not_checkpointed_where_every_append_is_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power failure such a log is believed: it must not look as if it had lost what it never answered for."""
    every = LogConfig(flush_messages=1)
    manager = begun(tmp_path, every)
    log = log_of(manager)
    follow(log, batch(5, epoch=1), high_watermark=5)
    log.flush()
    position = log.size_bytes
    follow(log, batch(5, base_offset=5, epoch=1), high_watermark=10)  # the others have it; this one waits for its disk
    manager.logs.write_checkpoints(manager.logs.log_dirs[0])
    manager.unlock()
    truncate(tmp_path / SEGMENT, position)
    monkeypatch.setattr(boot_record, "present_boot", lambda directory: Boot("after the power failure", "mount"))
    manager = started(tmp_path, every)
    log = log_of(manager)
    assert [header.last_offset for header in read_all(log)] == [4]
    assert log.high_watermark == 5
    assert not manager.logs.log_dirs[0].tail_lost
    manager.unlock()


# -- the decisions ---------------------------------------------------------------------------------------------------

HERE, ELSEWHERE = Boot("boot", "mount"), Boot("another boot", "mount")
LOST = BootRecord(1, HERE, False, (), True)


@pytest.mark.parametrize(
    ("record", "present", "clean", "tail_lost", "page_cache"),
    [
        (LOST, HERE, False, True, False),
        (replace(LOST, flush_every_message=True), ELSEWHERE, False, True, False),
        (LOST, HERE, True, False, False),  # a clean stop: everything was synced after all
        (replace(LOST, tail_lost=False), HERE, False, False, True),
        (replace(LOST, tail_lost=False), ELSEWHERE, False, True, False),
        (replace(LOST, tail_lost=False, flush_every_message=True), ELSEWHERE, False, False, False),
        (None, HERE, False, True, False),
    ],
)
def test_what_a_record_says(
    record: BootRecord | None, present: Boot, clean: bool, tail_lost: bool, page_cache: bool
) -> None:
    assert boot_record.tail_lost(record, present, clean) is tail_lost
    assert boot_record.page_cache_intact(record, present, clean) is page_cache


@pytest.mark.parametrize(
    ("page_cache", "cut", "offsets", "shown"),
    [
        (True, Cut.NOTHING, (0, 60, 60), False),
        (True, Cut.NOTHING, (0, 60, 59), True),
        (False, Cut.NOTHING, (0, 60, 59), True),
        (True, Cut.TORN, (0, 60, 60), False),
        (True, Cut.MORE, (0, 60, 60), True),
        (False, Cut.MORE, (0, 60, 60), False),  # flush.messages=1 and a power failure: it was never answered for
        (True, Cut.NOTHING, (60, 60, 40), False),  # nothing is left below the log start that could be lost
    ],
)
def test_what_recovery_shows(page_cache: bool, cut: Cut, offsets: tuple[int, int, int], shown: bool) -> None:
    assert bool(boot_record.recovery_shows_loss(page_cache, cut, *offsets)) is shown


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    boot_record.write_record(tmp_path, LOST)
    assert boot_record.read_record(tmp_path) == LOST
