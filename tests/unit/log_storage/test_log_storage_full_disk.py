"""A full disk: appends are refused with STORAGE_FULL and leave nothing behind, everything else goes on with what is
kept in reserve, and when there is space again so do the appends."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faulty_disk import FaultyDisk
from log_storage_batches import batch, lead, produced, read_all
from log_storage_client import LEADER, Code, running
from log_storage_client import key as of_partition
from small_volume import may_mount, mounted

from highwater.errors import ErrorCode
from highwater.log_storage.config import LogConfig
from highwater.log_storage.errors import LogError
from highwater.log_storage.fence import Fence
from highwater.log_storage.files.disk import RESERVE_BYTES
from highwater.log_storage.files.fence_journal import FenceJournal
from highwater.log_storage.log.log import Log
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.model.fence_role import Role
from highwater.model.partition import PartitionKey
from highwater.v1 import log_storage_pb2

pytestmark = pytest.mark.usefixtures("each_transport")

KEY, OTHER = (PartitionKey(b"t" * 16, partition) for partition in range(2))
CONFIG = LogConfig(segment_bytes=500, index_interval_bytes=100)


def opened(path: Path) -> LogManager:
    manager = LogManager([path], CONFIG, broker_id=1)
    manager.load()
    return manager


def log_of(manager: LogManager) -> Log:
    return manager.logs.get(KEY).online()


def refused(code: ErrorCode) -> Any:
    return pytest.raises(LogError, check=lambda error: error.code is code)


def contents(log: Log) -> list[bytes]:
    return [log.read(header.base_offset, -1, 1) for header in read_all(log)]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def manager(data: Path) -> Iterator[LogManager]:
    manager = opened(data)
    manager.logs.log_dirs[0].record_boot()
    for key in (KEY, OTHER):
        manager.create("t", key, {})
    manager.logs.log_dirs[0].record_fences({KEY: Fence(1, Role.LEADER, "rm", "ls")})
    for number in range(8):
        lead(log_of(manager), produced(2, sequence=2 * number))
    log_of(manager).offsets.raise_high_watermark(16)
    log_of(manager).flush()
    manager.logs.write_checkpoints(manager.logs.log_dirs[0])
    yield manager
    manager.unlock()


@pytest.fixture
def disk(data: Path, manager: LogManager, monkeypatch: pytest.MonkeyPatch) -> FaultyDisk:
    return FaultyDisk(data, monkeypatch)


def find_space(manager: LogManager, disk: FaultyDisk) -> None:
    disk.heal()
    manager.logs.log_dirs[0].disk.keep_reserve()
    assert not manager.logs.log_dirs[0].disk.full


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_an_append_is_refused_and_taken_later(manager: LogManager, disk: FaultyDisk, number: int) -> None:
    before, state = contents(log_of(manager)), log_of(manager).state
    disk.fail(("pwritev",), number)
    with refused(ErrorCode.STORAGE_FULL):
        lead(log_of(manager), produced(2, sequence=16))
    assert ErrorCode.STORAGE_FULL.retriable
    disk.heal()
    with refused(ErrorCode.STORAGE_FULL):  # as long as it is not known that there is space
        lead(log_of(manager), produced(2, sequence=16))
    assert (contents(log_of(manager)), log_of(manager).state) == (before, state)
    find_space(manager, disk)
    assert lead(log_of(manager), produced(2, sequence=16)).base_offset == 16
    assert contents(log_of(manager))[:-1] == before


def taken(log: Log, records: bytes, disk: FaultyDisk, room: int) -> bool:
    disk.room = room
    try:
        lead(log, records)
    except LogError as error:
        return error.code is not ErrorCode.STORAGE_FULL
    return True


def test_wherever_the_room_ends(data: Path, manager: LogManager, disk: FaultyDisk) -> None:
    """An append of several batches, over the end of a segment: cut off at any byte it leaves nothing behind, and the
    log that is opened after a crash then is the one from before."""
    records = b"".join(produced(2, sequence=16 + 2 * number) for number in range(10))
    assert len(records) > 500  # so that it rolls
    log = log_of(manager)
    before, state, segments = contents(log), log.state, len(log.segments)
    room = 0
    while not taken(log, records, disk, room):
        disk.heal()
        assert (contents(log), log.state, len(log.segments)) == (before, state, segments)
        assert sum(path.stat().st_size for path in (data / "t-0").glob("*.log")) == log.size_bytes
        assert not list((data / "t-0").glob("*.tmp"))
        find_space(manager, disk)
        room += 23
    disk.heal()
    assert room > len(records)
    assert contents(log)[:8] == before
    assert log.log_end_offset == 36
    log.flush()
    manager.unlock()
    again = opened(data)
    assert log_of(again).log_end_offset == 36
    again.unlock()


def test_a_crash_while_the_disk_is_full(data: Path, manager: LogManager, disk: FaultyDisk) -> None:
    before = contents(log_of(manager))
    disk.room = 50
    with refused(ErrorCode.STORAGE_FULL):
        lead(log_of(manager), produced(2, sequence=16))
    manager.unlock()
    disk.room = RESERVE_BYTES  # what was kept in reserve
    again = opened(data)
    assert contents(log_of(again)) == before
    assert again.logs.log_dirs[0].disk.full
    with refused(ErrorCode.STORAGE_FULL):
        lead(log_of(again), produced(2, sequence=16))
    find_space(again, disk)
    assert lead(log_of(again), produced(2, sequence=16)).base_offset == 16
    again.unlock()


def fill(manager: LogManager, disk: FaultyDisk) -> None:
    """Only the reserve is left, for those who need it."""
    disk.room = 0
    with refused(ErrorCode.STORAGE_FULL):
        lead(log_of(manager), produced(2, sequence=16))
    assert not (manager.logs.log_dirs[0].path / ".reserve").exists()
    disk.room = RESERVE_BYTES


def test_what_needs_a_little_space_finds_it(data: Path, manager: LogManager, disk: FaultyDisk) -> None:
    """Retention, truncation, fences, deletion: that is how space is made."""
    fill(manager, disk)
    log = log_of(manager)
    log.config = LogConfig(segment_bytes=500, retention_bytes=0)
    segments = len(log.segments)
    manager.logs.get(KEY).configured = True
    assert manager.retain(manager.logs.get(KEY), 10**15) == segments > 1
    assert log.log_start_offset == 16
    assert (data / "log-start-offset-checkpoint").read_text() == "0\n2\nt 0 16\nt 1 0\n"
    manager.logs.log_dirs[0].record_fences({KEY: Fence(2, Role.FOLLOWER, "", "ls")})
    manager.truncate(manager.logs.get(KEY), 10, 9)
    assert log.log_end_offset == 10
    log.flush()
    manager.logs.write_checkpoints(manager.logs.log_dirs[0])
    assert manager.delete(OTHER, -1) is not None
    assert manager.logs.log_dirs[0].disk.full  # appends still wait
    with refused(ErrorCode.STORAGE_FULL):
        manager.create("u", PartitionKey(b"u" * 16, 0), {})


def test_not_even_a_little_space(data: Path, manager: LogManager, disk: FaultyDisk) -> None:
    """The reserve is used up: refused, and everything is as it was; nothing goes offline."""
    fill(manager, disk)
    disk.room = 0
    hosted, log = manager.logs.get(KEY), log_of(manager)
    files = {path.name: path.read_bytes() for path in data.iterdir() if path.is_file() and path.name != ".lock"}
    state = log.state
    log.config = LogConfig(segment_bytes=1000, retention_bytes=0)
    hosted.configured = True
    with refused(ErrorCode.STORAGE_FULL):
        manager.retain(hosted, 10**15)
    with refused(ErrorCode.STORAGE_FULL):
        manager.truncate(hosted, 10, 9)
    with refused(ErrorCode.STORAGE_FULL):
        manager.truncate_fully_and_start_at(hosted, 100, 9)
    with pytest.raises(OSError, match="No space"):
        manager.logs.write_checkpoints(manager.logs.log_dirs[0])
    with pytest.raises(OSError, match="No space"):
        manager.logs.log_dirs[0].record_fences({KEY: Fence(2, Role.LEADER, "rm", "ls")})
    assert files == {path.name: path.read_bytes() for path in data.iterdir() if path.is_file() and path.name != ".lock"}
    assert manager.delete(OTHER, -1) is not None  # makes space
    assert not log.failure
    assert log.state.log_end_offset == state.log_end_offset
    find_space(manager, disk)
    assert manager.create("t", OTHER, {})
    manager.truncate(hosted, 10, 9)
    assert log.log_end_offset == 10
    log.flush()
    manager.close()
    again = opened(data)
    assert log_of(again).log_end_offset == 10
    again.unlock()


def test_a_fence_that_could_not_be_written_is_written_with_the_next(tmp_path: Path, monkeypatch: Any) -> None:
    """RULES 3.1: no answer before it is on disk."""
    journal = FenceJournal(tmp_path / "fence-journal")
    journal.record({KEY: Fence(1, Role.LEADER, "rm", "ls")})
    disk = FaultyDisk(tmp_path, monkeypatch)
    for room in (0, 10):
        disk.room = room
        with pytest.raises(OSError, match="No space"):
            journal.record({KEY: Fence(2, Role.LEADER, "rm", "ls")})
        assert not journal.written(KEY)
        assert not journal.failed
    assert journal.get(KEY) == Fence(2, Role.LEADER, "rm", "ls")  # it shuts out what came before all the same
    disk.heal()
    journal.record({OTHER: Fence(5, Role.LEADER, "rm", "ls")})
    assert journal.written(KEY)
    journal.close()
    assert FenceJournal(tmp_path / "fence-journal").fences == journal.fences


def test_a_journal_that_cannot_be_rewritten_grows_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("highwater.log_storage.files.fence_journal.REWRITE_BYTES", 300)
    journal = FenceJournal(tmp_path / "fence-journal")
    disk = FaultyDisk(tmp_path, monkeypatch)
    disk.fail(("open",), errno.ENOSPC)
    for epoch in range(20):
        journal.record({KEY: Fence(epoch, Role.LEADER, "rm", "ls")})
    grown = (tmp_path / "fence-journal").stat().st_size
    disk.heal()
    for epoch in range(20, 30):
        journal.record({KEY: Fence(epoch, Role.LEADER, "rm", "ls")})
    assert (tmp_path / "fence-journal").stat().st_size < grown
    journal.close()
    assert FenceJournal(tmp_path / "fence-journal").fences == {KEY: Fence(29, Role.LEADER, "rm", "ls")}


@pytest.mark.parametrize("step", ["index", "epochs"])
def test_a_flush_without_room_for_what_can_be_made_again(
    data: Path, manager: LogManager, disk: FaultyDisk, step: str
) -> None:
    log = log_of(manager)
    lead(log, produced(2, sequence=16))
    disk.fail(("pwrite",) if step == "index" else ("write",), errno.ENOSPC)
    with refused(ErrorCode.STORAGE_FULL):
        log.flush()
    assert log.recovery_point == 16
    assert not log.failure
    find_space(manager, disk)
    log.flush()
    assert log.recovery_point == 18
    manager.close()
    again = opened(data)
    assert again.logs.log_dirs[0].clean
    assert [header.base_offset for header in read_all(log_of(again))] == list(range(0, 18, 2))
    again.unlock()


def test_batches_that_the_disk_did_not_take(manager: LogManager, disk: FaultyDisk) -> None:
    """An fdatasync that fails may have dropped what it was to write: the log is offline, whatever the reason."""
    log = log_of(manager)
    lead(log, produced(2, sequence=16))
    disk.fail(("fdatasync",), errno.ENOSPC)
    with refused(ErrorCode.LOG_STORAGE_ERROR):
        log.flush()
    assert log.failure


def test_a_clean_stop_on_a_full_disk_is_none(data: Path, manager: LogManager, disk: FaultyDisk) -> None:
    log = log_of(manager)
    lead(log, produced(2, sequence=16))
    disk.room = 0
    manager.close()
    disk.heal()
    assert not (data / ".kafka_cleanshutdown").exists()
    again = opened(data)
    assert log_of(again).log_end_offset == 18
    again.unlock()


# A real one, where the machine allows it; `test_wherever_the_room_ends` is its injected twin.
@pytest.mark.parametrize("size_mb", [5, 6] if may_mount() else [])
def test_a_small_volume(tmp_path: Path, size_mb: int) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    with mounted(volume, size_mb << 20):
        manager = LogManager([volume], LogConfig(segment_bytes=100_000), broker_id=1)
        manager.load()
        manager.create("t", KEY, {})
        log, taken = log_of(manager), 0
        with refused(ErrorCode.STORAGE_FULL):
            while True:
                lead(log, batch(10, value=os.urandom(3_000)))
                taken += 1
        assert taken > 30
        assert [header.base_offset for header in read_all(log)] == list(range(0, 10 * taken, 10))
        manager.unlock()
        manager = LogManager([volume], LogConfig(segment_bytes=100_000), broker_id=1)
        manager.load()
        log = log_of(manager)
        assert log.log_end_offset == 10 * taken
        assert manager.logs.log_dirs[0].disk.full
        log.offsets.raise_high_watermark(10 * taken)
        log.config = LogConfig(segment_bytes=100_000, retention_bytes=200_000)
        manager.logs.get(KEY).configured = True
        assert manager.retain(manager.logs.get(KEY), 0) > 3
        log.remove_deleted()
        gc.collect()  # the log of before, with its open files, went in a circle with the error
        manager.logs.log_dirs[0].disk.keep_reserve()
        assert lead(log, batch(10, value=os.urandom(3_000))).base_offset == 10 * taken
        manager.close()


# -- as the service answers it ---------------------------------------------------------------------------------------


async def test_the_service_takes_appends_again_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("highwater.log_storage.service.HOUSEKEEPING_MS", 20)
    disk = FaultyDisk(tmp_path / "data", monkeypatch)
    async with running(tmp_path) as storage:
        await storage.create(of_partition())
        await storage.fence(LEADER, 1, [of_partition()])
        fields = {"partition": of_partition(), "leader_epoch": 1}
        assert not (await storage.append(LEADER, **fields, expected_offset=0, records=batch())).error.code
        disk.room = 0
        for _ in range(3):
            result = await storage.append(LEADER, **fields, expected_offset=1, records=batch())
            assert (result.error.code, result.error.retriable) == (Code.STORAGE_FULL, True)
            assert (result.log.log_end_offset, result.log.offline) == (1, False)
        [described] = (await storage.stub.DescribeLogs(log_storage_pb2.DescribeLogsRequest())).log_dirs
        assert described.full
        assert not described.error.code
        assert storage.service.metrics.registry.get_sample_value("highwater_log_storage_full_log_dirs") == 1
        assert not (await storage.fence(LEADER, 1, [of_partition()]))[0].error.code  # as it is known already
        assert len((await storage.read(of_partition(), 0)).records) == len(batch())
        [fence] = await storage.fence(LEADER, 2, [of_partition()])
        assert fence.error.code == Code.STORAGE_FULL
        disk.heal()
        async with asyncio.timeout(20):
            while (await storage.append(LEADER, **fields, expected_offset=1, records=batch())).error.code:
                await storage.fence(LEADER, 2, [of_partition()])
                fields["leader_epoch"] = 2
                await asyncio.sleep(0.02)
        assert len((await storage.read(of_partition(), 0)).records) == 2 * len(batch())
