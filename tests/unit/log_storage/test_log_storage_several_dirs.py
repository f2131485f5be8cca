"""Several log directories: which logs go where, that they are one set, and that one that fails leaves the others
alone."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faulty_disk import CHANGES, READS, SYNCS, WRITES, FaultyDisk
from log_storage_batches import batch, lead, read_all
from log_storage_client import LEADER, Code, running

from highwater.errors import ErrorCode, UserError
from highwater.log_storage.config import LogConfig
from highwater.log_storage.errors import LogError
from highwater.log_storage.fence import Fence
from highwater.log_storage.files import meta_properties
from highwater.log_storage.files.meta_properties import MetaProperties
from highwater.log_storage.log.log import Log
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.log_storage.segment.segment import Segment
from highwater.model.fence_role import Role
from highwater.model.partition import PartitionKey
from highwater.v1 import common_pb2, log_storage_pb2

pytestmark = pytest.mark.usefixtures("each_transport")


def key(partition: int) -> PartitionKey:
    return PartitionKey(b"t" * 16, partition)


def opened(*paths: Path, config: LogConfig | None = None) -> LogManager:
    manager = LogManager(paths, config or LogConfig(), broker_id=1)
    manager.load()
    return manager


def log_of(manager: LogManager, partition: int) -> Log:
    return manager.logs.get(key(partition)).online()


def refused(code: ErrorCode, words: str = ".") -> Any:
    return pytest.raises(LogError, match=words, check=lambda error: error.code is code)


@pytest.fixture
def dirs(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "a", tmp_path / "b"


@pytest.fixture
def manager(dirs: tuple[Path, Path]) -> Iterator[LogManager]:
    """Four logs of three records; partitions 0 and 2 in `a`, 1 and 3 in `b`."""
    manager = opened(*dirs)
    for log_dir in manager.logs.log_dirs:
        log_dir.record_boot()
        log_dir.record_cluster("cluster")
    for partition in range(4):
        manager.create("t", key(partition), {})
        lead(log_of(manager, partition), batch(3))
    yield manager
    manager.unlock()


def test_the_directories_are_one_set(dirs: tuple[Path, Path], manager: LogManager) -> None:
    ids = {log_dir.properties.directory_id for log_dir in manager.logs.log_dirs}
    assert len(ids) == 2
    for path in dirs:
        assert (path / ".lock").exists()
        lines = (path / "meta.properties").read_text().splitlines()
        assert lines[:3] == ["version=0", "broker.id=1", "cluster.id=cluster"]
        assert len(lines[3]) == len("directory.id=") + 22
    manager.close()
    again = opened(*reversed(dirs))  # in any order
    assert {log_dir.properties.directory_id for log_dir in again.logs.log_dirs} == ids
    assert not any(log_dir.tail_lost for log_dir in again.logs.log_dirs)
    assert [log_of(again, partition).log_end_offset for partition in range(4)] == [3] * 4
    again.unlock()


def test_directories_of_two_clusters(dirs: tuple[Path, Path], manager: LogManager) -> None:
    manager.close()
    meta_properties.write(dirs[1], MetaProperties("another", "b" * 22, "1"))
    with pytest.raises(UserError, match="several clusters"):
        opened(*dirs)


def test_a_copy_of_a_directory_is_not_another_one(dirs: tuple[Path, Path], manager: LogManager, tmp_path: Path) -> None:
    manager.close()
    shutil.copytree(dirs[0], tmp_path / "c")
    with pytest.raises(UserError, match="is a copy of another"):
        opened(*dirs, tmp_path / "c")


def test_the_same_partition_in_two_directories(dirs: tuple[Path, Path], manager: LogManager) -> None:
    manager.close()
    shutil.copytree(dirs[0] / "t-0", dirs[1] / "t-0")
    with pytest.raises(UserError, match="t-0 and .*t-0 are the same partition"):
        opened(*dirs)


def test_a_directory_that_was_added_is_no_loss(dirs: tuple[Path, Path], manager: LogManager, tmp_path: Path) -> None:
    """RULES 7.2: an empty volume in the place of another is one."""
    manager.close()
    added = opened(*dirs, tmp_path / "c")
    assert not any(log_dir.tail_lost for log_dir in added.logs.log_dirs)
    added.create("t", key(4), {})
    assert added.logs.get(key(4)).log_dir.path == tmp_path / "c"
    added.close()
    shutil.rmtree(tmp_path / "c")
    replaced = opened(*dirs, tmp_path / "c")
    assert all(log_dir.tail_lost for log_dir in replaced.logs.log_dirs)
    replaced.unlock()


def test_a_directory_that_was_taken_away_is_a_loss(dirs: tuple[Path, Path], manager: LogManager) -> None:
    manager.close()
    alone = opened(dirs[0])
    assert alone.logs.log_dirs[0].tail_lost
    alone.logs.log_dirs[0].record_boot()
    alone.unlock()
    again = opened(dirs[0])
    assert not again.logs.log_dirs[0].tail_lost
    again.unlock()


@pytest.mark.parametrize("unclean", [0, 1])
def test_each_directory_has_a_clean_shutdown_mark_of_its_own(
    dirs: tuple[Path, Path], manager: LogManager, unclean: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the logs of the one without it are recovered; both marks are gone once the logs are open."""
    manager.close()
    marks = [path / ".kafka_cleanshutdown" for path in dirs]
    assert all(mark.exists() for mark in marks)
    marks[unclean].unlink()
    (dirs[unclean] / "recovery-point-offset-checkpoint").unlink()
    scanned: list[Path] = []
    headers = Segment.headers

    def observed(segment: Segment, position: int, *, check_crcs: bool = False) -> object:
        if check_crcs:
            scanned.append(segment.path.parents[1])
        return headers(segment, position, check_crcs=check_crcs)

    monkeypatch.setattr(Segment, "headers", observed)
    again = opened(*dirs)
    assert scanned == [dirs[unclean]] * 2
    assert [log_dir.clean for log_dir in again.logs.log_dirs] == [unclean == 1, unclean == 0]
    assert not any(mark.exists() for mark in marks)
    assert [log_of(again, partition).log_end_offset for partition in range(4)] == [3] * 4
    again.close()
    assert all(mark.exists() for mark in marks)


def test_new_logs_go_past_a_full_directory(manager: LogManager) -> None:
    """Though it has the fewest; where all are full the log is refused, and can be made when there is space."""
    a, b = manager.logs.log_dirs
    manager.create("t", key(4), {})
    assert manager.logs.get(key(4)).log_dir is a
    b.disk.full = True  # it would be its turn
    manager.create("t", key(5), {})
    assert manager.logs.get(key(5)).log_dir is a
    a.disk.full = True
    with refused(ErrorCode.STORAGE_FULL):
        manager.create("t", key(6), {})
    b.disk.full = False
    manager.create("t", key(6), {})
    assert manager.logs.get(key(6)).log_dir is b


# -- one fails at start ----------------------------------------------------------------------------------------------


def spoil_with_a_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("no directory")


def spoil_fences(path: Path) -> None:
    (path / "fence-journal").write_bytes(b"damaged\ndamaged\n")


def spoil_lock(path: Path) -> None:
    (path / ".lock").unlink()
    (path / ".lock").mkdir()


def spoil_listing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for another user's directory, or a volume that fails."""
    iterate = Path.iterdir

    def forbidden(directory: Path) -> Iterator[Path]:
        if directory == path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return iterate(directory)

    monkeypatch.setattr(Path, "iterdir", forbidden)


@pytest.mark.parametrize("spoil", [spoil_with_a_file, spoil_fences, spoil_lock, spoil_listing])
def test_a_directory_that_cannot_be_opened(
    dirs: tuple[Path, Path], manager: LogManager, spoil: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its logs are not begun anew elsewhere, and no new log is made that might be one of them."""
    manager.close()
    spoil(dirs[0], monkeypatch) if spoil is spoil_listing else spoil(dirs[0])
    again = opened(*dirs)
    assert [bool(log_dir.offline) for log_dir in again.logs.log_dirs] == [True, False]
    assert [log_of(again, partition).log_end_offset for partition in (1, 3)] == [3, 3]
    lead(log_of(again, 1), batch())
    for call in (
        lambda: again.logs.get(key(0)),
        lambda: again.create("t", key(0), {}),
        lambda: again.create("t", key(9), {}),
        lambda: again.delete(key(0), -1),
    ):
        with refused(ErrorCode.LOG_STORAGE_ERROR, "offline and may hold the log"):
            call()
    assert not any(log_dir.tail_lost for log_dir in again.logs.online_dirs)
    again.close()
    assert (dirs[1] / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize("deleted", ["the older", "the newer"])
def test_a_log_of_a_newer_topic_is_made_in_a_sound_directory(
    dirs: tuple[Path, Path], manager: LogManager, deleted: str
) -> None:
    """It cannot be in the directory that this start could not open."""
    manager.close()
    away = dirs[0].rename(dirs[0].with_name("away"))
    dirs[0].write_text("no directory")
    again = opened(*dirs)
    other = PartitionKey(b"u" * 16, 0)
    assert again.create("u", other, {}, new=True)
    assert again.logs.get(other).log_dir.path == dirs[1]
    # Also under the name of a topic that was deleted meanwhile, and whose log is in the other directory.
    anew = PartitionKey(b"v" * 16, 0)
    assert again.create("t", anew, {}, new=True)
    for partition in (other, anew):
        lead(again.logs.get(partition).online(), batch(2))
    again.close()
    dirs[0].unlink()
    away.rename(dirs[0])
    mended = opened(*dirs)
    assert [log_of(mended, partition).log_end_offset for partition in range(4)] == [3] * 4
    assert [mended.logs.get(partition).online().log_end_offset for partition in (other, anew)] == [2, 2]
    for log_dir, partition in zip(mended.logs.log_dirs, (key(0), anew), strict=True):
        log_dir.record_fences({partition: Fence(1, Role.LEADER, "rm", "ls")})
    doomed = key(0) if deleted == "the older" else anew
    assert mended.delete(doomed, -1) is not None
    with refused(ErrorCode.INCONSISTENT_TOPIC_ID):
        mended.create("t", PartitionKey(b"w" * 16, 0), {})
    mended.unlock()


def test_no_directory_can_be_opened(dirs: tuple[Path, Path], manager: LogManager) -> None:
    manager.close()
    for path in dirs:
        spoil_with_a_file(path)
    with pytest.raises(UserError, match="cannot be used"):
        opened(*dirs)


def test_a_directory_that_cannot_be_read(
    dirs: tuple[Path, Path], manager: LogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager.close()
    disk = FaultyDisk(dirs[0], monkeypatch)
    disk.fail(READS)
    again = opened(*dirs)
    assert again.logs.log_dirs[0].offline
    for partition in (0, 2):  # they are known: nobody begins them anew
        with refused(ErrorCode.LOG_STORAGE_ERROR):
            again.logs.get(key(partition)).online()
    assert log_of(again, 1).log_end_offset == 3
    again.create("t", key(9), {})
    assert again.logs.get(key(9)).log_dir.path == dirs[1]
    disk.heal()
    again.close()
    assert (dirs[0] / ".kafka_cleanshutdown").exists()  # as it was: nothing has been written there
    mended = opened(*dirs)
    assert [log_of(mended, partition).log_end_offset for partition in range(4)] == [3] * 4
    mended.unlock()


# -- one fails while it is used --------------------------------------------------------------------------------------


def expect_offline(manager: LogManager, dirs: tuple[Path, Path]) -> None:
    """`a` is offline with its logs, `b` serves."""
    assert [bool(log_dir.offline) for log_dir in manager.logs.log_dirs] == [True, False]
    for partition in (0, 2):
        assert manager.logs.get(key(partition)).offline_reason
        with refused(ErrorCode.LOG_STORAGE_ERROR, "offline"):
            manager.logs.get(key(partition)).online()
    for partition in (1, 3):
        log = log_of(manager, partition)
        lead(log, batch(2))
        assert sum(header.record_count for header in read_all(log)) == log.log_end_offset
    manager.create("u", PartitionKey(b"u" * 16, 0), {})
    assert manager.logs.get(PartitionKey(b"u" * 16, 0)).log_dir.path == dirs[1]


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS, errno.ENODEV])
def test_an_append_fails(
    dirs: tuple[Path, Path], manager: LogManager, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    disk = FaultyDisk(dirs[0], monkeypatch)
    disk.fail((*WRITES, *SYNCS, *CHANGES), number)
    with refused(ErrorCode.LOG_STORAGE_ERROR):
        lead(log_of(manager, 0), batch())
    expect_offline(manager, dirs)
    disk.heal()
    expect_offline(manager, dirs)  # until the next start
    manager.unlock()
    again = opened(*dirs)
    assert [log_of(again, partition).log_end_offset for partition in (0, 2)] == [3, 3]
    again.unlock()


def test_a_read_fails(dirs: tuple[Path, Path], manager: LogManager, monkeypatch: pytest.MonkeyPatch) -> None:
    FaultyDisk(dirs[0], monkeypatch).fail(READS)
    with refused(ErrorCode.LOG_STORAGE_ERROR):
        log_of(manager, 0).read(0, -1, 1000)
    expect_offline(manager, dirs)


def test_a_flush_fails(dirs: tuple[Path, Path], manager: LogManager, monkeypatch: pytest.MonkeyPatch) -> None:
    FaultyDisk(dirs[0], monkeypatch).fail(SYNCS)
    with refused(ErrorCode.LOG_STORAGE_ERROR):
        log_of(manager, 0).flush()
    expect_offline(manager, dirs)


def test_a_checkpoint_fails(dirs: tuple[Path, Path], manager: LogManager, monkeypatch: pytest.MonkeyPatch) -> None:
    FaultyDisk(dirs[0], monkeypatch).fail(SYNCS)
    with pytest.raises(OSError, match="Input/output"):
        manager.logs.write_checkpoints(manager.logs.log_dirs[0])
    expect_offline(manager, dirs)


def test_a_fence_fails(dirs: tuple[Path, Path], manager: LogManager, monkeypatch: pytest.MonkeyPatch) -> None:
    FaultyDisk(dirs[0], monkeypatch).fail(SYNCS)
    fence = Fence(1, Role.LEADER, "rm", "ls")
    with pytest.raises(OSError, match="Input/output"):
        manager.logs.log_dirs[0].record_fences({key(0): fence})
    assert not manager.logs.log_dirs[0].fences.written(key(0))
    expect_offline(manager, dirs)


@pytest.mark.parametrize("again", ["nothing", "a file", "another directory"])
def test_a_directory_vanishes(dirs: tuple[Path, Path], manager: LogManager, again: str) -> None:
    """Appends to open files would go on, into files that nobody finds again."""
    dirs[0].rename(dirs[0].with_name("elsewhere"))
    if again == "a file":
        dirs[0].write_text("")
    elif again == "another directory":
        dirs[0].mkdir()
        (dirs[0] / ".lock").touch()
    assert not manager.logs.log_dirs[0].disk.present()
    expect_offline(manager, dirs)
    assert manager.logs.log_dirs[1].disk.present()


def test_one_log_whose_files_are_gone(dirs: tuple[Path, Path], manager: LogManager) -> None:
    """A file that is missing says nothing of the directory."""
    shutil.rmtree(dirs[0] / "t-0")
    with refused(ErrorCode.LOG_STORAGE_ERROR):
        log_of(manager, 0).flush()
    assert manager.logs.get(key(0)).offline_reason
    assert not manager.logs.log_dirs[0].offline
    assert log_of(manager, 2).log_end_offset == 3


def test_too_many_open_files_are_no_fault_of_the_disk(
    dirs: tuple[Path, Path], manager: LogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FaultyDisk(dirs[0], monkeypatch)
    disk.fail(("open",), errno.EMFILE)
    log = log_of(manager, 0)
    log.config = LogConfig(segment_bytes=1)
    with refused(ErrorCode.LOG_STORAGE_ERROR, os.strerror(errno.EMFILE)):
        lead(log, batch())
    disk.heal()
    assert lead(log, batch()).base_offset == 3


# -- as the service answers it ---------------------------------------------------------------------------------------


async def test_what_the_service_makes_while_a_directory_cannot_be_opened(tmp_path: Path) -> None:
    """Only logs of topics that are said to be newer than this start of log-storage."""
    (tmp_path / "a").write_text("no directory")
    async with running(tmp_path, log_dirs=f"{tmp_path}/a,{tmp_path}/b") as storage:
        partition = common_pb2.PartitionKey(topic_id=b"t" * 16)
        for incarnation in ("", "that of another start"):
            request = log_storage_pb2.CreateLogRequest(
                topic="t", partition=partition, newer_than_incarnation=incarnation
            )
            answer = await storage.stub.CreateLog(request)
            assert answer.error.code == Code.LOG_STORAGE_ERROR
            assert "may hold the log" in answer.error.message
        request.newer_than_incarnation = storage.service.incarnation
        assert (await storage.stub.CreateLog(request)).created
        [fence] = await storage.fence(LEADER, 1, [partition])
        assert fence.log.log_end_offset == 0


async def test_what_the_service_says_of_a_directory_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("highwater.log_storage.service.HOUSEKEEPING_MS", 20)
    disk = FaultyDisk(tmp_path / "a", monkeypatch)
    partitions = [common_pb2.PartitionKey(topic_id=b"t" * 16, partition=partition) for partition in range(2)]
    async with running(tmp_path, log_dirs=f"{tmp_path}/a,{tmp_path}/b") as storage:
        for partition in partitions:
            await storage.create(partition)
        await storage.fence(LEADER, 1, partitions)
        disk.fail(WRITES)
        answers = [
            await storage.append(LEADER, partition=partition, leader_epoch=1, expected_offset=0, records=batch())
            for partition in partitions
        ]
        assert [answer.error.code for answer in answers] == [Code.LOG_STORAGE_ERROR, Code.NONE]
        assert [answer.log.offline for answer in answers] == [True, False]
        fences = await storage.fence(LEADER, 2, partitions)
        assert [fence.error.code for fence in fences] == [Code.LOG_STORAGE_ERROR, Code.NONE]
        assert [fence.log.offline for fence in fences] == [True, False]
        assert (await storage.read(partitions[0], 0)).log.offline
        described = await storage.stub.DescribeLogs(log_storage_pb2.DescribeLogsRequest())
        assert ["Input/output" in log_dir.error.message for log_dir in described.log_dirs] == [True, False]
        assert [log.log.offline for log in described.logs] == [True, False]
        sample = storage.service.metrics.registry.get_sample_value
        assert sample("highwater_log_storage_offline_log_dirs") == sample("highwater_log_storage_offline_logs") == 1
        call = storage.append_call()
        while True:  # whoever only follows appends nothing: the number is in every answer
            await call.write(log_storage_pb2.AppendRequest())
            if (await call.read()).offline_logs == 1:
                break
        await call.done_writing()
        flushed = await storage.stub.Flush(log_storage_pb2.FlushRequest(record_boot=True, cluster_id="cluster"))
        assert [error.partition for error in flushed.errors] == [partitions[0]]
