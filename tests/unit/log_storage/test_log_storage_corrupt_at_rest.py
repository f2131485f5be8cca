"""Every file of a log directory replaced by garbage, emptied, made huge and removed, one at a time, after a clean stop
and after a kill: log-storage starts, serves everything else, and says which file it was and what to do."""

from __future__ import annotations

import logging
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from log_storage_batches import batch, lead, produced

from highwater.log_storage.config import LogConfig
from highwater.log_storage.errors import LogError
from highwater.log_storage.fence import Fence
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.model.fence_role import Role
from highwater.model.partition import PartitionKey
from highwater.records import iter_batches

HUGE_BYTES = 1 << 40  # sparse: it takes no space
MEMORY_BYTES = 64 << 30  # of addresses, that threads and looking at it may take
CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=100)
BAD, NEXT, OTHER = (PartitionKey(letter * 16, 0) for letter in (b"b", b"n", b"o"))
TOPICS = {"bad": BAD, "next": NEXT, "other": OTHER}
BATCHES = 12
TIMES = (1_000, 1_050, 1_115, 5_000)


def garbage(path: Path) -> None:
    path.write_bytes(b"\x93garbage\x00\xff" * 41)


def huge(path: Path) -> None:
    os.truncate(path, HUGE_BYTES)


HARMS: dict[str, Callable[[Path], None]] = {
    "garbage": garbage,
    "emptied": lambda path: path.write_bytes(b""),
    "huge": huge,
    "removed": Path.unlink,
}


@pytest.fixture(autouse=True)
def bounded_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """To read a huge file whole is an error, rather than the end of the machine."""
    for name in ("fsync", "fdatasync", "posix_fallocate"):
        monkeypatch.setattr(f"os.{name}", lambda *arguments: None)
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY_BYTES, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def manager_of(data: Path) -> LogManager:
    manager = LogManager([data / "a", data / "b"], CONFIG, broker_id=1)
    manager.load()
    return manager


def made(data: Path, *, clean: bool) -> None:
    """Two directories; `bad` is in the first, beside `next`, of which nothing is harmed."""
    manager = manager_of(data)
    for log_dir in manager.logs.log_dirs:
        log_dir.record_boot()
        log_dir.record_cluster("cluster")
    for topic, key in (("bad", BAD), ("other", OTHER), ("next", NEXT)):
        manager.create(topic, key, {})
        hosted = manager.logs.get(key)
        hosted.log_dir.record_fences({key: Fence(1, Role.LEADER, "rm", "ls")})
        log = hosted.online()
        log.become_leader(1)
        for number in range(BATCHES // 2):
            lead(log, batch(timestamp=1_000 + 10 * number, value=b"x" * 60))
            lead(log, produced(1, sequence=number))
        log.offsets.raise_high_watermark(BATCHES)
        assert len(log.segments) > 3
    assert (data / "a" / "bad-0").exists()
    assert (data / "a" / "next-0").exists()
    if clean:
        manager.close()
    else:
        for hosted in manager.logs:
            hosted.online().flush()
            lead(hosted.online(), batch())
        for log_dir in manager.logs.log_dirs:
            manager.logs.write_checkpoints(log_dir)
        manager.unlock()


FILES = [
    "bad-0/00000000000000000000.log",
    "bad-0/00000000000000000000.index",
    "bad-0/00000000000000000000.timeindex",
    "bad-0/00000000000000000006.log",
    "bad-0/00000000000000000006.index",
    "bad-0/00000000000000000006.timeindex",
    "bad-0/last.log",
    "bad-0/last.index",
    "bad-0/last.timeindex",
    "bad-0/last.snapshot",
    "bad-0/leader-epoch-checkpoint",
    "bad-0/partition.metadata",
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    "log-start-offset-checkpoint",
    "cleaner-offset-checkpoint",
    "fence-journal",
    "meta.properties",
    ".highwater_boot",
    ".kafka_cleanshutdown",
    ".lock",
    ".reserve",
]


def found(directory: Path, name: str) -> Path | None:
    """The file that is meant; None where this stop has left none."""
    path = directory / name
    if path.stem == "last":
        path = max(path.parent.glob(f"*{path.suffix}"), default=path)
    return path if path.exists() else None


@pytest.fixture(scope="module", params=["clean", "killed"])
def sound(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("sound")
    made(data, clean=request.param == "clean")
    return data


def read(manager: LogManager, key: PartitionKey) -> tuple[list[int], str]:
    """The offsets of the batches that are served, and what is said of others."""
    offsets: list[int] = []
    try:
        log = manager.logs.get(key).online()
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            [(_, header)] = iter_batches(log.read(offset, -1, 1))
            assert header.base_offset == offset
            offsets.append(offset)
            offset = header.next_offset
        for time in TIMES:
            log.reader.list_offset(time)
    except LogError as error:
        return offsets, str(error)
    return offsets, ""


def test_all_files_are_named_here(sound: Path) -> None:
    named = {path for name in FILES if (path := found(sound / "a", name)) is not None}
    for path in (sound / "a").rglob("*"):
        if path.is_file() and "next-0" not in path.parts:
            assert any(path.parent == other.parent and path.suffix == other.suffix for other in named), path


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("name", FILES)
def test_a_start_with_one_bad_file(
    sound: Path, tmp_path: Path, name: str, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    data = tmp_path / "data"
    shutil.copytree(sound, data)
    path = found(data / "a", name)
    if path is None:
        pytest.skip("this stop leaves no such file")
    whole = BATCHES + (not (sound / "a" / ".kafka_cleanshutdown").exists())
    HARMS[harm](path)
    for start in range(2):
        manager = manager_of(data)
        try:
            assert read(manager, OTHER) == (list(range(whole)), "")
            in_log = path.parent.name == "bad-0"
            if in_log:  # the others of its directory are served
                assert read(manager, NEXT) == (list(range(whole)), "")
            offsets, told = read(manager, BAD)
            told += manager.logs.log_dirs[0].offline
            if start == 0:
                told += caplog.text
            if len(offsets) < whole and start == 0:  # what is not served is told of, with the file's name
                assert path.name in told or str(path.parent) in told, told
                assert any(word in told for word in ("estore", "remove", "cuts")), told
            if in_log and path.suffix != ".log" and path.name != "partition.metadata":
                assert offsets == list(range(whole)), told  # made again, or done without
            manager.logs.get(OTHER).online().become_leader(2 + start)
            if not manager.logs.log_dirs[0].offline:
                manager.create(f"made-{start}", PartitionKey(bytes([start]) * 16, 0), {})
                manager.logs.write_checkpoints(manager.logs.log_dirs[0])
        finally:
            manager.unlock()
