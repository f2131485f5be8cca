"""A log moves to another directory: the copy, the swap, and a crash at each step of it."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from faulty_disk import SYNCS, WRITES, FaultyDisk
from log_storage_batches import batch, follow, header_of, lead, produced, read_all
from log_storage_client import LEADER, key, running

from highwater.errors import ErrorCode
from highwater.log_storage.config import LogConfig
from highwater.log_storage.errors import LogError
from highwater.log_storage.fence import Fence
from highwater.log_storage.files import future_files
from highwater.log_storage.log import log_copy
from highwater.log_storage.log.log import Log
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.log_storage.server import log_moves
from highwater.model.fence_role import Role
from highwater.model.partition import PartitionKey
from highwater.records import decode
from highwater.v1 import log_storage_pb2

KEY = PartitionKey(b"t" * 16, 0)
FENCE = Fence(3, Role.LEADER, "rm", "ls")
SMALL = LogConfig(segment_bytes=600, index_interval_bytes=100)


def opened(path: Path) -> LogManager:
    manager = LogManager([path / "a", path / "b"], SMALL, broker_id=1)
    manager.load()
    return manager


def log_of(manager: LogManager) -> Log:
    return manager.logs.get(KEY).online()


def copy_of(manager: LogManager) -> Log:
    future = manager.logs.get(KEY).future
    assert future is not None
    return future.log


def fill(log: Log, batches: int, epoch: int = 1) -> None:
    for _ in range(batches):
        known = log.producers.get(7)
        lead(log, produced(2, sequence=known.batches[-1].last_sequence + 1 if known else 0), epoch)


def catch_up(manager: LogManager, batches: int = 1_000_000) -> None:
    """A batch at a time, as far as there are any."""
    copy = copy_of(manager)
    for _ in range(batches):
        plan = log_of(manager).reader.plan_copy(copy.log_end_offset, 1)
        if plan is None:
            return
        log_copy.append_copy(copy, plan.run(), 0)


def contents(log: Log) -> list[bytes]:
    return [log.read(header.last_offset, -1, 1) for header in read_all(log)]


def place_of(manager: LogManager) -> str:
    hosted = manager.logs.get(KEY)
    assert hosted.directory == hosted.log_dir.path / "t-0"
    assert hosted.directory.is_dir()
    return hosted.log_dir.path.name


def refused(code: ErrorCode, words: str = ".") -> Any:
    return pytest.raises(LogError, match=words, check=lambda error: error.code is code)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[LogManager]:
    """One log of 20 batches in several segments, in `a`, with a fence; it is about to move to `b`."""
    manager = opened(tmp_path)
    for log_dir in manager.logs.log_dirs:
        log_dir.record_boot()
    manager.create("t", KEY, {})
    manager.logs.log_dirs[0].record_fences({KEY: FENCE})
    fill(log_of(manager), 20)
    log_of(manager).offsets.raise_high_watermark(30)
    assert len(log_of(manager).segments) > 2
    assert manager.mover.start_move(KEY, str(tmp_path / "b"))
    yield manager
    manager.unlock()


def test_a_move(tmp_path: Path, manager: LogManager) -> None:
    before, state = contents(log_of(manager)), log_of(manager).state
    producers = dict(log_of(manager).producers.items())
    [future] = [path.name for path in (tmp_path / "b").iterdir() if path.name.endswith("-future")]
    assert future_files.partition_of(future) == 0
    catch_up(manager)
    manager.mover.swap(manager.logs.get(KEY))
    assert place_of(manager) == "b"
    assert (log_of(manager).state, contents(log_of(manager))) == (state, before)
    assert dict(log_of(manager).producers.items()) == producers
    assert manager.logs.get(KEY).fence == FENCE
    assert manager.logs.log_dirs[0].fences.get(KEY) is None
    [removable] = manager.logs.removable
    assert removable.parent == tmp_path / "a"
    # The log goes on in its new place, under its old name.
    fill(log_of(manager), 5)
    log_of(manager).flush()
    assert all(segment.path.parent == tmp_path / "b" / "t-0" for segment in log_of(manager).segments)
    manager.close()
    assert (tmp_path / "b" / "replication-offset-checkpoint").read_text() == "0\n1\nt 0 30\n"
    assert (tmp_path / "a" / "replication-offset-checkpoint").read_text() == "0\n0\n"
    again = opened(tmp_path)
    assert place_of(again) == "b"
    assert contents(log_of(again))[:20] == before
    assert log_of(again).log_end_offset == 50
    assert [path.name for path in (tmp_path / "a").iterdir() if path.is_dir()] == []
    again.unlock()


def test_and_back(tmp_path: Path, manager: LogManager) -> None:
    before = contents(log_of(manager))
    for place in ("b", "a", "b"):
        manager.mover.start_move(KEY, str(tmp_path / place))
        catch_up(manager)
        manager.mover.swap(manager.logs.get(KEY))
        assert place_of(manager) == place
        assert contents(log_of(manager)) == before


def test_what_cannot_be_moved(tmp_path: Path, manager: LogManager) -> None:
    with refused(ErrorCode.UNKNOWN_TOPIC_ID):
        manager.mover.start_move(PartitionKey(b"x" * 16, 0), str(tmp_path / "b"))
    with refused(ErrorCode.INVALID_REQUEST, "none of this broker's log.dirs: choose among"):
        manager.mover.start_move(KEY, str(tmp_path / "c"))
    manager.logs.log_dirs[1].disk.fail("gone")
    with refused(ErrorCode.LOG_STORAGE_ERROR, "offline"):
        manager.mover.start_move(KEY, str(tmp_path / "b"))


def test_a_directory_is_named_by_its_id_too(manager: LogManager) -> None:
    target = manager.logs.log_dirs[1].properties.directory_id
    copy = copy_of(manager)
    assert manager.mover.start_move(KEY, target)
    assert copy_of(manager) is copy  # it was on its way there already


def test_a_move_to_where_the_log_is_ends_the_one_under_way(tmp_path: Path, manager: LogManager) -> None:
    catch_up(manager, 3)
    assert not manager.mover.start_move(KEY, str(tmp_path / "a"))
    assert manager.logs.get(KEY).future is None
    assert [path.suffix for path in (tmp_path / "b").iterdir() if path.is_dir()] == [".deleted"]
    manager.close()
    again = opened(tmp_path)
    assert again.logs.get(KEY).future is None
    assert place_of(again) == "a"
    again.unlock()


# -- what happens to the log meanwhile -------------------------------------------------------------------------------


def test_appends_go_on(manager: LogManager) -> None:
    for _ in range(10):
        catch_up(manager, 3)
        fill(log_of(manager), 1, epoch=2)
    catch_up(manager)
    before, state = contents(log_of(manager)), log_of(manager).state
    manager.mover.swap(manager.logs.get(KEY))
    assert (contents(log_of(manager)), log_of(manager).state) == (before, state)


@pytest.mark.parametrize("cut", [36, 20, 7, 0])
@pytest.mark.parametrize("copied", [0, 10, 20])
def test_a_truncation(manager: LogManager, cut: int, copied: int) -> None:
    catch_up(manager, copied)
    manager.truncate(manager.logs.get(KEY), cut, 5)
    assert copy_of(manager).log_end_offset <= cut
    fill(log_of(manager), 8, epoch=6)
    catch_up(manager)
    before, state = contents(log_of(manager)), log_of(manager).state
    manager.mover.swap(manager.logs.get(KEY))
    assert (contents(log_of(manager)), log_of(manager).state) == (before, state)


@pytest.mark.parametrize("start", [100, 10])
def test_a_log_that_starts_anew(manager: LogManager, start: int) -> None:
    catch_up(manager, 10)
    manager.truncate_fully_and_start_at(manager.logs.get(KEY), start, 5)
    if start == 10:
        fill(log_of(manager), 3, epoch=6)
    catch_up(manager)
    before, state = contents(log_of(manager)), log_of(manager).state
    manager.mover.swap(manager.logs.get(KEY))
    assert (contents(log_of(manager)), log_of(manager).state) == (before, state)


@pytest.mark.parametrize("copied", [0, 3, 20])
def test_retention_and_deleted_records(manager: LogManager, copied: int) -> None:
    catch_up(manager, copied)
    log_of(manager).offsets.raise_high_watermark(40)
    log_of(manager).log_start.raise_to(33)  # inside a batch
    catch_up(manager)
    before, state = contents(log_of(manager)), log_of(manager).state
    manager.mover.swap(manager.logs.get(KEY))
    assert (contents(log_of(manager)), log_of(manager).state) == (before, state)


def test_a_deletion(tmp_path: Path, manager: LogManager) -> None:
    catch_up(manager, 10)
    assert manager.delete(KEY, -1) is not None
    manager.unlock()
    again = opened(tmp_path)
    assert len(again.logs) == 0
    assert not [path for name in "ab" for path in (tmp_path / name).iterdir() if path.is_dir()]
    again.unlock()


def test_new_logs_count_those_that_arrive(tmp_path: Path, manager: LogManager) -> None:
    for partition in range(1, 4):
        manager.create("t", PartitionKey(b"t" * 16, partition), {})
    places = [manager.logs.get(PartitionKey(b"t" * 16, partition)).log_dir.path.name for partition in range(1, 4)]
    assert places == ["a", "b", "a"]


# -- crashes ---------------------------------------------------------------------------------------------------------


class CrashError(Exception):
    """The process ends here."""


def crash_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the `step`-th rename or removal of a name."""
    left = [step]

    def stopping(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if left[0] == 0:
                raise CrashError
            left[0] -= 1
            return real(*arguments, **options)

        return call

    for name in ("rename", "replace", "unlink"):
        monkeypatch.setattr(os, name, stopping(getattr(os, name)))


def test_a_crash_at_each_step_of_the_swap(tmp_path: Path, manager: LogManager, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is there, once, with everything that it had; before the old directory goes it may be in either place."""
    catch_up(manager)
    before, state = contents(log_of(manager)), log_of(manager).state
    log_of(manager).flush()
    manager.logs.write_checkpoints(manager.logs.log_dirs[0])
    manager.unlock()
    places = []
    for step in range(100):
        shutil.copytree(tmp_path, tmp_path.with_name(f"step-{step}"))
        there = tmp_path.with_name(f"step-{step}")
        running = opened(there)
        if running.logs.get(KEY).future is None:
            pytest.fail("the move was not resumed")
        catch_up(running)
        swapped = False
        with monkeypatch.context() as patch:
            crash_at(step, patch)
            try:
                running.mover.swap(running.logs.get(KEY))
                swapped = True
            except CrashError:
                pass
        running.unlock()
        again = opened(there)
        assert (contents(log_of(again)), log_of(again).state) == (before, state)
        assert again.logs.get(KEY).fence == FENCE
        places.append(place_of(again))
        fill(log_of(again), 1, epoch=3)
        if again.logs.get(KEY).future is not None:  # and the move goes on
            catch_up(again)
            again.mover.swap(again.logs.get(KEY))
            assert place_of(again) == "b"
        assert log_of(again).log_end_offset == state.log_end_offset + 2
        again.close()
        if swapped:
            break
    assert places == sorted(places)
    assert set(places) == {"a", "b"}


def test_a_copy_that_was_cut_off_in_the_middle_goes_on(tmp_path: Path, manager: LogManager) -> None:
    catch_up(manager, 10)
    path = copy_of(manager).segments[-1].path
    manager.unlock()
    path.write_bytes(path.read_bytes()[:-7])
    again = opened(tmp_path)
    assert copy_of(again).log_end_offset == 18
    catch_up(again)
    before = contents(log_of(again))
    again.mover.swap(again.logs.get(KEY))
    assert contents(log_of(again)) == before
    again.unlock()


def test_a_copy_of_what_the_log_has_lost(tmp_path: Path, manager: LogManager) -> None:
    """A machine that goes down may take the log's tail and leave the copy's."""
    catch_up(manager)
    path = log_of(manager).segments[-1].path
    manager.unlock()
    path.unlink()
    again = opened(tmp_path)
    log = log_of(again)
    assert log.log_end_offset < 40
    assert copy_of(again).log_end_offset <= log.log_end_offset
    fill(log, 10, epoch=4)
    catch_up(again)
    before = contents(log)
    again.mover.swap(again.logs.get(KEY))
    assert contents(log_of(again)) == before
    again.unlock()


def test_a_copy_of_another_epoch_is_cut_by_epochs(tmp_path: Path, manager: LogManager) -> None:
    catch_up(manager)
    future = manager.logs.get(KEY).future
    assert future is not None
    manager.logs.get(KEY).future = None  # as if a crash had come between the log's truncation and the copy's
    manager.truncate(manager.logs.get(KEY), 20, 5)
    fill(log_of(manager), 30, epoch=6)
    manager.unlock()
    again = opened(tmp_path)
    assert copy_of(again).log_end_offset == 20
    catch_up(again)
    before = contents(log_of(again))
    again.mover.swap(again.logs.get(KEY))
    assert contents(log_of(again)) == before
    again.unlock()


def test_an_incomplete_copy_whose_log_is_gone(tmp_path: Path, manager: LogManager) -> None:
    catch_up(manager, 5)
    manager.unlock()
    shutil.rmtree(tmp_path / "a" / "t-0")
    again = opened(tmp_path)
    assert len(again.logs) == 0
    assert not [path for path in (tmp_path / "b").iterdir() if path.is_dir()]
    again.unlock()


def test_a_copy_is_left_alone_while_its_log_cannot_be_looked_for(tmp_path: Path, manager: LogManager) -> None:
    catch_up(manager, 5)
    manager.unlock()
    (tmp_path / "a").rename(tmp_path / "away")
    (tmp_path / "a").write_text("")
    again = opened(tmp_path)
    assert len(again.logs) == 0
    with refused(ErrorCode.LOG_STORAGE_ERROR, "may hold the log"):
        again.create("t", KEY, {})
    again.unlock()
    (tmp_path / "a").unlink()
    (tmp_path / "away").rename(tmp_path / "a")
    mended = opened(tmp_path)
    assert copy_of(mended).log_end_offset == 10
    mended.unlock()


# -- disks -----------------------------------------------------------------------------------------------------------


def test_the_target_fails_before_the_swap(tmp_path: Path, manager: LogManager, monkeypatch: pytest.MonkeyPatch) -> None:
    catch_up(manager)
    FaultyDisk(tmp_path / "b", monkeypatch).fail((*WRITES, *SYNCS))
    with refused(ErrorCode.LOG_STORAGE_ERROR):
        manager.mover.swap(manager.logs.get(KEY))
    assert manager.logs.log_dirs[1].offline
    assert place_of(manager) == "a"
    fill(log_of(manager), 1)
    assert log_of(manager).log_end_offset == 42


def test_the_target_is_full(tmp_path: Path, manager: LogManager, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log serves on; the copy goes on when there is space."""
    catch_up(manager, 5)
    disk = FaultyDisk(tmp_path / "b", monkeypatch)
    disk.room = 100
    with refused(ErrorCode.STORAGE_FULL):
        catch_up(manager)
    fill(log_of(manager), 1)
    disk.heal()
    manager.logs.log_dirs[1].disk.keep_reserve()
    catch_up(manager)
    before = contents(log_of(manager))
    manager.mover.swap(manager.logs.get(KEY))
    assert contents(log_of(manager)) == before


def test_a_damaged_batch_is_not_copied(manager: LogManager) -> None:
    segment = log_of(manager).segments[0]
    content = bytearray(segment.path.read_bytes())
    content[100] ^= 1
    segment.path.write_bytes(content)
    with refused(ErrorCode.CORRUPT_MESSAGE):
        catch_up(manager)


def test_gaps_of_compaction_are_copied(tmp_path: Path, manager: LogManager) -> None:
    """Between batches, and at the end of the segments before an empty one."""
    copy = copy_of(manager)
    log_copy.append_copy(copy, batch(2, base_offset=10, epoch=1), 0)
    log_copy.append_copy(copy, batch(2, base_offset=100, epoch=1), 0)
    assert [header.base_offset for header in copy.segment_list.headers()] == [10, 100]
    with refused(ErrorCode.CORRUPT_MESSAGE, "does not continue"):
        log_copy.append_copy(copy, batch(2, base_offset=50, epoch=1), 0)
    with refused(ErrorCode.CORRUPT_MESSAGE, "does not continue"):
        log_copy.append_copy(copy, batch(2, base_offset=200, epoch=0), 0)


def test_compaction_knows_how_far_it_has_been(tmp_path: Path) -> None:
    """What it did while the log was copied, the copy may have missed."""
    manager = opened(tmp_path)
    manager.create("t", KEY, {})
    fill(log_of(manager), 20)
    log_of(manager).offsets.cleaned_to = 10
    manager.mover.start_move(KEY, str(tmp_path / "b"))
    catch_up(manager)
    log_of(manager).offsets.cleaned_to = 30
    manager.mover.swap(manager.logs.get(KEY))
    assert log_of(manager).cleaned_to == 10
    assert (tmp_path / "b" / "cleaner-offset-checkpoint").read_text() == "0\n1\nt 0 10\n"
    manager.unlock()


def test_an_empty_log(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    manager.create("t", KEY, {})
    log_of(manager).become_leader(4)
    manager.mover.start_move(KEY, str(tmp_path / "b"))
    catch_up(manager)
    manager.mover.swap(manager.logs.get(KEY))
    assert place_of(manager) == "b"
    assert log_of(manager).epochs.latest_epoch == 4
    manager.unlock()


def test_a_log_that_ends_in_a_gap(tmp_path: Path, manager: LogManager) -> None:
    """Cut where compaction had left nothing: what is not there is missing in the copy neither."""
    other = PartitionKey(b"u" * 16, 0)
    manager.create("u", other, {})
    source = manager.logs.get(other).online()
    for offset in (0, 10):
        follow(source, batch(base_offset=offset, epoch=1))
    source.truncation.truncate_to(source.truncation.cut_for(7, -1))
    assert (source.log_end_offset, source.segments[-1].end_offset) == (7, 7)
    where = "b" if manager.logs.get(other).log_dir.path.name == "a" else "a"
    assert manager.mover.start_move(other, str(tmp_path / where))
    future = manager.logs.get(other).future
    assert future is not None
    plan = source.reader.plan_copy(0, 1 << 20)
    assert plan is not None
    log_copy.append_copy(future.log, plan.run(), 0)
    manager.mover.swap(manager.logs.get(other))
    log = manager.logs.get(other).online()
    assert log.log_end_offset == 7
    lead(log, batch(), epoch=2)
    assert header_of(log.read(3, -1, 1)).base_offset == 7
    assert not log.segment_list.contiguous


# -- as the service carries it on ------------------------------------------------------------------------------------


async def test_all_that_is_appended_meanwhile_is_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch at a time is copied, and the log begins to be swapped as soon as little is missing."""
    monkeypatch.setattr(log_moves, "COPY_BYTES", 1)
    async with running(tmp_path, log_dirs=f"{tmp_path}/a,{tmp_path}/b") as storage:
        partition = key()
        await storage.create(partition, segment_bytes="1024")
        await storage.fence(LEADER, 1, [partition])
        sent = 0

        async def append(count: int) -> None:
            nonlocal sent
            for _ in range(count):
                fields = {"leader_epoch": 1, "expected_offset": sent, "records": batch(value=b"%d" % sent)}
                assert not (await storage.append(LEADER, partition=partition, **fields)).error.code
                sent += 1

        async def moved() -> bool:
            described = await storage.stub.DescribeLogs(log_storage_pb2.DescribeLogsRequest())
            return [log_dir.logs for log_dir in described.log_dirs] == [0, 1]

        await append(20)
        request = log_storage_pb2.AlterLogDirsRequest()
        request.moves.add(partition=partition, log_dir=f"{tmp_path}/b")
        assert not (await storage.stub.AlterReplicaLogDirs(request)).results[0].error.code
        while not await moved():
            await append(1)
        await append(3)
        [hosted] = storage.service._manager.logs
        assert hosted.directory == tmp_path / "b" / "t-0"
        values = [
            record.value for offset in range(sent) for record in decode(hosted.online().read(offset, -1, 1)).records()
        ]
        assert values == [b"%d" % number for number in range(sent)]
        while (tmp_path / "a" / "t-0").exists():  # noqa: ASYNC110  (bounded by the test's deadline)
            await asyncio.sleep(0.01)
