"""Any single small file that is damaged, and a log that cannot be opened beside it: log-storage starts, and the other
logs are served. So it is with whatever a log's own files make of opening it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from log_storage_batches import batch, lead, produced

from highwater.errors import UserError
from highwater.log_storage.config import LogConfig
from highwater.log_storage.fence import Fence
from highwater.log_storage.files import checkpoints, future_files
from highwater.log_storage.files.boot_record import FILE_NAME as BOOT
from highwater.log_storage.files.fence_journal import FILE_NAME as FENCES
from highwater.log_storage.files.meta_properties import FILE_NAME as META
from highwater.log_storage.log_manager import log_loader
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.model.fence_role import Role
from highwater.model.partition import PartitionKey

BAD, GOOD = PartitionKey(b"b" * 16, 0), PartitionKey(b"g" * 16, 0)
CHECKPOINTS = (
    checkpoints.RECOVERY_POINTS,
    checkpoints.HIGH_WATERMARKS,
    checkpoints.LOG_STARTS,
    checkpoints.CLEANER_OFFSETS,
)
CONTENTS = {
    "empty": b"",
    "zeroes": b"\0" * 64,
    "no text": b"\xff\xfe\x80" * 9,
    "a list": b"[]",
    "a number": b"7",
    "no entries": b"0\n1\n",
    "a line too few": b"0\n2\ngood 0 1\n",
    "no offset": b"0\n1\ngood 0 x\n",
    "out of range": b"0\n1\ngood 0 99999999999999999999\n",
    "endless": b"0\n1\ngood 0 " + b"9" * 5000 + b"\n",
}


def opened(path: Path) -> LogManager:
    manager = LogManager([path], LogConfig(), broker_id=1)
    manager.load()
    return manager


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Of two logs, of which `bad-0` cannot be opened."""
    manager = opened(tmp_path)
    manager.logs.log_dirs[0].record_boot()
    for topic, key in (("bad", BAD), ("good", GOOD)):
        manager.create(topic, key, {})
        manager.logs.log_dirs[0].record_fences({key: Fence(1, Role.LEADER, "rm", "ls")})
        lead(manager.logs.get(key).online(), produced(1, sequence=0))
        manager.logs.get(key).online().offsets.raise_high_watermark(1)
    manager.close()
    (tmp_path / "bad-0" / "nonsense.log").touch()
    return tmp_path


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_damaged_checkpoint_and_a_log_that_cannot_be_opened(data: Path, name: str, content: bytes) -> None:
    (data / name).write_bytes(content)
    for _ in range(2):
        manager = opened(data)
        assert manager.logs.get(GOOD).online().log_end_offset == 1
        assert manager.logs.get(BAD).offline_reason
        manager.logs.write_checkpoints(manager.logs.log_dirs[0])  # as from time to time
        manager.close()


def test_what_the_sound_checkpoints_say_of_a_log_that_is_not_opened_stays(data: Path) -> None:
    (data / checkpoints.LOG_STARTS).write_bytes(b"damaged")
    opened(data).close()
    assert checkpoints.read_offsets(data / checkpoints.HIGH_WATERMARKS) == {("bad", 0): 1, ("good", 0): 1}
    assert checkpoints.read_offsets(data / checkpoints.LOG_STARTS) == {("good", 0): 0}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
@pytest.mark.parametrize("name", ["partition.metadata", "leader-epoch-checkpoint", f"{1:020}.snapshot"])
def test_a_damaged_file_of_a_log(data: Path, name: str, content: bytes) -> None:
    (data / "bad-0" / "nonsense.log").unlink()
    (data / "bad-0" / name).write_bytes(content)
    manager = opened(data)
    assert manager.logs.get(GOOD).online().log_end_offset == 1
    assert not manager.logs.log_dirs[0].offline
    manager.close()


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
@pytest.mark.parametrize("name", [BOOT, META, FENCES])
def test_a_damaged_file_of_one_directory(tmp_path: Path, name: str, content: bytes) -> None:
    """The other directory is served, or the start is refused in so many words; never by an error of its own."""
    paths = [tmp_path / "a", tmp_path / "b"]
    manager = LogManager(paths, LogConfig(), broker_id=1)
    manager.load()
    for log_dir in manager.logs.log_dirs:
        log_dir.record_boot()
    manager.create("good", GOOD, {})
    manager.close()
    other = next(path for path in paths if not (path / "good-0").exists())
    (other / name).write_bytes(content)
    manager = LogManager(paths, LogConfig(), broker_id=1)
    manager.load()
    assert manager.logs.get(GOOD).online().log_end_offset == 0
    manager.unlock()


def test_a_boot_record_that_is_no_object_is_none(data: Path) -> None:
    (data / BOOT).write_bytes(b"[]")
    manager = opened(data)
    assert not manager.logs.log_dirs[0].offline
    manager.unlock()


def test_a_log_whose_opening_ends_in_a_way_that_nobody_thought_of(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = log_loader.open_log

    def failing(directory: Path, *arguments: Any) -> Any:
        if directory.name == "bad-0":
            raise ZeroDivisionError
        return real(directory, *arguments)

    monkeypatch.setattr(log_loader, "open_log", failing)
    manager = opened(data)
    assert "ZeroDivisionError" in manager.logs.get(BAD).offline_reason
    assert manager.logs.get(GOOD).online().log_end_offset == 1
    manager.unlock()


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"another", b"bad/../good"])
def test_a_complete_copy_whose_mark_is_damaged_is_kept(tmp_path: Path, content: bytes) -> None:
    """Its log has gone already: it is all that there is of it."""
    manager = opened(tmp_path)
    manager.logs.log_dirs[0].record_boot()
    manager.create("good", GOOD, {})
    lead(manager.logs.get(GOOD).online(), batch())
    manager.close()
    copy = tmp_path / future_files.future_directory_name("good", 0)
    (tmp_path / "good-0").rename(copy)
    future_files.mark_complete(copy, "good")
    (copy / future_files.COMPLETE).write_bytes(content)
    manager = opened(tmp_path)
    assert manager.logs.find(GOOD) is None
    assert not manager.logs.log_dirs[0].offline
    manager.close()
    (copy / future_files.COMPLETE).write_bytes(b"good")
    manager = opened(tmp_path)
    assert manager.logs.get(GOOD).online().log_end_offset == 1
    manager.close()


def test_a_directory_whose_name_has_too_large_a_partition_is_left_alone(data: Path) -> None:
    (data / "good-0").rename(data / f"good-{2**31}")
    manager = opened(data)
    assert manager.logs.find(GOOD) is None
    manager.close()


def test_a_left_over_that_cannot_be_removed_is_left(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (data / "gone.deleted").mkdir()

    def forbidden(path: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr("shutil.rmtree", forbidden)
    manager = opened(data)
    assert manager.logs.get(GOOD).online().log_end_offset == 1
    manager.close()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_start_that_lacks_descriptors_is_refused(data: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Rather than that some logs, or a directory, are offline for it until the next one."""
    real = log_loader.open_log

    def lacking(directory: Path, *arguments: Any) -> Any:
        if directory.name == "good-0":
            raise OSError(number, os.strerror(number))
        return real(directory, *arguments)

    monkeypatch.setattr(log_loader, "open_log", lacking)
    manager = LogManager([data], LogConfig(), broker_id=1)
    with pytest.raises(UserError, match="start it again"):
        manager.load()
    assert not manager.logs.log_dirs[0].offline
    manager.unlock()
