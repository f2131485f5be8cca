"""Files of this machine without the JVM, and what Hadoop's file systems say of theirs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from highwater import atomic_file
from highwater.errors import UserError
from highwater.spark.pipelines.files import hadoop_files
from highwater.spark.pipelines.files.hadoop_files import Listing, fsync_files, listings, local_listings, statuses

DAY = "s3a://b/archive/topic=a/date=2026-11-21"


def test_statuses_are_taken_from_words() -> None:
    """As HDFS, S3A and Hadoop itself put them."""
    told = (
        f"[HdfsLocatedFileStatus{{path={DAY}/hour=02; isDirectory=true; modification_time=1; access_time=0}}, "
        f"S3ALocatedFileStatus{{path={DAY}/hour=02/00000-7-8.parquet; isDirectory=false; length=4711; replication=1; "
        'blocksize=33554432; modification_time=1; isEmptyDirectory=FALSE eTag="1" versionId=null}, '
        "FileStatus{path=hdfs://n/a, b; isDirectory=false; length=0; replication=1}]"
    )
    assert statuses(told) == [
        (f"{DAY}/hour=02", True, 0),
        (f"{DAY}/hour=02/00000-7-8.parquet", False, 4711),
        ("hdfs://n/a, b", False, 0),
    ]
    assert statuses("[]") == []


HOUR = "topic=a/date=2026-11-21/hour=02"
SIZES = {
    f"{HOUR}/1.parquet": 2,
    f"{HOUR}/2.parquet": 0,
    f"{HOUR}/.1.parquet.crc": 1,
    "topic=a/date=2026-11-21/hour=01/3.parquet": 3,
    "_commits/1.json": 1,
    "topic=a/_temporary/0/2.parquet": 1,
    "notes": 0,
}
LISTED = [
    Listing("", {"notes": 0}),
    Listing("topic=a/date=2026-11-21/hour=01", {"3.parquet": 3}),
    Listing(HOUR, {"1.parquet": 2, "2.parquet": 0}),
]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    for path, size in SIZES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(b"1" * size)
    return tmp_path


def test_files_below_a_directory(archive: Path) -> None:
    assert list(local_listings(archive)) == LISTED
    assert list(local_listings(archive, "topic=a/date=2026-11-21")) == LISTED[1:]
    assert list(local_listings(archive, HOUR)) == LISTED[2:]
    for nothing in ("nothing", "notes"):
        assert list(local_listings(archive / nothing)) == []
    assert [[one.path(name) for name in one.sizes_bytes] for one in LISTED[:2]] == [
        ["notes"],
        ["topic=a/date=2026-11-21/hour=01/3.parquet"],
    ]


def test_files_that_a_file_system_tells_of() -> None:
    """In any order."""
    assert listings(SIZES.items()) == listings(reversed(SIZES.items())) == LISTED


def test_links_count_for_what_they_lead_to(archive: Path) -> None:
    elsewhere = archive / "_elsewhere"
    elsewhere.mkdir()
    (elsewhere / "4.parquet").write_bytes(b"1234")
    (archive / HOUR / "4.parquet").symlink_to(elsewhere / "4.parquet")
    (archive / HOUR / "5.parquet").symlink_to(elsewhere / "gone")
    (archive / "topic=b").symlink_to(elsewhere)
    assert list(local_listings(archive)) == [
        *LISTED[:2],
        Listing(HOUR, {"1.parquet": 2, "2.parquet": 0, "4.parquet": 4}),
        Listing("topic=b", {"4.parquet": 4}),
    ]


def test_a_directory_is_listed_when_it_is_its_turn(archive: Path) -> None:
    """What is removed meanwhile is left out."""
    found: Iterator[Listing] = local_listings(archive)
    assert next(found) == LISTED[0]
    (archive / HOUR / "2.parquet").unlink()
    shutil.rmtree(archive / "topic=a/date=2026-11-21/hour=01")
    assert list(found) == [Listing(HOUR, {"1.parquet": 2})]


def test_no_directory_is_listed_ahead(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is for one, however many there are."""
    listed: list[str] = []
    entries = hadoop_files._local_entries

    def noted(directory: Path) -> tuple[dict[str, int], list[str]]:
        listed.append(str(directory.relative_to(archive)))
        return entries(directory)

    monkeypatch.setattr(hadoop_files, "_local_entries", noted)
    found = local_listings(archive, "topic=a")
    assert next(found) == LISTED[1]
    assert listed == ["topic=a", "topic=a/date=2026-11-21", "topic=a/date=2026-11-21/hour=01"]
    assert list(found) == LISTED[2:]


def test_a_directory_that_may_not_be_read(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As lost+found of a disk of its own."""
    (archive / "lost+found").mkdir()
    opened = os.open

    def refused(path: Path, flags: int) -> int:
        if path.name == "lost+found":
            raise PermissionError(path)
        return opened(path, flags)

    monkeypatch.setattr(os, "open", refused)  # root may read all
    found = local_listings(archive)
    assert next(found) == LISTED[0]
    with pytest.raises(UserError, match=r"lost\+found cannot be read: look at its permissions, or name another"):
        next(found)


def test_a_file_that_is_removed_before_it_is_looked_at(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no descriptor stays open."""
    scandir = os.scandir

    def removed(descriptor: int) -> AbstractContextManager[list[os.DirEntry[str]]]:
        with scandir(descriptor) as found:
            entries = list(found)
        (archive / HOUR / "2.parquet").unlink()
        return nullcontext(entries)

    monkeypatch.setattr(os, "scandir", removed)
    before = os.listdir("/proc/self/fd")
    assert list(local_listings(archive, HOUR)) == [Listing(HOUR, {"1.parquet": 2})]
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files with what they hold, and the directories above them, where a file is gone, too."""
    synced: set[str] = set()
    monkeypatch.setattr(
        atomic_file.os, "fsync", lambda descriptor: synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))
    )
    there, gone = tmp_path / "a" / "b" / "there", tmp_path / "c" / "gone"
    for path in (there, gone):
        path.parent.mkdir(parents=True)
    there.touch()
    fsync_files([there, gone, tmp_path / "d" / "gone"])
    assert {there, there.parent, there.parent.parent, gone.parent, tmp_path, Path("/")} <= set(map(Path, synced))
