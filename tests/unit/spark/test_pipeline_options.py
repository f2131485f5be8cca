"""A pipeline's options are declared once: for Python, for `highwater pipeline` and for `spark-submit`."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from highwater.cli.app import app
from highwater.cli.pipeline import NAMES
from highwater.errors import UserError
from highwater.spark.pipelines.command.pipeline_command import pipeline_command, submitted
from highwater.spark.pipelines.command.pipeline_options import PipelineOptions, StreamOptions, trigger_of
from highwater.spark.pipelines.mirror import MirrorOptions
from highwater.spark.pipelines.rollup import Emit, RollupOptions
from highwater.spark.pipelines.rollups.query import interval
from highwater.spark.pipelines.session import spark_session
from highwater.spark.pipelines.session.spark_errors import cause_of
from highwater.spark.pipelines.session.spark_session import check_java


@dataclass(frozen=True, kw_only=True)
class CopyOptions(StreamOptions):
    to: Annotated[str, typer.Option(help="where to")]


def ran(argv: list[str]) -> tuple[int, CopyOptions | None]:
    found: list[CopyOptions] = []
    status = submitted(pipeline_command(CopyOptions, found.append, "Copy."), argv)
    return status, found[0] if found else None


def test_a_command_line_becomes_options(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["--topic", "a", "--topic", "b", "--checkpoint", "c", "--to", "d", "--option", "highwater.x=1=2"]
    status, options = ran([*line, "--max-offsets-per-trigger", "7", "--bootstrap", "h:1"])
    assert status == 0
    assert options == CopyOptions(
        topic=["a", "b"],
        checkpoint="c",
        to="d",
        option=["highwater.x=1=2"],
        max_offsets_per_trigger=7,
        bootstrap="h:1",
    )
    assert options is not None
    assert options.source_options() == {
        "highwater.bootstrap.servers": "h:1",
        "startingOffsets": "earliest",
        "subscribe": "a,b",
        "maxOffsetsPerTrigger": "7",
        "highwater.x": "1=2",
    }
    assert CopyOptions(pattern="x.*", checkpoint="c", to="d").source_options()["subscribePattern"] == "x.*"
    told = CopyOptions(topic=["a"], checkpoint="c", to="d", commit_offsets_to_group="g")
    assert told.source_options()["commitOffsetsToGroup"] == "g"
    assert ran(["--help"]) == (0, None)
    shown = capsys.readouterr().out
    assert shown.index("--to ") < shown.index("--topic") < shown.index("--master")  # its own come first


@pytest.mark.parametrize(
    ("argv", "status", "message"),
    [
        (["--topic", "a", "--to", "d"], 2, "missing option '--checkpoint'"),
        (["--to", "d", "--checkpoint", "c"], 1, "say which topics to read: with --topic, or with --pattern"),
        (["--topic", "a", "--pattern", "b", "--to", "d", "--checkpoint", "c"], 1, "say which topics to read"),
        (["--topic", "a", "--to", "d", "--checkpoint", "c", "--conf", "x"], 1, "'x': write --conf KEY=VALUE"),
        (["--topic", "a", "--to", "d", "--checkpoint", "c", "--trigger", "5d"], 1, "--trigger is '5d'; it can be"),
        (
            ["--topic", "a", "--to", "d", "--checkpoint", "c", "--commit-offsets-to-group", " "],
            1,
            "-to-group is empty:",
        ),
    ],
)
def test_a_wrong_command_line_is_told_in_one_sentence(
    argv: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ran(argv) == (status, None)
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_triggers() -> None:
    assert trigger_of("available-now") == {"availableNow": True}
    assert trigger_of("500ms") == {"processingTime": "500 milliseconds"}
    assert trigger_of("2 h") == {"processingTime": "2 hours"}


def test_every_pipeline_has_a_command_and_its_help_needs_no_pyspark() -> None:
    result = CliRunner().invoke(app, ["pipeline", "--help"])
    assert result.exit_code == 0, result.output
    assert all(name in result.output for name in NAMES)
    for name in NAMES:
        result = CliRunner().invoke(app, ["pipeline", name, "--help"])
        assert result.exit_code == 0, result.output
        assert "--master" in result.output
    hidden = "import sys; sys.modules['pyspark'] = None; from highwater.cli.main import main; main()"
    line = [sys.executable, "-c", hidden, "pipeline", "rollup", "--help"]
    assert subprocess.run(line, capture_output=True, check=True, timeout=110).stdout
    line[-1:] = ["--topic", "t", "--checkpoint", "c", "--to-parquet", "p", "--window", "1h", "--count"]
    done = subprocess.run(line, capture_output=True, check=False, text=True, timeout=110)
    assert done.returncode == 1
    assert "pipelines run on Spark, which is not installed: pip install 'highwater-log[spark]' (Java 17" in done.stderr
    assert done.stderr.count("\n") == 1


def test_java_that_spark_cannot_run_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(UserError, match="holds no bin/java; Spark needs Java 17 or newer: install it"):
        check_java()
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    for version, taken in (("1.8.0_412", False), ("11.0.2", False), ("17.0.1", True), ("21", True)):
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-01' >&2\n")
        java.chmod(0o755)
        if taken:
            check_java()
        else:
            with pytest.raises(UserError, match="Spark needs Java 17 or newer"):
                check_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="there is no java on the PATH"):
        check_java()


def test_the_sentence_in_what_spark_says() -> None:
    assert cause_of("a\n  b.c.UnknownTopicError: topic 'x' does not exist\n\nDriver stacktrace:") == (
        "topic 'x' does not exist"
    )
    assert cause_of("Traceback\n  File x\nPermissionError: [Errno 13] Permission denied: 'f'\n\tat org.x.Y") == (
        "[Errno 13] Permission denied: 'f'"
    )
    java = "An error occurred while calling o1.save.\n: io.delta.SomeException: [SOME] the sentence\n\tat org.x.Y"
    assert cause_of(java) == "SomeException: [SOME] the sentence"
    assert cause_of("An error occurred while calling o1.save.\n: java.lang.Crash\n\tat org.x.Y") == "Crash"
    failed = (
        "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: An exception was raised by the Python "
        "Proxy. Return Message: Traceback (most recent call last):\n  File x\n"
        "py4j.protocol.Py4JJavaError: An error occurred while calling o7.parquet.\n"
        ": org.apache.spark.SparkException: Job aborted.\n\tat org.x.Y\n"
        "Caused by: org.apache.spark.SparkException: Task failed.\n\tat org.x.Y\n"
        "Caused by: java.io.IOException: No space left on device\n\t... 9 more\n\n\tat py4j.Protocol.x"
    )
    assert cause_of(failed) == "SparkException: Job aborted. (caused by IOException: No space left on device)"
    assert cause_of("[PARSE_SYNTAX_ERROR] Syntax error\n\n== SQL ==") == "[PARSE_SYNTAX_ERROR] Syntax error"
    failed = "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted. SQLSTATE: XXKST\n=== x"
    assert cause_of(failed) == "Job aborted. SQLSTATE: XXKST"
    unsaid = "[STREAM_FAILED] Query [id = a, runId = b] terminated with exception:  SQLSTATE: XXKST"
    assert cause_of(unsaid).startswith("Spark's query ended and does not say why: the Python process")
    assert cause_of("") == "Spark failed and does not say why"


def test_intervals() -> None:
    assert [interval("--window", text) for text in ("500ms", "30s", "10 m", "1h", "7d")] == [
        "500 milliseconds",
        "30 seconds",
        "10 minutes",
        "1 hours",
        "7 days",
    ]
    with pytest.raises(UserError, match="--window is '1 week'; it can be a time like"):
        interval("--window", "1 week")


STREAM: dict[str, Any] = {"topic": ["t"], "checkpoint": "c"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"to_topic": "t"}, "say what to compute"),
        ({"count": True}, "say where the result goes"),
        ({"to_topic": "t", "to_parquet": "p", "count": True}, "say where the result goes"),
        ({"to_topic": "t", "sql": "select 1", "count": True, "group_by": ["a"]}, "leave --group-by, --count out"),
        ({"to_parquet": "p", "count": True}, "--to-parquet needs --window"),
        ({"to_table": "p", "count": True}, "--to-table needs --window"),
        ({"to_table": "p", "to_parquet": "p", "count": True}, "say where the result goes"),
        ({"to_parquet": "p", "count": True, "window": "1h", "emit": Emit.UPDATES}, "--emit updates is for a topic"),
        ({"to_topic": "t", "count": True, "window": "1 fortnight"}, "--window is '1 fortnight'; it can be a time like"),
        ({"to_topic": "t", "count": True, "slide": "5m"}, "--slide needs --window"),
        ({"to_topic": "t", "count": True, "key": ["a"]}, "--key is for --sql"),
    ],
)
def test_options_of_a_rollup_that_do_not_go_together(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        RollupOptions(**STREAM, **given)


def test_options_of_a_mirror() -> None:
    options = MirrorOptions(**STREAM, to="h:1", to_option=["highwater.compression=zstd"])
    assert options.producer()["compression"] == "zstd"
    for option in ("minPartitions=4", "maxRecordsPerPartition=10"):
        with pytest.raises(UserError, match="two tasks would write one partition"):
            MirrorOptions(**STREAM, to="h:1", option=[option])
    with pytest.raises(UserError, match="a mirror copies every column"):
        MirrorOptions(**STREAM, to="h:1", option=["columns=key"])
    with pytest.raises(UserError, match="write --conf KEY=VALUE"):
        PipelineOptions(conf=["=x"])


def test_the_jvm_of_a_pipeline_starts_without_warnings_unless_its_logging_is_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")
    spark_session._quiet_start()
    kept, option = os.environ["SPARK_SUBMIT_OPTS"].split(" ", 1)
    assert kept == "-XX:TieredStopAtLevel=1"
    uri = option.strip('"').removeprefix("-Dlog4j2.configurationFile=")
    assert "rootLogger.level = off" in Path(uri.removeprefix("file://")).read_text()
    before = os.environ["SPARK_SUBMIT_OPTS"]
    spark_session._quiet_start()
    assert os.environ["SPARK_SUBMIT_OPTS"] == before
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    spark_session._quiet_start()
    assert os.environ["SPARK_SUBMIT_OPTS"] == ""
