"""Files of this machine without the JVM, and what Hadoop's file systems say of theirs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from highwater.log_storage import durable
from highwater.spark.pipelines.hadoop_files import FileStatus, keep_files, local_files, statuses

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


def test_files_below_a_directory(tmp_path: Path) -> None:
    for path, content in (
        ("topic=a/date=2026-11-21/hour=02/1.parquet", b"12"),
        ("topic=a/date=2026-11-21/hour=02/.1.parquet.crc", b"1"),
        ("_commits/1.json", b"1"),
        ("topic=a/_temporary/0/2.parquet", b"1"),
        ("notes", b""),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    assert sorted(local_files(tmp_path), key=lambda one: one.path) == [
        FileStatus("notes", 0),
        FileStatus("topic=a/date=2026-11-21/hour=02/1.parquet", 2),
    ]
    assert list(local_files(tmp_path / "nothing")) == []


def test_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files with what they hold, and the directories above them, where a file is gone, too."""
    synced: set[str] = set()
    monkeypatch.setattr(durable.os, "fsync", lambda descriptor: synced.add(os.readlink(f"/proc/self/fd/{descriptor}")))
    there, gone = tmp_path / "a" / "b" / "there", tmp_path / "c" / "gone"
    for path in (there, gone):
        path.parent.mkdir(parents=True)
    there.touch()
    keep_files([there, gone, tmp_path / "d" / "gone"])
    assert {there, there.parent, there.parent.parent, gone.parent, tmp_path, Path("/")} <= set(map(Path, synced))
