"""Pipelines that run for long: what stops them, and what they tell meanwhile."""

from __future__ import annotations

import re
import socket
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any

import psutil
import pytest
from archived import in_table, in_topic
from conftest import FOREVER, send
from pipeline_process import pipeline_process

from highwater.cli.local_cluster import LocalCluster
from highwater.client.blocking import Admin
from highwater.errors import UserError
from highwater.spark.pipelines.command import termination
from highwater.spark.pipelines.command.pipeline_options import StreamOptions
from highwater.spark.pipelines.running import concurrent_query as concurrent_query_module
from highwater.spark.pipelines.running.concurrent_query import concurrent_query
from highwater.spark.pipelines.running.graceful_stop import StoppableForeachBatch


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def got(port: int, path: str) -> str:
    """Empty until it answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=10) as answer:
            return str(answer.read().decode())
    except urllib.error.URLError:
        return ""


def test_an_archive_that_is_stopped(cluster: LocalCluster, admin: Admin, topic: str, tmp_path: Path) -> None:
    """By SIGTERM, while it waits for more, and in the middle of its work: micro-batches are whole, nothing is lost."""
    admin.create_topic(topic, 2, 1, FOREVER)
    send(cluster, topic, range(500))
    port = free_port()
    to, checkpoint = tmp_path / "archive", tmp_path / "checkpoint"
    given = ["--bootstrap", cluster.bootstrap, "--topic", topic, "--to", str(to), "--checkpoint", str(checkpoint)]
    with pipeline_process("archive", tmp_path) as process:
        process.start([*given, "--trigger", "100ms", "--metrics-listen", f":{port}"])
        process.until(lambda: 'records_total{pipeline="archive"} 500.0' in got(port, "metrics"), every_s=0.2)
        assert f'lag_offsets{{pipeline="archive",topic="{topic}"}} 0.0' in got(port, "metrics")
        assert got(port, "healthz") == "ok\n"
        process.terminate()
        process.end(0)
        assert re.search(r"^archive: 500 records in \d micro-batch(es)?, \d+\.\d s, stopped$", process.said(), re.M)
        # A run that has an end says with its status that it did not come to it.
        send(cluster, topic, range(500))
        before = len(list((checkpoint / "commits").glob("[0-9]*")))
        process.start([*given, "--max-offsets-per-trigger", "20"])
        process.until(lambda: len(list((checkpoint / "commits").glob("[0-9]*"))) > before + 2)
        process.terminate()
        process.end(termination.STATUS)
        assert re.search(
            r"^archive: \d+ records in \d+ micro-batches, .* offsets behind, stopped$", process.said(), re.M
        )
        assert "Traceback" not in process.said()
        assert 540 <= len(in_table(to)) < 1000
        process.start(given)
        process.end(0)
    assert in_table(to) == in_topic(cluster.bootstrap, topic)


def test_a_rollup_that_is_stopped(cluster: LocalCluster, admin: Admin, topic: str, tmp_path: Path) -> None:
    """Where Spark's own sink writes the rows. And one whose JVM is gone says so."""
    admin.create_topic(topic, 1, 1, FOREVER)
    send(cluster, topic, range(100))
    checkpoint = tmp_path / "checkpoint"
    given = ["--bootstrap", cluster.bootstrap, "--topic", topic, "--to-parquet", str(tmp_path / "rows"), "--count"]
    given += ["--schema", "number BIGINT", "--bad-records", "skip", "--window", "1h", "--trigger", "100ms"]
    given += ["--checkpoint", str(checkpoint)]
    with pipeline_process("rollup", tmp_path) as process:
        group = process.start(given)
        process.until((checkpoint / "commits" / "0").exists)
        (jvm,) = (one for one in psutil.Process(group).children() if one.name() == "java")
        jvm.kill()
        process.end(1)
        assert "highwater: the JVM of Spark's driver has ended: it was killed, or had too little" in process.said()
        send(cluster, topic, range(50))
        process.start(given)
        process.until((checkpoint / "commits" / "1").exists)
        process.terminate()
        process.end(0)
        assert re.search(r"^rollup: 50 records in 1 micro-batch, \d+\.\d s, stopped$", process.said(), re.M)


class Query:
    """Of Spark, and the builder that starts it: ends with the micro-batch that its gate refuses."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.isActive = True
        self.status = {"isTriggerActive": False}
        self.lastProgress = None
        self.stopped = 0
        self.gate: Any = None

    def foreachBatch(self, gate: StoppableForeachBatch) -> Query:
        self.gate = gate
        return self

    def option(self, *_: str) -> Query:
        return self

    def queryName(self, _: str) -> Query:
        return self

    def trigger(self, **_: str) -> Query:
        return self

    def start(self) -> Query:
        return self

    def begin(self) -> None:
        """A micro-batch. Spark ends the query with whatever it raises."""
        with suppress(Exception):
            self.gate(None, 1)
            return
        self.isActive = False

    def exception(self) -> Exception | None:
        return None if self.isActive else Exception("it failed")

    def stop(self) -> None:
        self.isActive = False
        self.stopped += 1


class Frame:
    def __init__(self, active: list[Query], writer: Query) -> None:
        self.writeStream = writer
        self.sparkSession = self.streams = self
        self.active = active


def test_after_sigterm_a_query_beside_does_not_cut_the_other_one_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one has nothing more to do, the other is in the middle of a micro-batch."""
    monkeypatch.setattr(concurrent_query_module, "_POLL_S", 0.01)
    monkeypatch.setattr(concurrent_query_module, "qualified", lambda _, path: path)
    main, letters = Query("highwater rollup"), Query("highwater rollup dead letters")
    frame: Any = Frame([main, letters], letters)
    options = StreamOptions(topic=["t"], checkpoint="c", trigger="100ms")
    with termination.heeded(), concurrent_query("rollup", "rollup dead letters", frame, lambda *_: None, options):
        termination._note(15, None)
        letters.begin()
        Event().wait(0.2)
        assert main.isActive
    assert not main.stopped


def test_a_query_beside_that_fails_ends_the_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrent_query_module, "_POLL_S", 0.01)
    monkeypatch.setattr(concurrent_query_module, "qualified", lambda _, path: path)
    main, letters = Query("highwater rollup"), Query("highwater rollup dead letters")
    frame: Any = Frame([main, letters], letters)
    options = StreamOptions(topic=["t"], checkpoint="c", trigger="100ms")

    def fails(*_: Any) -> None:
        raise ValueError

    def until_main_ends() -> None:
        with concurrent_query("rollup", "rollup dead letters", frame, fails, options):
            letters.begin()
            while main.isActive:
                Event().wait(0.01)

    with pytest.raises(UserError, match="it failed"):
        until_main_ends()
