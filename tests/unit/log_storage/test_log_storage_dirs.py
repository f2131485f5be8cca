"""Log directories: lock, clean-shutdown mark, tail lost (RULES 7.2), and the logs in them."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from log_storage_batches import batch, lead, produced

from highwater.errors import ErrorCode, UserError
from highwater.log_storage.config import LogConfig
from highwater.log_storage.errors import LogError
from highwater.log_storage.fence import Fence
from highwater.log_storage.files import boot_record, checkpoints
from highwater.log_storage.files.boot_record import Boot, BootRecord
from highwater.log_storage.log.log import Log
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.model.fence_role import Role
from highwater.model.log_state import LogState
from highwater.model.partition import PartitionKey

KEY = PartitionKey(b"t" * 16, 0)
AGAIN = PartitionKey(b"u" * 16, 0)  # the topic made again under its old name


def opened(path: Path, *, config: LogConfig | None = None, broker_id: int = 1) -> LogManager:
    manager = LogManager([path], config or LogConfig(), broker_id=broker_id)
    manager.load()
    return manager


def log_of(manager: LogManager, key: PartitionKey = KEY) -> Log:
    log = manager.logs.get(key).log
    assert log is not None
    return log


def refused(code: ErrorCode) -> Any:
    return pytest.raises(LogError, check=lambda error: error.code is code)


def confirm(manager: LogManager) -> None:
    for log_dir in manager.logs.log_dirs:
        log_dir.record_boot()


def test_a_directory_has_one_user(tmp_path: Path) -> None:
    first = opened(tmp_path)
    with pytest.raises(UserError, match="data dir in use"):
        opened(tmp_path)
    first.close()
    opened(tmp_path).unlock()


def test_what_is_in_a_directory_is_its_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        manager = opened(tmp_path / "data")
        confirm(manager)
        manager.create("t", KEY, {})
        lead(log_of(manager), produced(3, sequence=0))
        manager.logs.write_checkpoints(manager.logs.log_dirs[0])
        manager.close()
    finally:
        os.umask(before)
    found = [tmp_path / "data", *(tmp_path / "data").rglob("*")]
    assert {"00000000000000000000.log", "00000000000000000000.index"} <= {path.name for path in found}
    for path in found:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_directory_belongs_to_one_broker(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    confirm(manager)
    manager.close()
    with pytest.raises(UserError, match="belongs to broker 1, this is 2"):
        opened(tmp_path, broker_id=2)
    opened(tmp_path).unlock()  # the lock was let go


def test_bad_directories(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be used"):
        opened(tmp_path / "file")
    with pytest.raises(UserError, match="only once"):
        LogManager([tmp_path, tmp_path / "x" / ".."], LogConfig(), broker_id=1).lock()


@pytest.mark.parametrize("clean", [True, False])
def test_logs_are_there_after_a_restart(tmp_path: Path, clean: bool) -> None:
    manager = opened(tmp_path)
    confirm(manager)
    assert manager.create("my.topic", KEY, {"segment.bytes": "2048"})
    assert not manager.create("my.topic", KEY, {"segment.bytes": "2048"})
    log = log_of(manager)
    assert log.config.segment_bytes == 2048
    lead(log, produced(3, sequence=0), epoch=4)
    log.offsets.raise_high_watermark(2)
    manager.logs.log_dirs[0].fences.record({KEY: Fence(4, Role.LEADER, "rm", "ls")})
    if clean:
        manager.close()
    else:
        manager.unlock()
    assert (tmp_path / ".kafka_cleanshutdown").exists() is clean
    again = opened(tmp_path)
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    assert again.logs.log_dirs[0].clean is clean
    assert log_of(again).state == LogState(3, 4, 0, 2 if clean else 0)
    assert again.logs.get(KEY).fence == Fence(4, Role.LEADER, "rm", "ls")
    assert again.logs.get(KEY).topic == "my.topic"
    again.unlock()


def test_a_clean_stop_in_files(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    confirm(manager)
    manager.create("t", KEY, {})
    lead(log_of(manager), batch(3))
    log_of(manager).offsets.raise_high_watermark(2)
    manager.close()
    assert (tmp_path / "recovery-point-offset-checkpoint").read_bytes() == b"0\n1\nt 0 3\n"
    assert (tmp_path / "replication-offset-checkpoint").read_bytes() == b"0\n1\nt 0 2\n"
    assert (tmp_path / "log-start-offset-checkpoint").read_bytes() == b"0\n1\nt 0 0\n"
    assert sorted(path.name for path in (tmp_path / "t-0").iterdir()) == [
        "00000000000000000000.index",
        "00000000000000000000.log",
        "00000000000000000000.timeindex",
        "00000000000000000003.snapshot",
        "leader-epoch-checkpoint",
        "partition.metadata",
    ]


def test_a_crash_after_a_clean_start_recovers(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    confirm(manager)
    manager.create("t", KEY, {})
    lead(log_of(manager), batch(3))
    manager.close()
    manager = opened(tmp_path)
    assert manager.logs.log_dirs[0].clean
    lead(log_of(manager), batch(2))
    path = log_of(manager).segments[0].path
    manager.unlock()
    with path.open("ab") as file:
        file.write(b"torn")
    again = opened(tmp_path)
    assert not again.logs.log_dirs[0].clean
    assert log_of(again).log_end_offset == 5
    again.unlock()


# -- RULES 7.2 -------------------------------------------------------------------------------------------------------

HERE, ELSEWHERE = Boot("boot", "mount"), Boot("another boot", "mount")


@pytest.mark.parametrize(
    ("record", "clean", "lost"),
    [
        (None, False, True),  # a replaced volume, or a new broker
        (None, True, False),
        (BootRecord(1, HERE, False), False, False),  # killed: the page cache is still there
        (BootRecord(1, ELSEWHERE, False), False, True),
        (BootRecord(1, Boot("boot", "another mount"), False), False, True),
        (BootRecord(1, ELSEWHERE, True), False, False),  # flush.messages=1
        (BootRecord(1, ELSEWHERE, False), True, False),
    ],
)
def test_when_a_tail_is_lost(record: BootRecord | None, clean: bool, lost: bool) -> None:
    assert boot_record.tail_lost(record, HERE, clean) is lost


def test_a_lost_tail_is_told_until_the_boot_is_recorded(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    assert manager.logs.log_dirs[0].tail_lost
    manager.close()  # a clean stop does not settle it
    manager = opened(tmp_path)
    assert manager.logs.log_dirs[0].tail_lost
    confirm(manager)
    manager.unlock()
    manager = opened(tmp_path)
    assert not manager.logs.log_dirs[0].tail_lost
    manager.unlock()
    record = json.loads((tmp_path / ".highwater_boot").read_bytes())
    record["boot"]["boot_id"] = "the machine was started anew"
    (tmp_path / ".highwater_boot").write_text(json.dumps(record))
    manager = opened(tmp_path)
    assert manager.logs.log_dirs[0].tail_lost
    manager.unlock()


def test_what_the_logs_led_is_not_said_once_their_lost_tails_are_settled(tmp_path: Path) -> None:
    """RULES 7.9. Before, the inventory tells both."""
    fence = Fence(4, Role.LEADER, "rm", "ls")
    manager = opened(tmp_path)
    manager.logs.log_dirs[0].record_fences({KEY: fence})
    manager.unlock()
    manager = opened(tmp_path)
    assert manager.logs.log_dirs[0].fences.fences[KEY].last_led_epoch == 4
    confirm(manager)
    manager.unlock()
    manager = opened(tmp_path)
    assert manager.logs.log_dirs[0].fences.fences[KEY].last_led_epoch is None
    manager.unlock()


def test_a_clean_start_under_a_new_boot_records_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = opened(tmp_path)
    confirm(manager)
    manager.close()
    monkeypatch.setattr(boot_record, "present_boot", lambda directory: ELSEWHERE)
    manager = opened(tmp_path)
    assert not manager.logs.log_dirs[0].tail_lost
    manager.unlock()
    manager = opened(tmp_path)  # a kill under the new boot: nothing is lost
    assert not manager.logs.log_dirs[0].tail_lost
    manager.unlock()


def test_flushing_every_message_counts_from_a_clean_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    every = LogConfig(flush_messages=1)
    manager = opened(tmp_path)
    confirm(manager)
    manager.unlock()  # killed, with appends that are not on disk
    manager = opened(tmp_path, config=every)
    record = boot_record.read_record(tmp_path)
    assert record is not None
    assert not record.flush_every_message
    manager.close()
    manager = opened(tmp_path, config=every)
    manager.unlock()
    monkeypatch.setattr(boot_record, "present_boot", lambda directory: ELSEWHERE)
    manager = opened(tmp_path, config=every)
    assert not manager.logs.log_dirs[0].tail_lost
    manager.unlock()


# -- creating and deleting -------------------------------------------------------------------------------------------


def test_another_topic_of_the_same_name(tmp_path: Path) -> None:
    """RULES 1.1."""
    manager = opened(tmp_path)
    manager.create("t", KEY, {})
    manager.logs.log_dirs[0].record_fences({KEY: Fence(1, Role.LEADER, "rm", "ls")})
    log = log_of(manager)
    lead(log, batch(5))
    log.offsets.raise_high_watermark(5)
    log.log_start.raise_to(5)
    log.flush()
    manager.logs.write_checkpoints(manager.logs.log_dirs[0])
    with refused(ErrorCode.INCONSISTENT_TOPIC_ID):
        manager.create("t", AGAIN, {})
    manager.delete(KEY, -1)
    assert manager.create("t", AGAIN, {})
    manager.unlock()
    again = opened(tmp_path)
    assert again.logs.find(KEY) is None
    assert log_of(again, AGAIN).state == LogState(0, -1, 0, 0)  # nothing of the old one's checkpoints
    again.unlock()


@pytest.mark.parametrize("crashed", [False, True])
def test_many_deletions_write_the_checkpoints_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crashed: bool
) -> None:
    """Before the next log is made, or at the next start, whichever comes first: one of the same name inherits
    nothing."""
    manager = opened(tmp_path)
    keys = [PartitionKey(b"t" * 16, number) for number in range(20)]
    for key in keys:
        manager.create("t", key, {})
        manager.logs.log_dirs[0].record_fences({key: Fence(1, Role.LEADER, "rm", "ls")})
        lead(log_of(manager, key), batch(5))
        log_of(manager, key).offsets.raise_high_watermark(5)
        log_of(manager, key).log_start.raise_to(5)
        log_of(manager, key).flush()
    manager.logs.write_checkpoints(manager.logs.log_dirs[0])
    written: list[Path] = []
    write_offsets = checkpoints.write_offsets
    monkeypatch.setattr(
        checkpoints, "write_offsets", lambda path, offsets: (written.append(path), write_offsets(path, offsets))
    )
    for key in keys:
        manager.delete(key, -1)
    assert not written
    if crashed:
        manager.unlock()
        manager = opened(tmp_path)
        assert len(written) == 4  # of one directory
    for number in range(20):
        again = PartitionKey(b"u" * 16, number)
        manager.create("t", again, {})
        assert log_of(manager, again).state == LogState(0, -1, 0, 0)
    assert len(written) == 4
    manager.unlock()


def test_deletion_is_refused_where_the_fence_is_higher(tmp_path: Path) -> None:
    """RULES 9.3."""
    manager = opened(tmp_path)
    manager.create("t", KEY, {})
    manager.logs.log_dirs[0].fences.record({KEY: Fence(5, Role.FOLLOWER, "", "ls")})
    with refused(ErrorCode.STALE_FENCE):
        manager.delete(KEY, 4)
    removable = manager.delete(KEY, 5)
    assert removable is not None
    assert removable.name.startswith("t-0.")
    assert removable.name.endswith(".deleted")
    assert manager.logs.find(KEY) is None
    assert manager.logs.log_dirs[0].fences.get(KEY) is None
    assert manager.delete(KEY, 5) is None
    manager.unlock()
    opened(tmp_path).unlock()
    assert not removable.exists()  # removed at the next start at the latest


def test_what_cannot_be_created(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    for topic, key in (("a/b", KEY), ("", KEY), ("t", PartitionKey(b"t" * 16, -1))):
        with refused(ErrorCode.INVALID_TOPIC):
            manager.create(topic, key, {})
    with refused(ErrorCode.INVALID_REQUEST):
        manager.create("t", PartitionKey(b"short", 0), {})
    with refused(ErrorCode.INVALID_CONFIG):
        manager.create("t", KEY, {"segment.bytes": "x"})
    (tmp_path / "t-0").mkdir()
    with refused(ErrorCode.INCONSISTENT_TOPIC_ID):
        manager.create("t", KEY, {})
    assert len(manager.logs) == 0
    manager.unlock()


def test_new_logs_go_to_the_directory_with_the_fewest(tmp_path: Path) -> None:
    manager = LogManager([tmp_path / "a", tmp_path / "b"], LogConfig(), broker_id=1)
    manager.load()
    for number in range(4):
        manager.create("t", PartitionKey(b"t" * 16, number), {})
    assert [sum(1 for _ in manager.logs.in_directory(log_dir)) for log_dir in manager.logs.log_dirs] == [2, 2]
    manager.unlock()


def test_a_log_that_cannot_be_opened_leaves_the_others_alone(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    confirm(manager)
    for key in (KEY, PartitionKey(b"t" * 16, 1)):
        manager.create("t", key, {})
        lead(log_of(manager, key), batch(3))
        log_of(manager, key).offsets.raise_high_watermark(2)
    damaged = log_of(manager).segments[0].path
    manager.close()
    damaged.write_bytes(b"\0" * 100)
    again = opened(tmp_path)
    with refused(ErrorCode.LOG_STORAGE_ERROR):
        again.logs.get(KEY).online()
    assert "damaged" in again.logs.get(KEY).offline_reason
    assert log_of(again, PartitionKey(b"t" * 16, 1)).log_end_offset == 3
    again.close()
    assert (tmp_path / "replication-offset-checkpoint").read_bytes() == b"0\n2\nt 0 2\nt 1 2\n"
    assert not (tmp_path / ".kafka_cleanshutdown").exists()


def test_what_is_not_a_log_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "backup-2").mkdir()
    (tmp_path / "backup-2" / "notes").write_text("mine")
    (tmp_path / "0123.creating").mkdir()
    manager = opened(tmp_path)
    assert len(manager.logs) == 0
    manager.close()
    assert (tmp_path / "backup-2" / "notes").exists()
    assert not (tmp_path / "0123.creating").exists()


# -- checkpoints before cuts -----------------------------------------------------------------------------------------


def test_checkpoints_are_lowered_before_a_cut(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    manager.create("t", KEY, {})
    log = log_of(manager)
    for _ in range(10):
        lead(log, batch())
    log.offsets.raise_high_watermark(8)
    log.flush()
    manager.logs.write_checkpoints(manager.logs.log_dirs[0])
    manager.truncate(manager.logs.get(KEY), 4, 2)
    assert (tmp_path / "recovery-point-offset-checkpoint").read_bytes() == b"0\n1\nt 0 4\n"
    assert (tmp_path / "replication-offset-checkpoint").read_bytes() == b"0\n1\nt 0 4\n"
    manager.truncate_fully_and_start_at(manager.logs.get(KEY), 20, -1)
    assert (tmp_path / "log-start-offset-checkpoint").read_bytes() == b"0\n1\nt 0 20\n"
    assert log.state == LogState(20, -1, 20, 20)
    with refused(ErrorCode.TRUNCATION_BELOW_HIGH_WATERMARK):
        manager.truncate_fully_and_start_at(manager.logs.get(KEY), 10, -1)
    manager.unlock()
