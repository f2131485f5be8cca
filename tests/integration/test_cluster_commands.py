"""Every command of `highwater` against a running cluster: what it prints, and what it says of wrong input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Result, Run, runner
from running_cluster import HIGHWATER

from highwater.cli.local_cluster import LocalCluster

NO_CLUSTER = "127.0.0.1:1"  # nobody listens on a port that only root may take


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, shared_cluster: LocalCluster, tmp_path: Path) -> Run:
    monkeypatch.setenv("HIGHWATER_BOOTSTRAP", shared_cluster.bootstrap)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("highwater.client.cluster.cluster.UNKNOWN_TOPIC_PATIENCE_S", 0.1)
    return runner(monkeypatch, tmp_path)


@pytest.fixture
def topic(run: Run, request: pytest.FixtureRequest) -> Iterator[str]:
    """A topic of this test's own, with one partition, so that records come back in order."""
    name = request.node.name.partition("[")[0]
    assert run("topics", "create", name, "--partitions", 1, "--replication-factor", 2).status == 0
    yield name
    run("topics", "delete", name)


def consumed(run: Run, topic: str, count: int) -> list[dict[str, object]]:
    result = run("consume", topic, "--from-beginning", "--max-records", count, "--json")
    assert result.status == 0, result.err
    return result.rows


def command_line(arguments: list[str] | str) -> str:
    """A name for a parametrized test."""
    return "_".join(arguments) if isinstance(arguments, list) else ""


# Topics


def test_topics_from_creation_to_deletion(run: Run) -> None:
    created = run("topics", "create", "t", "--partitions", 3, "--replication-factor", 3, "--config", "segment.ms=60000")
    assert created == Result(0, "created t: 3 partitions, replication factor 3\n", "")
    assert {"topic": "t", "partitions": 3} in [
        {key: row[key] for key in ("topic", "partitions")} for row in run("topics", "list", "--json").rows
    ]
    listed = run("topics", "list").out
    assert [line.split()[1::2] for line in listed.splitlines() if "│ t " in line] == [["t", "3", "3", "0", "0"]]
    (described,) = run("topics", "describe", "t", "--json").rows
    assert described["config"] == {"segment.ms": "60000"}
    assert [partition["replicas"] for partition in described["partitions"]]  # type: ignore[attr-defined]
    shown = run("topics", "describe", "t").out
    assert "segment.ms=60000" in shown
    assert str(described["topic_id"]) in shown
    assert run("topics", "alter", "t", "--partitions", 5) == Result(
        0, "altered t: 5 partitions, segment.ms=60000\n", ""
    )
    (altered,) = run("topics", "describe", "t", "--json").rows
    assert [len(partition["isr"]) for partition in altered["partitions"]] == [3] * 5  # type: ignore[attr-defined]
    changed = run("topics", "alter", "t", "--config", "retention.ms=5", "--delete-config", "segment.ms")
    assert changed == Result(0, "altered t: 5 partitions, retention.ms=5\n", "")
    rows = {str(row["key"]): row for row in run("topics", "describe", "t", "--config", "--json").rows}
    assert rows["retention.ms"] == {"key": "retention.ms", "value": "5", "source": "topic"}
    assert rows["segment.ms"] == {"key": "segment.ms", "value": None, "source": "brokers"}
    listed = run("topics", "describe", "t", "--config").out
    assert ["retention.ms", "5", "topic"] in [line.split()[1::2] for line in listed.splitlines()]
    run("topics", "alter", "t", "--partitions", 5).is_one_sentence("partitions can only be added")
    moved = run("topics", "elect-leaders", "t")
    assert moved == Result(0, "0 partitions moved to their preferred leaders\n", "")
    assert run("topics", "delete", "t") == Result(0, "deleted t\n", "")
    run("topics", "describe", "t").is_one_sentence("'t' does not exist")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["create", "bad/name"], "illegal topic name"),
        (["create", "x", "--partitions", "0"], "0 partitions"),
        (["create", "x", "--partitions", "many"], "--partitions"),
        (["create", "x", "--replication-factor", "9"], "more than the 3 live brokers"),
        (["create", "x", "--config", "no.such=1"], "no.such"),
        (["create", "x", "--config", "nothing"], "--config key=value"),
        (["create", "x", "--config", "min.insync.replicas=none"], "'none'"),
        (["describe", "absent"], "'absent' does not exist"),
        (["delete", "absent"], "'absent'"),
        (["alter", "absent", "--partitions", "2"], "'absent'"),
        (["alter", "x"], "nothing to alter"),
        (["alter", "x", "--config", "retention"], "--config key=value"),
        (["alter", "x", "--delete-config", "no.such"], "'no.such'"),
        (["describe"], "missing argument"),
        (["elect-leaders", "absent"], "'absent' does not exist"),
        (["rename", "x"], "rename"),
        (["list", "--bootstrap", NO_CLUSTER], "is the cluster up?"),
        (["create", "x", "--bootstrap", "here"], "'here'"),
    ],
    ids=command_line,
)
def test_topics_with_wrong_input(run: Run, arguments: list[str], part: str) -> None:
    run("topics", *arguments).is_one_sentence(part)


def test_a_topic_that_exists(run: Run, topic: str) -> None:
    run("topics", "create", topic).is_one_sentence("already exists")


# Produce and consume


def test_lines_from_standard_input(run: Run, topic: str) -> None:
    produced = run("produce", topic, stdin=b"one\r\n\ntwo [red]\n\xff\nlast")
    assert produced == Result(0, "", f"produced 5 records to {topic}\n")
    printed = run("consume", topic, "--from-beginning", "--max-records", 2)
    assert printed == Result(0, "one\n\n", f"consumed 2 records of {topic}\n")
    rows = consumed(run, topic, 5)
    assert [row["value"] for row in rows] == ["one", "", "two [red]", "/w==", "last"]
    assert [row.get("encoding") for row in rows] == [None, None, None, {"value": "base64"}, None]
    assert [row["offset"] for row in rows] == list(range(5))
    assert {(row["topic"], row["partition"], row["key"]) for row in rows} == {(topic, 0, None)}


def test_json_lines_from_standard_input_with_a_key(run: Run, topic: str) -> None:
    lines = b'{"carrier": "UA", "delay": 3}\n\n{"carrier": 7}\n{"carrier": null}\n'
    assert run("produce", topic, "--key-column", "carrier", stdin=lines).status == 0
    rows = consumed(run, topic, 3)
    assert [row["key"] for row in rows] == ["UA", "7", None]
    assert rows[0]["value"] == '{"carrier": "UA", "delay": 3}'


@pytest.mark.parametrize(
    ("name", "content", "key_column", "expected"),
    [
        ("text.txt", b"a\nb\n", None, [(None, "a"), (None, "b")]),
        (
            "rows.csv",
            b'id,name\r\n1,a\r\n2,"b\nc"\r\n',
            "id",
            [("1", {"id": "1", "name": "a"}), ("2", {"id": "2", "name": "b\nc"})],
        ),
        ("bom.csv", b"\xef\xbb\xbfid\n1\n", "id", [("1", {"id": "1"})]),
        ("rows.jsonl", b'{"id": 1}\n[2]\n', None, [(None, '{"id": 1}'), (None, "[2]")]),
        ("rows.jsonl", b'{"id": 1}\n', "id", [("1", '{"id": 1}')]),
    ],
)
def test_files(
    run: Run, topic: str, tmp_path: Path, name: str, content: bytes, key_column: str | None, expected: list[object]
) -> None:
    (tmp_path / name).write_bytes(content)
    options = [] if key_column is None else ["--key-column", key_column]
    assert run("produce", topic, "--file", tmp_path / name, *options).status == 0
    rows = consumed(run, topic, len(expected))
    csv = name.endswith(".csv")
    assert [(row["key"], json.loads(str(row["value"])) if csv else row["value"]) for row in rows] == expected


@pytest.mark.parametrize(
    ("name", "content", "key_column", "part"),
    [
        (
            "short.csv",
            b"a,b\n1,2\n3\n",
            None,
            "line 3 has not the 2 columns of the header; records produced before it: 1",
        ),
        ("long.csv", b"a,b\n1,2,3\n", None, "line 2"),
        ("quote.csv", b'a,b\n1,"2\n', None, "line 2 is not CSV"),
        ("wide.csv", b"a\n" + b"x" * 200_000 + b"\n", None, "line 2 is not CSV"),
        ("twice.csv", b"a,a\n1,2\n", None, "same name: a, a"),
        ("latin.csv", b"a\n\xe4\n", None, "line 2 is not UTF-8"),
        ("rows.csv", b"a,b\n1,2\n", "c", "no column 'c': the file has a, b"),
        ("empty.csv", b"", "c", "the file has none"),
        ("rows.jsonl", b'{"a": 1}\n{"a"\n', None, "line 2 is not JSON; records produced before it: 1"),
        ("rows.jsonl", b'{"a": 1}\n{"b": 1}\n', "a", "line 2 has no field 'a'"),
        ("list.jsonl", b"[1]\n", "a", "line 1 has no field 'a'"),
        ("text.txt", b"plain\n", "a", "line 1 is not JSON"),
        (
            "large.txt",
            b"a\nb\n" + b"x" * 3_000_000 + b"\nc\n",
            None,
            "line 3: a record of 3000016 bytes for test_malformed_files exceeds max_request_size (1048560); send "
            "smaller records, or raise max_request_size and the topic's max.message.bytes; "
            "records produced before it: 2",
        ),
    ],
)
def test_malformed_files(
    run: Run, topic: str, tmp_path: Path, name: str, content: bytes, key_column: str | None, part: str
) -> None:
    (tmp_path / name).write_bytes(content)
    options = [] if key_column is None else ["--key-column", key_column]
    run("produce", topic, "--file", tmp_path / name, *options).is_one_sentence(part)


def test_large_lines_with_the_options_that_the_errors_name(run: Run, topic: str, tmp_path: Path) -> None:
    (tmp_path / "large.txt").write_bytes(b"a\n" + b"x" * 3_000_000 + b"\n")
    options = ("--file", tmp_path / "large.txt", "--max-request-size", 4_000_000, "--compression", "none")
    refused = run("produce", topic, *options)
    refused.is_one_sentence("line 2: ", "max.message.bytes", "; records produced: 1")
    assert run("topics", "alter", topic, "--config", "max.message.bytes=4000000").status == 0
    produced = run("produce", topic, *options, "--buffer-memory", 8_000_000, "--delivery-timeout-ms", 60_000)
    assert produced == Result(0, "", f"produced 2 records to {topic}\n")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["produce", "absent"], "'absent' does not exist"),
        (["produce", "absent", "--file", "/no/such/file"], "cannot read /no/such/file"),
        (["produce", "absent", "--file", "/"], "cannot read /"),
        (["produce", "absent", "--acks", "2"], "--acks"),
        (["produce", "absent", "--compression", "zip"], "'zip'"),
        (["produce", "absent", "--bootstrap", NO_CLUSTER], "is the cluster up?"),
        (["consume", "absent"], "'absent' does not exist"),
        (["consume", "absent", "--max-records", "-1"], "--max-records"),
        (["consume", "absent", "--bootstrap", NO_CLUSTER], "is the cluster up?"),
        (["cluster", "--bootstrap", NO_CLUSTER], "is the cluster up?"),
        (["destroy"], "destroy"),
    ],
    ids=command_line,
)
def test_wrong_input(run: Run, arguments: list[str], part: str) -> None:
    run(*arguments).is_one_sentence(part)


def test_a_line_goes_out_when_it_was_typed(shared_cluster: LocalCluster, topic: str) -> None:
    """Neither end waits for the other's end of file; Ctrl-C ends both, and each says what it did."""
    environment = {**os.environ, "HIGHWATER_BOOTSTRAP": shared_cluster.bootstrap}

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [HIGHWATER, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )

    with start("consume", topic, "--from-beginning") as consumer, start("produce", topic) as producer:
        assert producer.stdin is not None
        assert consumer.stdout is not None
        for line in (b"first\n", b"second\n"):
            producer.stdin.write(line)
            producer.stdin.flush()
            assert consumer.stdout.readline() == line
        for process in (producer, consumer):
            process.send_signal(signal.SIGINT)
        ends = [process.communicate(timeout=10) for process in (producer, consumer)]
    assert (producer.returncode, consumer.returncode) == (130, 130)
    assert [err.decode() for _, err in ends] == [
        f"interrupted: produced 2 records to {topic}\n",
        f"interrupted: consumed 2 records of {topic}\n",
    ]


def test_a_reader_that_closes_the_pipe(run: Run, shared_cluster: LocalCluster, topic: str) -> None:
    run("produce", topic, stdin=b"x" * 50 + b"\n" + b"line\n" * 50_000)
    with subprocess.Popen(
        [HIGHWATER, "consume", topic, "--from-beginning", "--bootstrap", shared_cluster.bootstrap],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as consumer:
        assert consumer.stdout is not None
        assert consumer.stderr is not None
        assert consumer.stdout.readline() == b"x" * 50 + b"\n"
        consumer.stdout.close()
        assert consumer.wait(10) == 1
        assert consumer.stderr.read() == b""


# The cluster and its files


def test_the_cluster(run: Run, shared_cluster: LocalCluster) -> None:
    shown = run("cluster")
    assert shown.status == 0
    for broker, address in enumerate(shared_cluster.bootstrap.split(","), start=1):
        assert any(f" {broker} " in line and address in line and "live" in line for line in shown.out.splitlines())
    (described,) = run("cluster", "--json").rows
    assert {each["broker_id"] for each in described["brokers"]} == {1, 2, 3}  # type: ignore[attr-defined]
    assert described["offline_partitions"] == 0


def test_a_dump_of_a_log(run: Run, shared_cluster: LocalCluster, topic: str, tmp_path: Path) -> None:
    assert run("produce", topic, "--key-column", "k", stdin=b'{"k": "[bold]"}\n{"k": "b"}\n').status == 0
    (described,) = run("topics", "describe", topic, "--json").rows
    leader = described["partitions"][0]["leader"]  # type: ignore[index]
    log = shared_cluster.settings.data / f"broker-{leader}" / f"{topic}-0" / f"{0:020}.log"
    batches = run("log", "dump", log, "--json").rows
    assert sum(int(str(batch["records"])) for batch in batches) == 2
    assert batches[0]["offset"] in {"0-0", "0-1"}
    shown = run("log", "dump", log, "--records")
    assert shown.status == 0
    assert 'key=[bold] value={"k": "[bold]"}' in shown.out
    records = [row for batch in run("log", "dump", log, "--records", "--json").rows for row in batch["records"]]  # type: ignore[attr-defined]
    assert [(row["offset"], row["key"]) for row in records] == [(0, "[bold]"), (1, "b")]

    damaged = bytearray(log.read_bytes())
    damaged[70] ^= 1
    copy = tmp_path / log.name
    copy.write_bytes(damaged)
    seen = run("log", "dump", copy)
    assert "CRC" in seen.out
    seen.is_one_sentence("1 damaged batch")
    copy.write_bytes(log.read_bytes()[:-3])
    run("log", "dump", copy, "--records").is_one_sentence("1 damaged batch")


@pytest.mark.parametrize("name", [f"{0:020}.log", f"{0:020}.index", "records.log", "leader-epoch-checkpoint"])
def test_a_dump_of_what_is_no_log(run: Run, name: str) -> None:
    run("log", "dump", Path("/no/such/directory") / name).is_one_sentence(name)
