"""What the Helm chart runs beside the services, against a running cluster."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from command_line import Run, runner
from replica_manager_cluster import eventually
from running_cluster import HEAL_S, Deployment

from highwater.cli.local_cluster import LocalCluster
from highwater.kube import scale_down, smoke_test
from highwater.kube.load import Load, LoadOptions

NO_CLUSTER = "127.0.0.1:1"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, shared_cluster: LocalCluster, tmp_path: Path) -> Run:
    monkeypatch.setenv("HIGHWATER_BOOTSTRAP", shared_cluster.bootstrap)
    monkeypatch.setattr("highwater.client.cluster.cluster.UNKNOWN_TOPIC_PATIENCE_S", 0.1)
    return runner(monkeypatch, tmp_path)


def test_the_smoke_test_leaves_nothing_behind(
    run: Run, shared_cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    before = run("topics", "list", "--json").out
    assert smoke_test.main(["--bootstrap", shared_cluster.bootstrap]) == 0
    assert "2000 records were acknowledged" in capsys.readouterr().out
    assert run("topics", "list", "--json").out == before
    assert smoke_test.main(["--bootstrap", NO_CLUSTER, "--wait", "0"]) == 1


def test_brokers_that_host_something_are_not_taken_away(
    run: Run, shared_cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("topics", "create", "hosted", "--partitions", 3, "--replication-factor", 3).status == 0
    given = ["--bootstrap", shared_cluster.bootstrap, "--brokers"]
    assert scale_down.main([*given, "3"]) == 1  # ids of `highwater up` begin at 1
    said = capsys.readouterr().err
    assert "broker 3 hosts " in said  # of other tests' topics, too
    assert "Keep broker.replicas at 4" in said
    assert scale_down.main([*given, "4"]) == 0
    assert scale_down.main(["--bootstrap", NO_CLUSTER, "--brokers", "3", "--wait", "0"]) == 1
    assert "none is taken away" in capsys.readouterr().err
    run("topics", "delete", "hosted")


def test_declared_topics_are_made_and_extended_and_never_taken_away(run: Run, tmp_path: Path) -> None:
    def declare(*topics: dict[str, object]) -> tuple[int, str]:
        file = tmp_path / "topics.json"
        file.write_text(json.dumps(topics))
        result = run("topics", "apply", file)
        return result.status, result.out

    first = {"name": "declared", "partitions": 2, "replicationFactor": 2, "config": {"retention.ms": 60000}}
    status, said = declare(first, {"name": "declared-too", "partitions": 1, "replicationFactor": 1})
    assert (status, "declared: created, 2 partitions, replication factor 2" in said) == (0, True), said
    assert declare(first) == (0, "declared: as declared\n")
    assert "declared-too" in run("topics", "list", "--json").out

    status, said = declare({**first, "partitions": 3, "config": {"retention.ms": "70000"}})
    assert (status, said) == (0, "declared: set retention.ms=70000\ndeclared: 3 partitions instead of 2\n")

    # One that cannot be is named, and the others are made.
    status, said = declare(first, {"name": "declared-too", "replicationFactor": 3}, {"name": "declared-last"})
    assert status == 1
    assert "declared: it has 3 partitions, and 2 are declared: partitions are never taken away" in said
    assert "declared-too: its partitions have 1 replicas, and 3 are declared" in said
    assert "declared-last: created" in said
    (line,) = [one for one in run("topics", "list", "--json").out.splitlines() if '"declared"' in one]
    assert json.loads(line)["partitions"] == 3

    for name in ("declared", "declared-too", "declared-last"):
        assert run("topics", "delete", name).status == 0


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{", "no list of topics: it: it is no JSON: EOF while parsing"),
        ("{}", "no list of topics: it: it is no list"),
        ("[1]", "no list of topics: 0: it is no object"),
        ('[{"partitions": 2}]', "0.name: it is required"),
        ('[{"name": "a", "partition": 2}]', "0.partition: there is no such key"),
        ('[{"name": "a", "partitions": 0}]', "0.partitions: 0 is too small: it is 1 or more"),
        ('[{"name": ""}]', "0.name: it is empty"),
        ('[{"name": "a"}, {"name": "a"}]', "declares twice: a"),
    ],
)
def test_a_file_that_is_none_is_refused_before_anything_is_done(
    run: Run, tmp_path: Path, text: str, named: str
) -> None:
    file = tmp_path / "topics.json"
    file.write_text(text)
    result = run("topics", "apply", file)
    assert result.status != 0
    assert named in result.err


async def test_a_load_finds_nothing_wrong_while_a_broker_is_killed(deployed: Deployment) -> None:
    running = Load(LoadOptions(deployed.cluster.bootstrap, seconds=6, writers=4))
    loading = asyncio.create_task(running.run())

    async def loaded() -> bool:
        return running.history.counts["acknowledged"] > 100

    await eventually(loaded, "records are acknowledged", HEAL_S)
    running.begin_round()
    deployed.cluster.kill_broker(2)
    await asyncio.sleep(1)
    running.begin_round()
    deployed.cluster.start_broker(2)
    found = await loading
    assert len(found["rounds"]) == 3  # type: ignore[arg-type]
    assert found["seconds_without_acknowledgement"] == max(found["rounds"])  # type: ignore[call-overload]
    assert found["problems"] == []
    assert running.history.counts["acknowledged"] == running.history.counts["sent"] > 200
    assert running.history.counts["read"] > 200
