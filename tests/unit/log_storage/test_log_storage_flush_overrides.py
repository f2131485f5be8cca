"""Topics whose `flush.messages` is not the broker's: what the boot record says, what is on disk before an answer."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest
from faulty_disk import SYNCS, FaultyDisk
from log_storage_batches import batch, lead, manager_with_log
from log_storage_client import DEADLINE_S, FOLLOWER, LEADER, key, running

from highwater.errors import ErrorCode
from highwater.log_storage.config import LogConfig
from highwater.log_storage.errors import LogError
from highwater.log_storage.fence import Fence
from highwater.log_storage.files import boot_record
from highwater.log_storage.files.boot_record import Boot
from highwater.log_storage.log import log_copy
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.model.fence_role import Role
from highwater.model.partition import PartitionKey
from highwater.v1 import log_storage_pb2

pytestmark = pytest.mark.usefixtures("each_transport")

KEY, OTHER = PartitionKey(b"t" * 16, 0), PartitionKey(b"u" * 16, 0)
EVERY = LogConfig(flush_messages=1)
SELDOM = {"flush.messages": "1000"}
PATIENCE_S = 0.2  # for what must not happen


def begun(data: Path, config: LogConfig = EVERY) -> LogManager:
    """After a clean stop, so that all that it holds is on disk."""
    manager_with_log(data, KEY, config, Fence(1, Role.LEADER, "rm", "ls")).close()
    return started(data, config)


def started(data: Path, config: LogConfig = EVERY) -> LogManager:
    manager = LogManager([data], config, broker_id=1)
    manager.load()
    return manager


def claims_every(data: Path) -> bool:
    record = boot_record.read_record(data)
    assert record is not None
    return record.flush_every_message


def lost_after_a_power_failure(data: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(boot_record, "present_boot", lambda directory: Boot("after the power failure", "mount"))
    manager = started(data)
    manager.unlock()
    return manager.logs.log_dirs[0].tail_lost


def test_where_every_log_flushes_every_append_a_power_failure_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = begun(tmp_path)
    manager.create("t", KEY, {"flush.messages": "1"})
    manager.unlock()
    assert claims_every(tmp_path)
    assert not lost_after_a_power_failure(tmp_path, monkeypatch)


@pytest.mark.parametrize("topic", ["new", "present"])
def test_a_topic_that_flushes_less_often_is_not_spoken_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    manager = begun(tmp_path)
    if topic == "new":
        manager.create("u", OTHER, SELDOM)
    else:
        manager.create("t", KEY, SELDOM)
    assert not claims_every(tmp_path)
    manager.logs.log_dirs[0].record_boot()
    manager.unlock()
    assert not claims_every(tmp_path)
    assert lost_after_a_power_failure(tmp_path, monkeypatch)


def test_a_topic_that_flushes_more_often_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others' tails are lost all the same."""
    manager = begun(tmp_path, LogConfig())
    manager.create("t", KEY, {"flush.messages": "1"})
    manager.unlock()
    assert lost_after_a_power_failure(tmp_path, monkeypatch)


def test_a_configuration_is_not_taken_before_the_record_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = begun(tmp_path)
    disk = FaultyDisk(tmp_path, monkeypatch)
    disk.fail(SYNCS)
    with pytest.raises(LogError):
        manager.create("t", KEY, SELDOM)
    log = manager.logs.get(KEY).log
    assert log is not None
    assert log.config.flush_messages == 1
    disk.heal()
    manager.unlock()


def test_a_log_that_moves_takes_its_setting_along(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    manager = LogManager(paths, EVERY, broker_id=1)
    manager.load()
    for log_dir in manager.logs.log_dirs:
        log_dir.record_boot()
    manager.create("t", KEY, SELDOM)
    hosted = manager.logs.get(KEY)
    lead(hosted.online(), batch(3))
    [target] = [path for path in paths if path != hosted.log_dir.path]
    assert claims_every(target)
    manager.mover.start_move(KEY, str(target))
    assert hosted.future is not None
    plan = hosted.online().reader.plan_copy(0, 1 << 20)
    assert plan is not None
    log_copy.append_copy(hosted.future.log, plan.run(), 0)
    manager.mover.swap(hosted)
    manager.unlock()
    assert not claims_every(target)


class Synced:
    """Counts the fdatasyncs of segments."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        real = os.fdatasync

        def fdatasync(descriptor: int) -> None:
            self.count += os.readlink(f"/proc/self/fd/{descriptor}").endswith(".log")
            real(descriptor)

        monkeypatch.setattr(os, "fdatasync", fdatasync)


@pytest.mark.parametrize("role", [LEADER, FOLLOWER])
async def test_a_fence_answers_a_log_end_that_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: int
) -> None:
    """RULES 4.1: it is taken for acknowledged."""
    async with running(tmp_path) as storage:
        await storage.create(key())
        await storage.fence(LEADER, 1, [key()])
        await storage.append(LEADER, partition=key(), leader_epoch=1, expected_offset=0, records=batch(8))
        altered = log_storage_pb2.AlterLogConfigRequest(partition=key(), config={"flush.messages": "1"})
        assert not (await storage.stub.AlterLogConfig(altered)).error.code
        synced = Synced(monkeypatch)
        [result] = await storage.fence(role, 2, [key()])
        assert result.log.log_end_offset == 8
        assert synced.count == 1
        await storage.fence(role, 3, [key()])
        assert synced.count == 1  # nothing has been appended since


async def test_a_truncation_answers_a_log_end_that_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as storage:
        await storage.create(key())
        await storage.fence(LEADER, 1, [key()])
        for offset in (0, 8):
            await storage.append(LEADER, partition=key(), leader_epoch=1, expected_offset=offset, records=batch(8))
        await storage.fence(FOLLOWER, 2, [key()])
        altered = log_storage_pb2.AlterLogConfigRequest(partition=key(), config={"flush.messages": "1"})
        assert not (await storage.stub.AlterLogConfig(altered)).error.code
        synced = Synced(monkeypatch)
        request = log_storage_pb2.TruncateToRequest(partition=key(), leader_epoch=2, offset=8, unclean_epoch=-1)
        answer = await storage.stub.TruncateTo(request)
        assert answer.log.log_end_offset == 8
        assert synced.count == 1


async def test_a_refused_append_answers_a_log_end_that_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as storage:
        await storage.create(key())
        await storage.fence(LEADER, 1, [key()])
        await storage.append(LEADER, partition=key(), leader_epoch=1, expected_offset=0, records=batch(8))
        altered = log_storage_pb2.AlterLogConfigRequest(partition=key(), config={"flush.messages": "1"})
        assert not (await storage.stub.AlterLogConfig(altered)).error.code
        synced = Synced(monkeypatch)
        refused = await storage.append(LEADER, partition=key(), leader_epoch=1, expected_offset=3, records=batch(8))
        assert refused.error.code == ErrorCode.OFFSET_MISMATCH
        assert refused.log.log_end_offset == 8
        assert synced.count == 1


def test_a_record_that_is_being_written_speaks_for_no_log_that_is_configured_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tail is settled in a thread, beside the controller's instructions."""
    manager = begun(tmp_path)
    manager.create("t", KEY, SELDOM)
    manager.unlock()
    manager = started(tmp_path)  # the record claims nothing
    manager.create("t", KEY, {"flush.messages": "1"})
    assert not claims_every(tmp_path)
    writing, go_on, real = threading.Event(), threading.Event(), boot_record.write_record

    def slowly(directory: Path, record: boot_record.BootRecord) -> None:
        writing.set()
        assert go_on.wait(DEADLINE_S)
        real(directory, record)

    monkeypatch.setattr(boot_record, "write_record", slowly)
    with ThreadPoolExecutor(2) as threads:
        recorded = threads.submit(manager.logs.log_dirs[0].record_boot)
        assert writing.wait(DEADLINE_S)
        configured = threads.submit(manager.create, "t", KEY, SELDOM)
        wait([configured], timeout=PATIENCE_S)
        go_on.set()
        recorded.result(DEADLINE_S)
        configured.result(DEADLINE_S)
    manager.unlock()
    assert not claims_every(tmp_path)
    assert lost_after_a_power_failure(tmp_path, monkeypatch)
