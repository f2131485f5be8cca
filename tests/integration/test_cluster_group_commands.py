"""`highwater groups` and `highwater consume --group` against a running cluster."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.request import urlopen

import pytest
from command_line import Result, Run, runner
from running_cluster import HIGHWATER

from highwater.cli.groups import app as group_commands
from highwater.cli.groups.group_argument import completed_groups
from highwater.cli.local_cluster import LocalCluster
from highwater.client import RetriableError
from highwater.client.blocking import Admin, Consumer, Producer
from highwater.rpc.process.local_process import free_ports

DEADLINE_S = 60.0

Scrape = dict[str, float]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, shared_cluster: LocalCluster, tmp_path: Path) -> Run:
    monkeypatch.setenv("HIGHWATER_BOOTSTRAP", shared_cluster.bootstrap)
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.setattr("highwater.client.cluster.cluster.UNKNOWN_TOPIC_PATIENCE_S", 0.1)
    return runner(monkeypatch, tmp_path)


@pytest.fixture
def admin(shared_cluster: LocalCluster) -> Iterator[Admin]:
    with Admin(shared_cluster.bootstrap) as started:
        yield started


@pytest.fixture
def topic(admin: Admin, shared_cluster: LocalCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """Of two partitions: ten records, 0 to 9, in the first one and four in the second."""
    name = request.node.name.partition("[")[0]
    admin.create_topic(name, 2, 3)
    with Producer(shared_cluster.bootstrap) as producer:
        for partition, count in ((0, 10), (1, 4)):
            for number in range(count):
                producer.send(name, b"%d" % number, partition=partition)
    yield name
    admin.delete_topic(name)


@contextmanager
def member(cluster: LocalCluster, topic: str, group: str) -> Iterator[Consumer]:
    """One that has its partitions, and commits nothing."""
    with Consumer(
        topic, bootstrap=cluster.bootstrap, group=group, client_id="reader", enable_auto_commit=False
    ) as consumer:
        deadline = time.monotonic() + DEADLINE_S
        while len(consumer.assignment()) < 2:
            assert time.monotonic() < deadline, "no partitions"
            consumer.poll(timeout_ms=100)
        yield consumer


def commit(admin: Admin, group: str, offsets: dict[tuple[str, int], int]) -> None:
    """The coordinator may not have heard of a new topic yet."""
    deadline = time.monotonic() + DEADLINE_S
    while any(outcomes := list(admin.alter_offsets(group, offsets).values())):
        assert time.monotonic() < deadline, outcomes


def partitions(described: Result) -> dict[int, dict[str, Any]]:
    (row,) = described.rows
    return {one["partition"]: one for one in row["partitions"]}  # type: ignore[attr-defined]


def committed(admin: Admin, group: str) -> dict[int, int]:
    return {one.partition: each.offset for one, each in admin.list_group_offsets(group).items()}


def test_a_group_from_its_members_to_its_deletion(
    run: Run, admin: Admin, topic: str, shared_cluster: LocalCluster
) -> None:
    group = "described"
    commit(admin, group, {(topic, 0): 7, (topic, 1): 4})
    with member(shared_cluster, topic, group):
        described = run("groups", "describe", group, "--json")
        (row,) = described.rows
        assert row["state"] in {"stable", "reconciling"}
        (one,) = row["members"]  # type: ignore[misc]
        assert one["client_id"] == "reader"
        found = partitions(described)
        assert [(each["committed"], each["end"], each["lag"]) for each in found.values()] == [(7, 10, 3), (4, 4, 0)]
        assert 0 < found[0]["lag_seconds"] < DEADLINE_S
        assert found[1]["lag_seconds"] == 0
        assert {each["member_id"] for each in found.values()} == {one["member_id"]}
        shown = run("groups", "describe", group).out
        assert re.search(rf"│ {topic} +│ +0 │ +7 │ +10 │ +3 │ +[0-9.]+ │ reader ", shown), shown
        assert f"{topic}: 0,1" in shown
        assert shown.endswith("1 member, 3 offsets behind\n")
        assert {"group": group, "members": 1} in [
            {key: one[key] for key in ("group", "members")} for one in run("groups", "list", "--json").rows
        ]
        run("groups", "reset", group, "--to", "latest", "--all-topics").is_one_sentence(
            "has 1 member (reader)", "stop them first"
        )
        run("groups", "delete", group).is_one_sentence("stop them first")
    assert [line.split()[1::2] for line in run("groups", "list", "--state", "empty").out.splitlines() if group in line]
    assert group not in run("groups", "list", "--state", "stable").out
    assert completed_groups(SimpleNamespace(params={}), "descr") == [group]  # type: ignore[arg-type]
    assert run("groups", "delete", group) == Result(0, "deleted described\n", "")
    run("groups", "describe", group).is_one_sentence("there is no group 'described'")


def test_what_is_committed_or_assigned_alone_is_described(
    run: Run, admin: Admin, topic: str, shared_cluster: LocalCluster
) -> None:
    """No lag is known where nothing was committed; a partition that nobody has is shown."""
    commit(admin, "half", {(topic, 0): 10})
    found = partitions(run("groups", "describe", "half", "--json"))
    assert list(found) == [0]
    assert (found[0]["lag"], found[0]["lag_seconds"], found[0]["member_id"]) == (0, 0, "")
    with member(shared_cluster, topic, "half"):
        second = partitions(run("groups", "describe", "half", "--json"))[1]
    assert (second["committed"], second["end"], second["lag"], second["lag_seconds"]) == (None, 4, None, None)


def test_a_reset_is_shown_and_then_done(run: Run, admin: Admin, topic: str) -> None:
    group = "reset"
    commit(admin, group, {(topic, 0): 1, (topic, 1): 1})  # its coordinator knows the topic from now on
    admin.delete_groups([group])
    shown = run("groups", "reset", group, "--to", "latest-3", "--topic", topic)
    assert shown.status == 0, shown.err
    assert shown.out.endswith("2 partitions would change; nothing was done: add --execute\n")
    assert [line.split()[1::2] for line in shown.out.splitlines() if f"│ {topic} " in line] == [
        [topic, "0", "none", "7", "0", "10"],
        [topic, "1", "none", "1", "0", "4"],
    ]
    assert committed(admin, group) == {}
    done = run("groups", "reset", group, "--to", "latest-3", "--topic", topic, "--execute")
    assert done.out.endswith(f"reset 2 partitions of group {group}\n")
    assert committed(admin, group) == {0: 7, 1: 1}
    for arguments, after in (
        (["--to-offset", 2, "--topic", f"{topic}:1"], {0: 7, 1: 2}),
        (["--to", "earliest+10", "--all-topics"], {0: 10, 1: 4}),
        (["--to-time", "-1h", "--all-topics"], {0: 0, 1: 0}),
        (["--to-datetime", "2100-01-01", "--topic", f"{topic}:0"], {0: 10, 1: 0}),
        (["--to", "earliest", "--topic", f"{topic}:0,1"], {0: 0, 1: 0}),
    ):
        before = committed(admin, group)
        rows = run("groups", "reset", group, *arguments, "--execute", "--json").rows
        assert {row["partition"]: row["before"] for row in rows}.items() <= before.items()
        assert committed(admin, group) == after, arguments


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["describe", "absent"], "there is no group 'absent'"),
        (["delete", "absent"], "there is no group 'absent'"),
        (["reset", "absent", "--to", "latest", "--all-topics"], "has committed nothing"),
        (["reset", "absent", "--to", "latest"], "--topic, or --all-topics"),
        (["reset", "absent", "--to", "latest", "--topic", "t", "--all-topics"], "--topic, or --all-topics"),
        (["reset", "absent", "--all-topics"], "one of --to, --to-offset and --to-datetime"),
        (["reset", "absent", "--to", "sometime", "--all-topics"], "--to is 'sometime'"),
        (["reset", "absent", "--to", "latest", "--topic", "no-such"], "'no-such' does not exist"),
        (["list", "--state", "idle"], "idle"),
        (["list", "--bootstrap", "127.0.0.1:1"], "is the cluster up?"),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, list) else "",
)
def test_groups_with_wrong_input(run: Run, arguments: list[str], part: str) -> None:
    run("groups", *arguments).is_one_sentence(part)


def test_a_partition_that_there_is_not(run: Run, topic: str) -> None:
    run("groups", "reset", "g", "--to", "latest", "--topic", f"{topic}:7").is_one_sentence("there is no 7")


def test_a_description_is_drawn_again_until_ctrl_c(run: Run, admin: Admin, topic: str) -> None:
    commit(admin, "watched", {(topic, 0): 7})
    with subprocess.Popen(
        [HIGHWATER, "groups", "describe", "watched", "--watch", "0.1", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        assert first["partitions"][0]["lag"] == 3
        commit(admin, "watched", {(topic, 0): 9})
        while json.loads(process.stdout.readline())["partitions"][0]["lag"] != 1:
            pass
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, err) == (130, b"")


def test_a_watch_goes_on_while_the_coordinator_moves(
    run: Run, admin: Admin, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []

    async def describe(*arguments: Any, **options: Any) -> None:
        drawn.append(len(drawn))
        if len(drawn) == 1:
            raise RetriableError("the coordinator moves")
        raise KeyboardInterrupt

    monkeypatch.setattr(group_commands, "_describe_once", describe)
    result = run("groups", "describe", "g", "--watch", "0.1")
    assert (result.status, result.out, result.err) == (130, "the coordinator moves\n", "")
    assert drawn == [0, 1]


def test_a_group_reads_on_where_it_was(run: Run, admin: Admin, topic: str) -> None:
    group = "reading"
    first = run("consume", topic, "--group", group, "--from-beginning", "--max-records", 5, "--json")
    assert (first.status, first.err) == (0, f"consumed 5 records of {topic}\n")
    assert sum(committed(admin, group).values()) == 5
    rest = run("consume", topic, "--group", group, "--from-beginning", "--max-records", 9, "--json")
    rows = [(row["partition"], row["offset"]) for row in first.rows + rest.rows]
    assert sorted(rows) == [(0, number) for number in range(10)] + [(1, number) for number in range(4)]
    assert committed(admin, group) == {0: 10, 1: 4}
    (listed,) = [each for each in admin.list_groups() if each.group == group]
    assert listed.members == 0  # it has left, and not only gone


def test_ctrl_c_commits_and_leaves(run: Run, admin: Admin, topic: str) -> None:
    group = "interrupted"
    with subprocess.Popen(
        [HIGHWATER, "consume", topic, "--group", group, "--from", "-1h", "--format", r"%p %o\n"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        printed = [process.stdout.readline().split() for _ in range(14)]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out) == (130, b"")
    assert err.decode() == f"interrupted: consumed 14 records of {topic}\n"
    assert len({tuple(each) for each in printed}) == 14
    assert committed(admin, group) == {0: 10, 1: 4}
    assert run("groups", "describe", group).out.endswith("0 members, 0 offsets behind\n")


def test_records_from_now_on_where_nothing_was_committed(run: Run, admin: Admin, topic: str) -> None:
    commit(admin, "new", {(topic, 1): 2})
    rows = run("consume", topic, "--group", "new", "--max-records", 2, "--json").rows
    assert [(row["partition"], row["offset"]) for row in rows] == [(1, 2), (1, 3)]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--until", "latest"], "takes no --until"),
        (["--last", "3"], "takes no --until or --last"),
        (["--partition", "0"], "takes no --partition"),
        (["--output", "t.parquet"], "takes no --output"),
        (["--from", "4711"], "earliest, latest or a time"),
        (["--from", "latest-5"], "earliest, latest or a time"),
        ([], "'absent' does not exist"),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, list) else "",
)
def test_what_a_member_does_not_take(run: Run, arguments: list[str], part: str) -> None:
    run("consume", "absent", "--group", "g", *arguments).is_one_sentence(part)


def test_lags_are_exported_for_prometheus(admin: Admin, topic: str, shared_cluster: LocalCluster) -> None:
    """Of a group that was behind before, as old as the record that it is at; it catches up, and is deleted."""
    group = "exported"
    commit(admin, group, {(topic, 0): 7, (topic, 1): 4})
    commit(admin, "not-exported", {(topic, 0): 1})
    with exporter(shared_cluster, "--groups", group, "--by-partition", "--interval", "1") as scraped:
        of_topic = f'{{group="{group}",topic="{topic}"}}'
        of_first = f'{{group="{group}",partition="0",topic="{topic}"}}'
        found = scraped(lambda found: f"highwater_group_lag_offsets{of_topic}" in found)
        assert found[f"highwater_group_lag_offsets{of_topic}"] == 3
        assert 0 < found[f"highwater_group_lag_seconds{of_topic}"] < DEADLINE_S
        assert found[f"highwater_group_partition_lag_offsets{of_first}"] == 3
        assert found[f'highwater_group_members{{group="{group}"}}'] == 0
        assert not any("not-exported" in name for name in found)
        with Producer(shared_cluster.bootstrap) as producer:
            producer.send(topic, b"more", partition=1)
        found = scraped(lambda found: found[f"highwater_group_lag_offsets{of_topic}"] == 4)
        commit(admin, group, {(topic, 0): 10, (topic, 1): 5})
        found = scraped(lambda found: found[f"highwater_group_lag_offsets{of_topic}"] == 0)
        assert found[f"highwater_group_lag_seconds{of_topic}"] == 0
        assert (
            found["highwater_group_export_left_out_groups"] == found["highwater_group_export_unknown_partitions"] == 0
        )
        assert admin.delete_groups([group]) == {group: None}
        scraped(lambda found: f"highwater_group_lag_offsets{of_topic}" not in found)


def test_an_exporter_says_what_is_wrong_with_its_options(run: Run) -> None:
    run("groups", "export", "--listen", "9308").is_one_sentence("--listen is '9308'", "HOST:PORT")
    run("groups", "export", "--groups", "(").is_one_sentence("--groups '(' is no regular expression")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        run("groups", "export", "--listen", address).is_one_sentence(f"--listen {address}: Address already in use")


@contextmanager
def exporter(cluster: LocalCluster, *options: str) -> Iterator[Callable[[Callable[[Scrape], bool]], Scrape]]:
    """Gives what waits for a scrape that is as it should be."""
    (port,) = free_ports(1)
    program = [HIGHWATER, "groups", "export", "--listen", f"127.0.0.1:{port}", "--bootstrap", cluster.bootstrap]
    running = subprocess.Popen([*program, *options], stdout=subprocess.PIPE, text=True)

    def scraped(as_it_should: Callable[[Scrape], bool]) -> Scrape:
        deadline = time.monotonic() + DEADLINE_S
        found: Scrape = {}
        while time.monotonic() < deadline:
            assert running.poll() is None, running.returncode
            with suppress(OSError), urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as response:
                lines = [line.decode().rpartition(" ") for line in response if not line.startswith(b"#")]
                found = {name: float(value) for name, _, value in lines}
                if as_it_should(found):
                    return found
            time.sleep(0.1)
        raise AssertionError(found)

    try:
        yield scraped
    finally:
        running.send_signal(signal.SIGINT)
        try:
            assert running.wait(DEADLINE_S) == 130
        finally:
            running.kill()
            running.wait()
