"""`consume` and `produce` in all their forms against a running cluster: ranges, formats, files, terminals, a shell."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import Result, Run, runner
from poisoned_batch import RECORDS as POISONED
from poisoned_batch import append_poisoned
from running_cluster import HIGHWATER

from highwater.cli.local_cluster import LocalCluster
from highwater.client.blocking import Admin, Producer

PARTITIONS = 2
RECORDS = 50  # of each partition


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, shared_cluster: LocalCluster, tmp_path: Path) -> Run:
    monkeypatch.setenv("HIGHWATER_BOOTSTRAP", shared_cluster.bootstrap)
    monkeypatch.setattr("highwater.client.cluster.cluster.UNKNOWN_TOPIC_PATIENCE_S", 0.1)
    return runner(monkeypatch, tmp_path)


@pytest.fixture
def topic(run: Run, shared_cluster: LocalCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """Each partition has the values p:0 to p:49, the time of each a second after that before."""
    name = request.node.name.partition("[")[0]
    assert run("topics", "create", name, "--partitions", PARTITIONS, "--replication-factor", 2).status == 0
    with Producer(shared_cluster.bootstrap) as producer:
        for number in range(RECORDS):
            for partition in range(PARTITIONS):
                producer.send(
                    name,
                    b"%d:%d" % (partition, number),
                    key=b"k%d" % number,
                    headers=[("n", b"%d" % number)],
                    timestamp_ms=1_767_225_600_000 + number * 1000,  # 2026-01-01T00:00:00Z
                    partition=partition,
                )
        producer.flush()
    yield name
    run("topics", "delete", name)


def expected(partition: int, start: int, until: int = RECORDS) -> list[str]:
    return [f"{partition}:{number}" for number in range(start, until)]


@pytest.mark.parametrize(
    ("options", "ranges"),
    [
        (["--last", 3], [(0, 47, 50), (1, 47, 50)]),
        (["--from", "earliest", "--until", "latest"], [(0, 0, 50), (1, 0, 50)]),
        (["--from", "10", "--until", 12, "--partition", 1], [(1, 10, 12)]),
        (["--from", "latest-5", "--until", "latest-4"], [(0, 45, 46), (1, 45, 46)]),
        (["--from", "2026-01-01T00:00:48Z", "--until", "latest"], [(0, 48, 50), (1, 48, 50)]),
        (["--until", "2026-01-01T01:00:02+01:00", "--partition", 0, "--partition", 1], [(0, 0, 2), (1, 0, 2)]),
        (["--from", "-1h", "--until", "latest"], []),
        (["--from-beginning", "--partition", 0, "--max-records", 3], [(0, 0, 3)]),
        (["--from", 45, "--partition", 1, "--max-records", 5], [(1, 45, 50)]),
        (["--from", "2026-01-01T00:00:45Z", "--max-records", 10], [(0, 45, 50), (1, 45, 50)]),
    ],
)
def test_ranges(run: Run, topic: str, options: list[object], ranges: list[tuple[int, int, int]]) -> None:
    consumed = run("consume", topic, *options)
    lines = consumed.out.splitlines()
    for partition in range(PARTITIONS):
        wanted = [line for number, *ends in ranges if number == partition for line in expected(partition, *ends)]
        assert [line for line in lines if line.startswith(f"{partition}:")] == wanted
    assert consumed.err == f"consumed {len(lines)} record{'' if len(lines) == 1 else 's'} of {topic}\n"


def test_json_and_formats(run: Run, topic: str) -> None:
    (row,) = run("consume", topic, "--from", 7, "--until", 8, "--partition", 1, "--json").rows
    assert row == {
        **{"topic": topic, "partition": 1, "offset": 7, "timestamp": 1_767_225_607_000},
        **{"key": "k7", "value": "1:7", "headers": [["n", "7"]]},
    }
    form = r"%t %p %o %k %v %T %d %h\n"
    shown = run("consume", topic, "--last", 1, "--partition", 0, "--format", form).out
    assert shown == f"{topic} 0 49 k49 0:49 1767225649000 2026-01-01T00:00:49.000Z n=49\n"


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--from", "soon"], "--from is 'soon'; it can be an offset"),
        (["--until", "-3"], "the last 3 of each partition: latest-3"),
        (["--last", 0], "--last"),
        (["--last", 1, "--from", 1], "give one of --from, --from-beginning and --last"),
        (["--last", 1, "--until", 1], "--last ends at the end"),
        (["--json", "--format", "%v"], "give one of --json, --format and --output"),
        (["--format", "%y"], "%y, which is no directive"),
        (["--output", "x.csv"], "neither .parquet nor .arrow"),
        (["--output", "/no/such/folder/x.parquet"], "cannot write /no/such/folder/x.parquet"),
        (["--last", 1, "--partition", 7], "has partitions 0 to 1, there is no 7"),
    ],
    ids=str,
)
def test_wrong_options_of_consume(run: Run, topic: str, options: list[object], part: str) -> None:
    run("consume", topic, *options).is_one_sentence(part)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_a_file_goes_out_and_comes_back(run: Run, topic: str, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"records{suffix}"
    written = run("consume", topic, "--output", path)
    assert written == Result(0, "", f"consumed 100 records of {topic} into {path}\n")
    table = pq.read_table(path) if suffix == ".parquet" else pa.ipc.open_file(str(path)).read_all()
    assert table.schema.names == ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]
    assert table.num_rows == 100
    assert run("produce", topic, "--file", path, "--header", "again=1") == Result(
        0, "", f"produced 100 records to {topic}\n"
    )
    for partition in range(PARTITIONS):
        rows = run("consume", topic, "--from", RECORDS, "--until", "latest", "--partition", partition, "--json").rows
        assert [row["value"] for row in rows] == expected(partition, 0)
        assert [row["key"] for row in rows] == [f"k{number}" for number in range(RECORDS)]
        assert rows[3]["headers"] == [["n", "3"], ["again", "1"]]
        assert rows[3]["timestamp"] == 1_767_225_603_000


def test_rows_of_a_table(run: Run, topic: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2], "name": ["a", None]}), tmp_path / "rows.parquet")
    assert run("produce", topic, "--file", tmp_path / "rows.parquet", "--key-column", "id").status == 0
    rows = run("consume", topic, "--from", RECORDS, "--until", "latest", "--json").rows
    assert sorted((row["key"], row["value"]) for row in rows) == [
        ("1", '{"id":1,"name":"a"}'),
        ("2", '{"id":2,"name":null}'),
    ]
    pq.write_table(pa.table({"value": ["x", "y"], "partition": [0, 9]}), tmp_path / "records.parquet")
    refused = run("produce", topic, "--file", tmp_path / "records.parquet")
    refused.is_one_sentence("row 2: ", "records produced before it: 1")


def test_keys_headers_and_tombstones(run: Run, topic: str) -> None:
    options = ("--key-delimiter", "::", "--header", "a=1", "--header", "b=x=y")
    assert run("produce", topic, *options, stdin=b"k1::v::1\nk2::\n").status == 0
    assert run("produce", topic, "--key", "k1", stdin=b"v2\n").status == 0
    gone = run("produce", topic, "--key", "k1", "--tombstone", "--header", "why=test")
    assert gone == Result(0, "", f"produced 1 record to {topic}\n")
    rows = run("consume", topic, "--from", RECORDS, "--until", "latest", "--json").rows
    assert [row["value"] for row in rows if row["key"] == "k1"] == ["v::1", "v2", None]
    assert [row["headers"] for row in rows if row["key"] == "k2"] == [[["a", "1"], ["b", "x=y"]]]
    assert [row["headers"] for row in rows if row["value"] is None] == [[["why", "test"]]]
    refused = run("produce", topic, "--key-delimiter", ":", stdin=b"a:b\nnone\n")
    refused.is_one_sentence("line 2 has no ':' between key and value; records produced before it: 1")


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--tombstone"], "--tombstone needs --key"),
        (["--tombstone", "--key", "k", "--file", "x.csv"], "without --file"),
        (["--key", "k", "--key-column", "c"], "give one of --key, --key-column and --key-delimiter"),
        (["--key-delimiter", ""], "--key-delimiter is empty"),
        (["--key-delimiter", ":", "--file", "x.csv"], "of .csv give --key-column"),
        (["--header", "x"], "write --header name=value"),
        (["--file", "/no/such.parquet"], "cannot read /no/such.parquet"),
    ],
    ids=str,
)
def test_wrong_options_of_produce(run: Run, options: list[object], part: str) -> None:
    run("produce", "absent", *options).is_one_sentence(part)


def test_a_terminal_gets_no_control_characters(run: Run, shared_cluster: LocalCluster, topic: str) -> None:
    run("produce", topic, "--key", "\x1b[2Jkey", "--header", "h\x1b=\x1b", stdin=b"\x1b]0;owned\x07\xff\n")
    ours = ("--from", str(RECORDS), "--until", "latest")
    raw = subprocess.run(
        [HIGHWATER, "consume", topic, *ours, "--bootstrap", shared_cluster.bootstrap], capture_output=True, check=True
    )
    assert raw.stdout == b"\x1b]0;owned\x07\xff\n"
    for options, wanted in (
        ((), rb"\x1b]0;owned\x07\xff" + b"\r\n"),
        (("--format", r"%k %v %h\n"), rb"\x1b[2Jkey \x1b]0;owned\x07\xff h\x1b=\x1b" + b"\r\n"),
    ):
        ours_end, theirs = pty.openpty()
        subprocess.run(
            [HIGHWATER, "consume", topic, *ours, *options, "--bootstrap", shared_cluster.bootstrap],
            stdout=theirs,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        os.close(theirs)
        assert os.read(ours_end, 10_000) == wanted
        os.close(ours_end)


def test_a_shell_completes_topics(shared_cluster: LocalCluster, topic: str) -> None:
    def completed(line: str, bootstrap: str) -> list[str]:
        environment = {
            **os.environ,
            **{"_HIGHWATER_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)},
            "HIGHWATER_BOOTSTRAP": bootstrap,
        }
        done = subprocess.run([HIGHWATER], env=environment, capture_output=True, text=True, check=False, timeout=30)
        assert done.stderr == ""
        return done.stdout.split()

    for command in ("consume", "produce", "topics describe"):
        assert completed(f"highwater {command} {topic[:-3]}", shared_cluster.bootstrap) == [topic]
    assert completed("highwater consume no-such", shared_cluster.bootstrap) == []
    assert completed("highwater consume a", "127.0.0.1:1") == []
    assert "consume" in completed("highwater con", shared_cluster.bootstrap)


@pytest.mark.parametrize("options", [["--until", "latest"], ["--max-records", RECORDS + 1], ["--output"]])
def test_a_batch_that_no_reader_can_expand(
    run: Run, topic: str, shared_cluster: LocalCluster, tmp_path: Path, options: list[object]
) -> None:
    """A producer that means harm sends one whose check at the append does not go so far (docs/limits.md)."""
    if "--output" in options:
        options = [*options, tmp_path / "out.parquet"]
    with Admin(shared_cluster.bootstrap) as admin, Producer(shared_cluster.bootstrap) as producer:
        assert append_poisoned(admin, topic) == (RECORDS, RECORDS + POISONED - 1)
        producer.send(topic, b"behind it", partition=0).result()
    begin = ["consume", topic, "--partition", 0, "--from", "earliest", *options]
    refused = run(*begin)
    assert refused.status != 0
    assert f"{topic}-0 at offset 50: " in refused.err.replace("\n", " ")
    assert "--on-corrupt" in refused.err
    consumed = run(*begin, "--on-corrupt", "skip")
    assert consumed.status == 0, consumed
    if "--output" in options:
        values = [each.decode() for each in pq.read_table(tmp_path / "out.parquet")["value"].to_pylist()]
    else:
        values = consumed.out.splitlines()
    assert values == [*expected(0, 0), "behind it"]


def test_what_becomes_of_it_is_one_of_two(run: Run, topic: str) -> None:
    refused = run("consume", topic, "--on-corrupt", "ignore")
    assert refused.status == 2
    assert "it can be error or skip" in refused.err
