"""What a user sees of a mistake: the sentence once, under one call of ours, whatever Spark prints around it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import available_now, send, to_the_end, with_options
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from highwater.cli.local_cluster import LocalCluster
from highwater.client.blocking import Admin

Read = Callable[..., DataFrame]


def assert_said(error: pytest.ExceptionInfo[PySparkException], sentence: str) -> None:
    """As `kind.of.Error: sentence` in a line of its own, and nothing of the calls inside the data source."""
    text = str(error.value)
    lines = [line for line in text.splitlines() if "Error: " in line and sentence in line]
    assert len(lines) == 1, text
    assert lines[0].partition("Error: ")[2].startswith(sentence), text
    assert text.count("highwater/spark/") == 1, text
    assert "highwater/client/" not in text, text


# Of a topic with a hundred records, of which the first forty are gone.
READS: list[tuple[str, dict[str, Any], str]] = [
    ("unknown-topic", {"subscribe": "no-such-topic"}, "topic 'no-such-topic' does not exist; create it first"),
    ("unknown-partition", {"assign": '{"TOPIC": [7]}'}, "option assign names TOPIC-7, which does not exist"),
    ("nothing-subscribed", {}, "one of the options subscribe, subscribePattern and assign must say what to read"),
    ("not-a-number", {"minPartitions": "x"}, "option minPartitions is 'x'; it is a whole number of at least 1"),
    ("misspelt", {"startingOffset": "earliest"}, "there is no option startingoffset; did you mean startingOffsets?"),
    ("refused", {"kafka.isolation.level": "x"}, "option kafka.isolation.level has no counterpart in Highwater: remove"),
    (
        "no-broker",
        {"highwater.bootstrap.servers": "127.0.0.1:1", "highwater.max.block.ms": 0},
        "no broker could be reached (tried 127.0.0.1:1)",
    ),
    (
        "offset-not-there-yet",
        {"startingOffsets": {"TOPIC": {"0": 500}}},
        "option startingOffsets: TOPIC-0 ends at 100, there is no offset 500 yet",
    ),
    (
        "offset-gone",
        {"startingOffsets": {"TOPIC": {"0": 10}}},
        "TOPIC-0: offset 10 is no longer in the log (deleted by retention, or the topic was made anew); "
        "to go on without what is lost, set failOnDataLoss to false",
    ),
]


@pytest.fixture(scope="module")
def trimmed(cluster: LocalCluster, admin: Admin, delete_records: Callable[[str, int, int], None]) -> str:
    admin.create_topic("trimmed", 1, 1)
    send(cluster, "trimmed", range(100))
    delete_records("trimmed", 0, 40)
    return "trimmed"


def named(given: dict[str, Any], topic: str) -> dict[str, Any]:
    """`TOPIC` is the topic's name; it is subscribed to where nothing else is said."""
    options = {key: str(value).replace("TOPIC", topic).replace("'", '"') for key, value in given.items()}
    return options if not given or "subscribe" in given or "assign" in given else {"subscribe": topic, **options}


@pytest.mark.parametrize(("given", "sentence"), [case[1:] for case in READS], ids=[case[0] for case in READS])
def test_batch_reads(trimmed: str, read: Read, given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PySparkException) as error:
        read(**named(given, trimmed)).collect()
    assert_said(error, sentence.replace("TOPIC", trimmed))


OF_STREAMS = [case for case in READS if case[0] in ("unknown-topic", "not-a-number", "offset-gone")]


@pytest.mark.parametrize(("given", "sentence"), [case[1:] for case in OF_STREAMS], ids=[case[0] for case in OF_STREAMS])
def test_streams(trimmed: str, read_stream: Read, given: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(PySparkException) as error:
        available_now(read_stream(**named(given, trimmed)), tmp_path / "checkpoint", tmp_path / "out")
    assert_said(error, sentence.replace("TOPIC", trimmed))


WRITES = [
    ("wrong-type", ["id value"], "column value is bigint; it must be string or binary: cast it"),
    ("missing-column", ["'v' other"], "a row to write needs a column value; there are other"),
    ("type-of-partition", ["'v' value", "'p' partition"], "column partition is string; it must be tinyint or smallint"),
    ("type-of-headers", ["'v' value", "map('a', 'b') headers"], "column headers is map<string,string>; it must be arr"),
    ("partition-not-there", ["'v' value", "7 partition"], "topic trimmed has partitions 0 to 0, there is no 7"),
    ("negative-partition", ["'v' value", "-1 partition"], "a row's partition is -1: partitions are 0 or more, or null"),
    ("topic-null", ["'v' value", "cast(null as string) topic"], "a row's topic is null: set option topic, or fill"),
    ("unknown-topic", ["'v' value", "'nowhere' topic"], "topic 'nowhere' does not exist; create it first"),
]


@pytest.mark.parametrize(("columns", "sentence"), [case[1:] for case in WRITES], ids=[case[0] for case in WRITES])
def test_writes(
    trimmed: str, spark: SparkSession, write: Callable[..., None], columns: list[str], sentence: str
) -> None:
    options = {} if any("topic" in column for column in columns) else {"topic": trimmed}
    with pytest.raises(PySparkException) as error:
        write(spark.range(1).selectExpr(*columns), **options)
    assert_said(error, sentence)


def test_a_streaming_write(trimmed: str, cluster: LocalCluster, read_stream: Read, tmp_path: Path) -> None:
    frame = read_stream(subscribe=trimmed, startingOffsets="earliest").selectExpr("offset value")
    writer = with_options(frame.writeStream, cluster, {"topic": trimmed})
    with pytest.raises(PySparkException) as error:
        to_the_end(writer.option("checkpointLocation", str(tmp_path)))
    assert_said(error, "column value is bigint; it must be string or binary: cast it")
