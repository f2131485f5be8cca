"""`highwater pipeline rollup --archive`: the records of a table, each once, whatever happens to its files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from archived import in_table, in_topic
from conftest import FOREVER, started, wait_until
from deltalake import DeltaTable
from pipeline_process import pipeline_process
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQueryListener
from rollups import HOURLY, SCHEMA, expected, flight, latest, options, records

from highwater.cli.local_cluster import LocalCluster
from highwater.client.blocking import Admin, Producer
from highwater.errors import UserError
from highwater.spark.pipelines import archive, rollup
from highwater.spark.pipelines.archive import ArchiveFormat, ArchiveOptions
from highwater.spark.pipelines.rollup import RollupOptions, TopicSink, run
from highwater.spark.pipelines.rollups import transactions_read
from highwater.spark.pipelines.rollups.transactions_read import TransactionsRead
from highwater.spark.pipelines.running.query_run import run_query

pytestmark = pytest.mark.timeout(1200)  # many small jobs of Spark


NOWHERE = "127.0.0.1:1"  # where no broker is


def send_old(cluster: LocalCluster, topic: str, rows: Iterable[dict[str, Any]]) -> None:
    """With the times that the values say, so that the days of the archive are over."""
    with Producer(cluster.bootstrap) as producer:
        for row in rows:
            time = datetime.fromisoformat(row["time"])
            producer.send(topic, json.dumps(row).encode(), key=b"k", timestamp_ms=int(time.timestamp() * 1000))


def archive_topics(cluster: LocalCluster, directory: Path, **more: Any) -> None:
    to, checkpoint = str(directory / "archive"), str(directory / "archive.checkpoint")
    archive.run(ArchiveOptions(**{"bootstrap": cluster.bootstrap, "to": to, "checkpoint": checkpoint, **more}))


def of_archive(cluster: LocalCluster, topic: str, directory: Path, /, **more: Any) -> RollupOptions:
    return options(cluster, topic, directory, **{"archive": str(directory / "archive"), **more})


def counts(cluster: LocalCluster, topic: str) -> list[int]:
    """The values of `count`. Spark may write one again when the watermark has moved."""
    return list(dict.fromkeys(value["count"] for _, value in records(cluster, topic)))


@pytest.mark.long
def test_an_archive_counts_each_record_once_whatever_merges_its_files(
    cluster: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    """Also where they are merged while the rollup is among the files that it began with."""
    for name in (topic, f"{topic}-other"):
        admin.create_topic(name, 2, 1, FOREVER)
        send_old(cluster, name, (flight(number) for number in range(200)))
    admin.create_topic(f"{topic}-out", 1, 1)
    both = [topic, f"{topic}-other"]
    archive_topics(cluster, tmp_path, topic=both, max_offsets_per_trigger=50)
    given = of_archive(
        cluster, topic, tmp_path, to_topic=f"{topic}-out", option=["maxFilesPerTrigger=3"], schema=SCHEMA, **HOURLY
    )
    table = DeltaTable(tmp_path / "archive")

    def merge() -> None:
        table.update_incremental()
        many = len(table.file_uris())
        archive_topics(cluster, tmp_path, topic=both, compact=True)
        table.update_incremental()
        assert len(table.file_uris()) < many

    class StoppedError(Exception):
        pass

    class Stopping(TopicSink):
        def write(self, batch: DataFrame, batch_id: int) -> None:
            if batch_id == 2:
                raise StoppedError
            super().write(batch, batch_id)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(rollup, "TopicSink", Stopping)
        with pytest.raises(UserError):
            run(given)
    half = latest(cluster, f"{topic}-out")
    assert 0 < sum(count for count, _ in half.values()) < 200
    merge()
    send_old(cluster, topic, (flight(number) for number in range(200, 300)))
    archive_topics(cluster, tmp_path, topic=both)
    run(given)
    assert latest(cluster, f"{topic}-out") == expected(flight(number) for number in range(300))
    merge()
    count = len(records(cluster, f"{topic}-out"))
    run(given)
    assert len(records(cluster, f"{topic}-out")) == count
    send_old(cluster, topic, (flight(number) for number in range(300, 330)))
    archive_topics(cluster, tmp_path, topic=both)
    run(given)
    assert latest(cluster, f"{topic}-out") == expected(flight(number) for number in range(330))


def test_kill_9_of_a_rollup_that_follows_an_archive(
    cluster: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    admin.create_topic(topic, 1, 1, FOREVER)
    admin.create_topic(f"{topic}-out", 1, 1)
    rows = [flight(number) for number in range(450)]
    send_old(cluster, topic, rows[:300])
    archive_topics(cluster, tmp_path, topic=[topic], max_offsets_per_trigger=60)
    line = ["--archive", str(tmp_path / "archive"), "--topic", topic, "--checkpoint", str(tmp_path / "checkpoint")]
    line += ["--to-topic", f"{topic}-out", "--bootstrap", cluster.bootstrap, "--schema", SCHEMA, "--time-column"]
    line += ["time", "--window", "1h", "--watermark", "100d", "--group-by", "carrier", "--count", "--mean", "delay"]
    line += ["--conf", "spark.sql.shuffle.partitions=2", "--option", "maxFilesPerTrigger=1", "--trigger", "10ms"]

    def counted() -> int:
        return sum(count for count, _ in latest(cluster, f"{topic}-out").values())

    with pipeline_process("rollup", tmp_path) as process:
        process.start(line)
        process.until(lambda: counted() >= 120, every_s=0.3)
        process.kill()
        assert counted() < 450
        send_old(cluster, topic, rows[300:375])
        archive_topics(cluster, tmp_path, topic=[topic], max_offsets_per_trigger=60)
        archive_topics(cluster, tmp_path, topic=[topic], compact=True)
        process.start(line)
        process.until(lambda: counted() == 375, every_s=0.3)
        send_old(cluster, topic, rows[375:])  # it follows
        archive_topics(cluster, tmp_path, topic=[topic])
        process.until(lambda: counted() == 450, every_s=0.3)
        process.terminate()
        process.end(0)
        assert "rollup: " in process.said()
    assert latest(cluster, f"{topic}-out") == expected(rows)


def test_an_archive_needs_no_brokers_and_is_read_as_it_was_when_the_run_began(
    cluster: LocalCluster,
    admin: Admin,
    spark: SparkSession,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Values have a type, and rows go to a table."""
    names = [f"{topic}-a", f"{topic}-b"]
    for name in names:
        admin.create_topic(name, 1, 1, FOREVER)
        send_old(cluster, name, (flight(number) for number in range(120)))
    (tmp_path / "flights.ddl").write_text(SCHEMA)
    typed = {"pattern": f"{topic}-.", "value_schema": str(tmp_path / "flights.ddl")}
    archive_topics(cluster, tmp_path, max_offsets_per_trigger=60, **typed)
    given = of_archive(
        cluster,
        topic,
        tmp_path,
        bootstrap=NOWHERE,
        topic=[],
        pattern=f"{topic}-[ab]",
        option=["maxFilesPerTrigger=1"],
        to_table=str(tmp_path / "out"),
        **HOURLY,
    )

    def later(name: str, frame: DataFrame, *rest: Any) -> None:
        """The archive grows when the query has begun."""
        one = frame.sparkSession

        class Growing(StreamingQueryListener):
            def onQueryStarted(self, event: Any) -> None: ...

            def onQueryTerminated(self, event: Any) -> None: ...

            def onQueryIdle(self, event: Any) -> None: ...

            def onQueryProgress(self, event: Any) -> None:
                if event.progress.batchId == 0 and event.progress.name == "highwater rollup":
                    send_old(cluster, f"{topic}-b", [flight(0, minutes=200 * 24 * 60)])
                    archive_topics(cluster, tmp_path, **typed)

        listener = Growing()
        one.streams.addListener(listener)
        try:
            run_query(name, frame, *rest)
        finally:
            one.streams.removeListener(listener)

    with monkeypatch.context() as patched:
        patched.setattr(rollup, "run_query", later)
        run(given)
    assert len(in_table(tmp_path / "archive")) == 241
    assert not (tmp_path / "out").exists() or not DeltaTable(tmp_path / "out").file_uris()  # the last one ends them all
    run(given)
    found = spark.read.format("delta").load(str(tmp_path / "out")).collect()
    got = {(row.start.strftime("%Y-%m-%dT%H:%M:%S.000Z"), row.carrier): (row["count"], row.mean_delay) for row in found}
    twice = [flight(number) for number in range(120)] * 2
    assert got == expected(twice)
    assert len(found) == len(got)
    more: dict[str, Any] = {"checkpoint": str(tmp_path / "refused"), "to_topic": names[1], "count": True}
    refused = {"schema": "x INT", "value_schema": str(tmp_path / "flights.ddl")}
    for name, value in refused.items():
        with pytest.raises(UserError, match=f"has values with a type: leave --{name.replace('_', '-')} out"):
            run(of_archive(cluster, names[0], tmp_path, **more, **{name: value}))
    with pytest.raises(UserError, match="has not the bytes of its values for --dead-letter: say --bad-records skip"):
        run(of_archive(cluster, names[0], tmp_path, **more, dead_letter=names[1]))


@pytest.mark.long
def test_records_that_are_older_than_the_watermark(
    cluster: LocalCluster,
    admin: Admin,
    spark: SparkSession,
    topic: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """None of an archive, whose files are in no order, unless a micro-batch has some of them only; that is said."""
    admin.create_topic(topic, 1, 1, FOREVER)
    rows = [flight(number) for number in (*range(600, 700), *range(100))]
    for part in (rows[:50], rows[50:100], rows[100:]):  # Spark drops by the watermark of the micro-batch before
        send_old(cluster, topic, part)
        archive_topics(cluster, tmp_path, topic=[topic])
    hourly = {**HOURLY, "watermark": "10m", "schema": SCHEMA}
    said = "; some were older than the watermark and did not count"
    for name, limits in (("all", []), ("some", ["maxFilesPerTrigger=1"])):
        out = tmp_path / name
        more = {"checkpoint": f"{out}.checkpoint", "to_table": str(out), "option": limits, **hourly}
        run(of_archive(cluster, topic, tmp_path, bootstrap=NOWHERE, **more))
        found = spark.read.format("delta").load(str(out)).collect()
        final = [row for row in rows if row["time"] < flight(660)["time"]]  # 10 minutes before the last one
        counted = sum(row["count"] for row in found)
        assert counted == (len(final) if name == "all" else 60)
        assert (said in capsys.readouterr().out) is (name == "some")


@pytest.mark.parametrize("typed", [True, pytest.param(False, marks=pytest.mark.long)])
def test_dead_letters_of_an_archive(
    cluster: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path, typed: bool
) -> None:
    for name in (topic, f"{topic}-out", f"{topic}-dead"):
        admin.create_topic(name, 1, 1)
    (tmp_path / "flights.ddl").write_text(SCHEMA)
    schema = {"value_schema": str(tmp_path / "flights.ddl")} if typed else {"schema": SCHEMA}
    given: dict[str, Any] = {"to_topic": f"{topic}-out", **schema, **HOURLY}
    for number in range(2):
        with Producer(cluster.bootstrap) as producer:
            for value in (json.dumps(flight(number)).encode(), b"no json %d" % number, None, b'{"delay": 1.0}'):
                producer.send(topic, value, key=b"k", headers=[("h", b"x")])
        archive_topics(cluster, tmp_path, topic=[topic])
        if not number:
            with pytest.raises(UserError, match=f"{topic}-0, offset 1: .*; correct --schema, --value-schema or --time"):
                run(of_archive(cluster, topic, tmp_path, **given))
            shutil.rmtree(tmp_path / "checkpoint")
        for _ in range(2):
            run(of_archive(cluster, topic, tmp_path, dead_letter=f"{topic}-dead", **given))
    assert latest(cluster, f"{topic}-out") == expected([flight(0), flight(1)])
    dead = in_topic(cluster.bootstrap, f"{topic}-dead")
    assert [row["value"] for row in dead] == [b"no json 0", b'{"delay": 1.0}', b"no json 1", b'{"delay": 1.0}']
    said = [{pair["key"]: pair["value"].decode() for pair in row["headers"]} for row in dead]
    assert [(one["h"], one["highwater.offset"]) for one in said] == [("x", offset) for offset in "1357"]
    assert said[1]["highwater.error"] == "the value has no time in time"


def test_a_rollup_of_an_archive_that_never_began_leaves_the_checkpoint_to_others(
    cluster: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    admin.create_topic(topic, 1, 1, FOREVER)
    admin.create_topic(f"{topic}-out", 1, 1)
    send_old(cluster, topic, (flight(number) for number in range(10)))
    archive_topics(cluster, tmp_path, topic=[topic])
    given: dict[str, Any] = {"to_topic": f"{topic}-out", "schema": SCHEMA, "count": True}
    with pytest.raises(UserError, match="the values have no field nothing"):
        run(of_archive(cluster, topic, tmp_path, **{**given, "time_column": "nothing"}))
    for _ in range(2):
        run(options(cluster, topic, tmp_path, **given))
    with pytest.raises(UserError, match="is of a rollup of topics: leave --archive out"):
        run(of_archive(cluster, topic, tmp_path, **given))


@pytest.mark.long
@pytest.mark.parametrize("noted", [True, False])
def test_an_archive_that_was_put_back_behind_a_rollup(
    cluster: LocalCluster,
    admin: Admin,
    spark: SparkSession,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    noted: bool,
) -> None:
    """And has other transactions of the same numbers since; `noted`: the checkpoint says which ones it has read."""
    monkeypatch.setattr(transactions_read, "_CLOCKS_MS", 0)
    for name in (topic, f"{topic}-out", f"{topic}-dead"):
        admin.create_topic(name, 1, 1, FOREVER)
    more: dict[str, Any] = {"schema": SCHEMA, "count": True, "dead_letter": f"{topic}-dead"}
    given = of_archive(cluster, topic, tmp_path, to_topic=f"{topic}-out", **more)
    read = tmp_path / "checkpoint" / "rollup" / "read"

    def grow() -> None:
        send_old(cluster, topic, (flight(number) for number in range(10)))
        archive_topics(cluster, tmp_path, topic=[topic])

    grow()
    shutil.copytree(tmp_path / "archive", tmp_path / "backup")
    grow()
    run(given)
    shutil.rmtree(read)  # as of a checkpoint that is older than notes
    run(given)  # nothing new
    assert len([*read.iterdir()]) == 1
    grow()
    archive_topics(cluster, tmp_path, topic=[topic], compact=True)
    DeltaTable(tmp_path / "archive").create_checkpoint()
    run(given)
    assert counts(cluster, f"{topic}-out") == [20, 30]
    if not noted:
        shutil.rmtree(read)
    shutil.rmtree(tmp_path / "archive")
    shutil.rmtree(tmp_path / "archive.checkpoint")
    shutil.copytree(tmp_path / "backup", tmp_path / "archive")
    put_back = r"archive was put back to before version \d+, as from a backup, and checkpoint .* remove the checkpoint"
    for _ in range(5):
        with pytest.raises(UserError, match=put_back):
            run(given)
        grow()
    shutil.rmtree(tmp_path / "checkpoint")
    run(given)
    assert counts(cluster, f"{topic}-out") == [20, 30, 80]


@pytest.mark.long
@pytest.mark.parametrize("to", ["topic", "table"])
def test_an_archive_that_is_put_back_under_a_rollup_that_follows_it(
    cluster: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path, to: str
) -> None:
    admin.create_topic(topic, 1, 1, FOREVER)
    admin.create_topic(f"{topic}-out", 1, 1)
    target = {"to_topic": f"{topic}-out"} if to == "topic" else {"to_table": str(tmp_path / "out")}
    given = of_archive(cluster, topic, tmp_path, trigger="100ms", schema=SCHEMA, **target, **HOURLY)
    said: list[str] = []

    def grow() -> None:
        send_old(cluster, topic, (flight(number) for number in range(10)))
        archive_topics(cluster, tmp_path, topic=[topic])

    def follow() -> None:
        try:
            run(given)
        except UserError as error:
            said.append(str(error))

    def read() -> set[str]:
        """The versions, when the micro-batches that read them are over."""
        checkpoint = tmp_path / "checkpoint"
        batches = [{path.name for path in (checkpoint / log).glob("[0-9]*")} for log in ("commits", "offsets")]
        noted = {path.name.split("-")[0] for path in (checkpoint / "rollup" / "read").glob("*-*")}
        return noted if batches[0] == batches[1] else set()

    grow()
    shutil.copytree(tmp_path / "archive", tmp_path / "backup")
    grow()
    thread = started(follow)
    wait_until(lambda: read() == {"2"}, lambda: (read(), said))
    grow()
    wait_until(lambda: read() == {"3"}, lambda: (read(), said))
    (tmp_path / "archive").rename(tmp_path / "away")
    (tmp_path / "backup").rename(tmp_path / "archive")
    shutil.rmtree(tmp_path / "archive.checkpoint")
    for _ in range(4):
        grow()
    wait_until(lambda: not thread.is_alive(), lambda: (read(), said))
    if "does not exist" in said[0]:  # it has looked between the two
        follow()
    assert "archive was put back to before version 3, as from a backup, and checkpoint" in said[-1]


def test_a_crash_between_what_a_rollup_notes_and_what_it_writes(
    cluster: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    admin.create_topic(topic, 1, 1, FOREVER)
    admin.create_topic(f"{topic}-out", 1, 1)
    given = of_archive(cluster, topic, tmp_path, to_topic=f"{topic}-out", schema=SCHEMA, count=True)
    read = tmp_path / "checkpoint" / "rollup" / "read"

    def nothing_left(*_: object) -> None:
        raise OSError

    for crashed in (TransactionsRead, TopicSink):  # before the note; behind it
        send_old(cluster, topic, (flight(number) for number in range(10)))
        archive_topics(cluster, tmp_path, topic=[topic])
        before = [*read.glob("*")]
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(crashed, "note" if crashed is TransactionsRead else "write", nothing_left)
            with pytest.raises(UserError):
                run(given)
        assert ([*read.glob("*")] == before) is (crashed is TransactionsRead)
        run(given)
    assert counts(cluster, f"{topic}-out") == [10, 20]


@pytest.mark.long
def test_an_archive_that_cannot_be_gone_on_with(
    cluster: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    admin.create_topic(topic, 1, 1, FOREVER)
    admin.create_topic(f"{topic}-out", 1, 1)
    send_old(cluster, topic, (flight(number) for number in range(50)))
    directory = str(tmp_path / "archive")
    given: dict[str, Any] = {"to_topic": f"{topic}-out", "schema": SCHEMA, "count": True}

    def rolled_up(checkpoint: str, **more: Any) -> None:
        run(of_archive(cluster, topic, tmp_path, **{"checkpoint": str(tmp_path / checkpoint), **given, **more}))

    def grow() -> None:
        send_old(cluster, topic, (flight(number) for number in range(10)))
        archive_topics(cluster, tmp_path, topic=[topic])

    with pytest.raises(UserError, match="archive is no archive: it has neither a table nor a directory topic="):
        rolled_up("1")
    archive_topics(cluster, tmp_path, topic=[topic], max_offsets_per_trigger=10)
    grow()
    with pytest.raises(UserError, match=f"archive has no topic nothing; it has {topic}$"):
        rolled_up("1", topic=["nothing"])
    with pytest.raises(UserError, match=f"no topic of .*archive matches --pattern nothing; it has {topic}$"):
        rolled_up("1", topic=[], pattern="nothing")
    rolled_up("1")
    with pytest.raises(UserError, match=f"checkpoint .*1 is of a rollup of --topic {topic}: say that, or take another"):
        rolled_up("1", topic=[], pattern=".*")
    with pytest.raises(UserError, match=r"checkpoint .*1 is of a rollup of an archive: say --archive, or take another"):
        rolled_up("1", archive=None)
    rolled_up("topics", archive=None)
    with pytest.raises(UserError, match=r"checkpoint .*topics is of a rollup of topics: leave --archive out, or take"):
        rolled_up("topics")

    taken = r"version \d+ of .*archive takes records away, .* stays counted: remove checkpoint .*/1 and what"
    changes: tuple[Callable[[], object], ...] = (
        lambda: spark.sql(f"RESTORE TABLE delta.`{directory}` TO VERSION AS OF 3"),
        lambda: spark.sql(f"DELETE FROM delta.`{directory}` WHERE offset < 3"),
    )
    for change in changes:
        change()
        with pytest.raises(UserError, match=taken):
            rolled_up("1")
        shutil.rmtree(tmp_path / "1")
        rolled_up("1")
    # Files that were merged are removed before the rollup has read them.
    grow_and_stop = {"option": ["maxFilesPerTrigger=1"], "to_topic": f"{topic}-out"}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(TopicSink, "write", lambda *_: 1 / 0)
        with pytest.raises(UserError):
            rolled_up("2", **grow_and_stop)
    archive_topics(cluster, tmp_path, topic=[topic], compact=True)
    DeltaTable(directory).vacuum(0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(UserError, match="a file of .*archive that was still to be read is gone, as after VACUUM"):
        rolled_up("2", **grow_and_stop)
    shutil.rmtree(directory)
    shutil.rmtree(tmp_path / "archive.checkpoint")
    grow()
    with pytest.raises(UserError, match="checkpoint .*1 is of a rollup of another archive than .*archive is now"):
        rolled_up("1")
    shutil.rmtree(directory)
    shutil.rmtree(tmp_path / "archive.checkpoint")
    archive_topics(cluster, tmp_path, topic=[topic], format=ArchiveFormat.PARQUET)
    with pytest.raises(UserError, match="archive has plain Parquet files, .*[(]archive --format delta"):
        rolled_up("3")
