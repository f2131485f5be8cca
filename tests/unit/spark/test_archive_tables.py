"""What an archive's table says of itself, what a micro-batch adds to it, and where Delta Lake comes from."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from highwater.client.topic_partition import TopicPartition
from highwater.errors import UserError
from highwater.spark.offsets.stream_offset import StreamOffset
from highwater.spark.pipelines.archives.conflicts import Conflict, suspects
from highwater.spark.pipelines.archives.found import format_of
from highwater.spark.pipelines.archives.history import Archived, Transaction, archived_by, begun, broken
from highwater.spark.pipelines.archives.micro_batches import Planned, nothing_new, planned, written_offset
from highwater.spark.pipelines.archives.offsets import merged_offsets
from highwater.spark.pipelines.archives.options import ArchiveFormat
from highwater.spark.pipelines.archives.snapshots import checkpointed, snapshot_partitions
from highwater.spark.pipelines.session import delta_session, jars, s3a
from highwater.spark.pipelines.session.delta_session import SETTINGS, DeltaSettings, NoDeltaError, delta_settings
from highwater.spark.pipelines.session.jars import fetched_jars
from highwater.spark.pipelines.session.s3a import s3a_settings

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
WRITTEN = Archived("l", 8, {"a": {0: 1200, 1: 7}}, {"a": "5f"})


def by_archive(version: int, archived: Archived) -> Transaction:
    return Transaction(version, "WRITE", archived.to_json())


# What a table says


def test_the_last_transaction_of_an_archive_counts() -> None:
    others = [
        Transaction(12, "OPTIMIZE", None),
        Transaction(11, "DELETE", "by hand"),
        Transaction(10, "WRITE", "[1]"),
        Transaction(9, "WRITE", '{"job": 7}'),
    ]
    before = by_archive(7, Archived("l", 7, {"a": {0: 1000}}))
    assert archived_by([*others, by_archive(8, WRITTEN), before]) == (8, WRITTEN)
    assert archived_by(others) is None
    assert archived_by([]) is None


def test_a_restored_table_is_not_what_its_last_archive_says() -> None:
    assert archived_by([Transaction(9, "RESTORE", None), by_archive(8, WRITTEN)]) is None
    after = begun({"a": {0: 900}}, restored=9)
    assert archived_by([by_archive(10, after), Transaction(9, "RESTORE", None), by_archive(8, WRITTEN)]) == (10, after)


def test_who_begins_with_the_same_contents_begins_the_same() -> None:
    assert begun({"a": {0: 5, 1: 6}}) == begun({"a": {0: 5, 1: 6}})
    several = [begun({}), begun({"a": {0: 5}}), begun({"a": {0: 6}}), begun({}, restored=3), begun({}, restored=4)]
    assert len({one.lineage for one in several}) == len(several)


def test_transactions_that_do_not_go_on_with_each_other() -> None:
    def numbered(version: int, lineage: str, number: int) -> Transaction:
        return by_archive(version, Archived(lineage, number))

    def restored(version: int) -> Transaction:
        return Transaction(version, "RESTORE", None)

    whole = [numbered(9, "l", 8), Transaction(8, "OPTIMIZE", None), numbered(7, "l", 7), numbered(6, "l", 6)]
    assert broken([]) is broken(whole) is broken(whole[:2]) is None
    lacks_7 = [numbered(9, "l", 9), *whole[:2], whole[-1]]
    assert broken(lacks_7) == (whole[0], whole[-1])
    # RESTORE mends it, and what begins behind that has numbers of its own.
    assert broken([restored(10), *lacks_7]) is None
    begins = numbered(11, "m", 1)
    assert broken([begins, restored(10), *lacks_7]) is None
    assert broken([numbered(11, "l", 10), restored(10), *lacks_7]) == (numbered(11, "l", 10), restored(10))
    # Of two pipelines that both went on: what was whole is before the first of them.
    both = [numbered(13, "m", 2), numbered(12, "l", 10), begins, restored(10)]
    assert broken(both) == (both[1], begins)


def test_transactions_that_may_have_missed_what_was_committed_before_them() -> None:
    def merged(version: int, begun: int | None) -> Transaction:
        return Transaction(version, "OPTIMIZE", None, begun)

    assert suspects([], 4) == suspects([merged(9, 8)], 4) == []
    late, silent = merged(9, 5), merged(8, None)
    assert suspects([late, silent], 4) == [(silent, 4), (late, 5)]
    assert suspects([late, silent], 8) == [(late, 5)]  # begun before what is looked at
    assert suspects([late, silent], 9) == suspects([merged(5, None)], 4) == []
    # RESTORE mends what was before it, and may itself have been begun at any version.
    restored = Transaction(10, "RESTORE", None)
    assert suspects([restored, late, silent], 4) == []
    assert suspects([merged(12, None), restored, late], 4) == [(merged(12, None), 10)]
    # What an archive writes takes nothing out.
    assert suspects([by_archive(9, WRITTEN)], 4) == []


def test_what_is_said_of_rows_that_are_there_twice() -> None:
    wrong = Transaction(56, "OPTIMIZE", None, 54, "delta-rs:py-1.6.6")
    assert Conflict(wrong, 55).sentence("/a", "start again") == (
        "version 56 of /a (OPTIMIZE by delta-rs:py-1.6.6) replaces files that version 55 had replaced already, so "
        "their rows may be there twice: RESTORE it to version 55; start again; let one engine at a time merge files "
        "and change rows"
    )
    unknown = Conflict(Transaction(7, "", None), 4).sentence("/a", "start again")
    assert unknown.startswith("version 7 of /a (a transaction by an unknown engine) replaces files that version 4 ")


# What a micro-batch adds


def test_what_a_micro_batch_reads_stands_in_the_checkpoint() -> None:
    first = StreamOffset({A0: 7}, {A0: 7}, {"a": "5f"})  # where the query begins
    second = StreamOffset({A0: 10, B0: 4}, {B0: 2}, {"a": "5f", "b": "6e"})  # finds b
    third = StreamOffset({A0: 12, B0: 4}, None, {"a": "5f", "b": "6e"})
    anew = StreamOffset({A0: 3, B0: 4}, {A0: 0}, {"a": "7d", "b": "6e"})
    assert planned(None, first) == Planned({A0: (7, 7)}, {"a": "5f"}, frozenset({A0}))
    assert planned(first, second) == Planned({A0: (7, 10), B0: (2, 4)}, {"a": "5f", "b": "6e"}, frozenset({B0}))
    assert planned(second, third) == Planned({A0: (10, 12), B0: (4, 4)}, {"a": "5f", "b": "6e"})
    assert planned(third, anew) == Planned({A0: (0, 3), B0: (4, 4)}, {"a": "7d", "b": "6e"}, frozenset({A0}))
    # Of a version that did not write down where a query begins: from the first offset, for all that is known.
    assert planned(None, StreamOffset({A0: 9})).ranges == {A0: (0, 9)}


def test_offsets_that_cannot_be_read() -> None:
    """Spark does not make its checkpoint durable."""
    whole = b'v1\n{"batchWatermarkMs":0}\n{"a":{"0":7}}'
    assert written_offset(whole, "c", 3) == StreamOffset({A0: 7})
    for text in (b"", b"v1", whole[:-2], b"v1\n{}\n-", b"v1\n{}\n[1]", b"v1\n\x00\xff"):
        with pytest.raises(UserError, match="^offsets/3 in checkpoint c is not whole, .*: remove the checkpoint"):
            written_offset(text, "c", 3)
    with pytest.raises(UserError, match="checkpoint c has offsets in Spark's format v2, and an archive reads v1"):
        written_offset(b"v2\n{}\n{}", "c", 3)


def test_what_of_a_micro_batch_is_lacking() -> None:
    reads = Planned({A0: (0, 10), A1: (5, 5), B0: (7, 9)}, {"a": "5f"})
    assert reads.lacking({}).ranges == {A0: (0, 10), B0: (7, 9)}
    archived = {"a": {0: 4}, "b": {0: 9}}
    lacking = reads.lacking(archived)
    assert lacking == Planned({A0: (0, 10)}, {"a": "5f"})
    assert reads.archived_in_part(archived) == [("a", 0, 4), ("b", 0, 9)]  # b's are there, and read all the same
    assert lacking.offsets() == [("a", 0, 9)]
    assert reads.lacking({"a": {0: 10}}).topic_ids == {}
    assert reads.lacking({"a": {0: 10}, "b": {0: 12}}).ranges == {}
    assert reads.archived_in_part({"a": {0: 0}, "b": {0: 7}}) == []


def test_a_micro_batch_that_leaves_a_gap() -> None:
    reads = Planned({A0: (5, 10), A1: (5, 5), B0: (7, 9)}, {}, frozenset({A0, A1, B0}))
    assert reads.beyond({}) == []  # the archive begins with it
    assert reads.beyond({"a": {0: 5, 1: 9}, "b": {0: 8}}) == []
    assert reads.beyond({"a": {0: 4, 1: 5}, "b": {1: 3}}) == [(A0, 5, 4)]
    # A query that goes on has read what is before, whether the archive knows the partition or was put back to before.
    goes_on = Planned(reads.ranges, {}, frozenset({B0}))
    assert goes_on.beyond({"a": {1: 5}}) == [(A0, 5, 0)]
    # Where nothing new comes, what the query has done is to be there all the same.
    last = StreamOffset({A0: 10, A1: 5}, {A1: 5}, {"a": "5f"})
    assert nothing_new(last).beyond({"a": {0: 10, 1: 5}}) == []
    assert nothing_new(last).beyond({"a": {0: 7}}) == [(A0, 10, 7), (A1, 5, 0)]
    assert nothing_new(last).lacking({}).ranges == {}


def test_a_partition_that_is_taken_up_at_its_end_is_noted() -> None:
    """Else it could not be told from one that the archive has lost."""
    taken_up = Planned({A0: (5, 5), A1: (0, 0)}, {"a": "5f"}, frozenset({A0, A1}))
    noted = taken_up.lacking({})
    assert noted == Planned({A0: (5, 5)}, {"a": "5f"}, frozenset({A0}))
    offsets = merged_offsets({}, noted.offsets())
    assert offsets == {"a": {0: 5}}
    assert taken_up.lacking(offsets).ranges == {}
    assert Planned({A0: (5, 9)}, {}).beyond(offsets) == []


# What lies in a directory


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ([], None),
        (["notes.txt", "_SUCCESS"], None),
        (["_delta_log", "topic=a"], ArchiveFormat.DELTA),
        (["_commits"], ArchiveFormat.PARQUET),
        (["topic=a"], ArchiveFormat.PARQUET),
    ],
)
def test_the_format_of_a_directory(names: list[str], found: ArchiveFormat | None) -> None:
    assert format_of(names) is found


# Where Delta Lake comes from


def test_what_the_user_has_given_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(delta_session, "fetched_jars", lambda *_: [Path("/j/delta.jar"), Path("/j/storage.jar")])
    monkeypatch.setattr(jars, "spark_home", lambda: str(tmp_path))
    monkeypatch.setattr(delta_session, "coordinates", lambda: "io.delta:delta-spark_4.2_2.13:1")
    found = "/j/delta.jar,/j/storage.jar"
    assert delta_settings({}) == {**SETTINGS, "spark.jars": found}
    extension, ours = "spark.sql.extensions", SETTINGS["spark.sql.extensions"]
    given = {"spark.jars": "/own/udf.jar", extension: "org.Own"}
    assert delta_settings(given) == {**SETTINGS, extension: f"org.Own,{ours}", "spark.jars": f"/own/udf.jar,{found}"}
    for own in ({"spark.jars.packages": "io.delta:delta-spark_2.13:9"}, {"spark.jars": "/own/delta-spark_2.13-9.jar"}):
        assert delta_settings(own) == SETTINGS
    assert delta_settings({"spark.driver.extraClassPath": "/own/delta-spark_2.13-9.jar"}) == SETTINGS
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "io.delta_delta-spark_2.13-9.jar").touch()
    assert delta_settings({}) == SETTINGS
    (tmp_path / "jars" / "io.delta_delta-spark_2.13-9.jar").unlink()
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")  # under spark-submit jars come too late
    assert delta_settings({}) == SETTINGS


def fetching(monkeypatch: pytest.MonkeyPatch, cache: Path, result: Any) -> list[list[str]]:
    lines: list[list[str]] = []

    def run(line: list[str], **_: Any) -> Any:
        lines.append(line)
        if isinstance(result, Exception):
            raise result
        if result is None:
            (ivy,) = [part.partition("=")[2] for part in line if part.startswith("spark.jars.ivy=")]
            into = Path(ivy, "jars")
            into.mkdir()
            (into / "delta-spark.jar").touch()
            return subprocess.CompletedProcess(line, 0, "", "")
        return result

    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setattr(jars.subprocess, "run", run)
    monkeypatch.setattr(delta_session, "coordinates", lambda: "io.delta:delta-spark_4.2_2.13:1")
    for module in (jars, s3a):
        monkeypatch.setattr(module, "spark_home", lambda: "/spark")
    return lines


def test_jars_are_fetched_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lines = fetching(monkeypatch, tmp_path, None)
    given = {"spark.jars.repositories": "mine", "spark.jars.packages": "other", "spark.app.name": "x"}
    for _ in range(2):
        (jar,) = fetched_jars(["io.delta:delta-spark_4.2_2.13:1", "second:one:1"], ["of:spark"], given)
        assert jar == tmp_path / "highwater" / "io.delta_delta-spark_4.2_2.13_1" / "delta-spark.jar"
        assert jar.exists()
    (line,) = lines
    assert line[0] == "/spark/bin/spark-submit"
    assert "spark.jars.repositories=mine" in line
    assert "spark.jars.packages=io.delta:delta-spark_4.2_2.13:1,second:one:1" in line
    assert "spark.jars.excludes=of:spark" in line
    assert not any("other" in part or part == "x" for part in line)
    assert [path.name for path in (tmp_path / "highwater").iterdir()] == ["io.delta_delta-spark_4.2_2.13_1"]


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (
            subprocess.CompletedProcess([], 1, "", "::\nunresolved dependency: io.delta#x;1: not found]\n"),
            "io.delta#x;1",
        ),
        (subprocess.CompletedProcess([], 1, "", "java.net.ConnectException: no route\n"), "ConnectException: no route"),
        (subprocess.CompletedProcess([], 0, "", ""), "Spark does not say why"),
        (subprocess.TimeoutExpired([], 600), "nothing came for 600 s"),
    ],
)
def test_jars_that_cannot_be_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, result: Any, said: str) -> None:
    fetching(monkeypatch, tmp_path, result)
    with pytest.raises(NoDeltaError, match=rf"cannot be fetched: .*{said}.*; say where .*or write plain .*--format"):
        delta_settings({})
    later = DeltaSettings()
    assert later({}) == {}
    with pytest.raises(NoDeltaError, match=said):
        later.check(None)  # type: ignore[arg-type]
    assert list((tmp_path / "highwater").iterdir()) == []


def test_s3_gets_its_client_where_a_path_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lines = fetching(monkeypatch, tmp_path, None)
    assert s3a_settings(["/data/archive", "s3a-like"], {}) == {}
    assert s3a_settings(["s3a://b/archive"], {"spark.jars.packages": "org.apache.hadoop:hadoop-aws:9"}) == {}
    assert not lines
    found = s3a_settings(["/data", "s3a://b/archive"], {"spark.jars": "/j/delta.jar"})
    assert re.fullmatch(r"/j/delta\.jar,.*/org\.apache\.hadoop_hadoop-aws_[^/]*/delta-spark\.jar", found["spark.jars"])
    assert any("software.amazon.awssdk:bundle" in part for part in lines[0])


def test_what_a_transaction_says_is_read_back() -> None:
    assert json.loads(WRITTEN.to_json())["highwater"]["offsets"] == {"a": {"0": 1200, "1": 7}}
    assert archived_by([by_archive(1, WRITTEN)]) == (1, WRITTEN)


@pytest.mark.parametrize(
    ("files", "parallel", "tasks"),
    [
        (0, 2, 2),
        (40_000, 2, 2),
        (40_001, 2, 3),
        (1_000_000, 2, 50),
        (1_000_000, 8, 50),
        (0, 200, 50),
        (5_000_000, 8, 250),
    ],
)
def test_a_task_puts_so_many_files_of_a_table_together(files: int, parallel: int, tasks: int) -> None:
    assert snapshot_partitions(files, parallel) == tasks


@pytest.mark.parametrize(
    ("checkpoint", "files"),
    [(None, 0), ('{"version": 20, "size": 1000003, "parts": 2}', 1000003), ("", 0), ('{"version": 20}', 0), ("[]", 0)],
)
def test_the_last_checkpoint_says_how_large_a_table_is(checkpoint: str | None, files: int) -> None:
    class Log:
        def exists(self, path: str) -> bool:
            return path == "/table/_delta_log/_last_checkpoint" and checkpoint is not None

        def read(self, path: str) -> bytes:
            assert checkpoint is not None
            return checkpoint.encode()

    assert checkpointed(Log(), "/table") == files
