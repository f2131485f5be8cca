"""The examples of docs/howto.md, and the Python of docs/tutorial.md, run as they stand against a cluster."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic, sleep

import pytest
import yaml
from running_cluster import Deployment

from highwater.cli.local_cluster import LocalCluster
from highwater.client import HighwaterError, TopicAlreadyExistsError
from highwater.client.blocking import Admin, Consumer, Producer
from highwater.metadata.local import find_etcd
from highwater.rpc.process.local_process import free_ports, tied_to_parent

ROOT = Path(__file__).parents[2]
EXAMPLES = re.findall(
    r"^```python\n# topics: ([^\n]+)\n(.*?)^```", (ROOT / "docs" / "howto.md").read_text(), re.M | re.S
)
KINDS = ["asyncio", "plain", "offsets", "assign", "dead letters", "fastapi", "table", "settings"]


def example(kind: str, cluster: LocalCluster, folder: Path) -> Path:
    """A file with the example, its topics made anew, with six events of which two are no JSON."""
    topics, code = EXAMPLES[KINDS.index(kind)]
    with Admin(cluster.bootstrap) as admin:
        for topic in topics.split(", "):
            if topic in admin.list_topics():
                admin.delete_topic(topic)
            admin.create_topic(topic, partitions=6, replication_factor=3)
    with Producer(cluster.bootstrap) as producer:
        for number, value in enumerate(
            [b'{"name": "a"}', b"no JSON", b'{"name": "b"}', b"{}", b'{"name": "c"}', b'{"name": "d"}']
        ):
            producer.send("events", value, key=b"k%d" % (number % 2))
    assert "127.0.0.1:9092" in code
    file = folder / "application.py"
    file.write_text(code.replace("127.0.0.1:9092", cluster.bootstrap))
    return file


def started(file: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, file.name], cwd=file.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def printed(file: Path) -> str:
    with started(file) as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    return out


def values(cluster: LocalCluster, topic: str, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    with Consumer(topic, bootstrap=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        deadline = monotonic() + 20
        while len(found) < count and monotonic() < deadline:
            found += [record.value for record in consumer.poll(500)]
    return found


@pytest.fixture
def whole(deployed: Deployment) -> LocalCluster:
    """The shared cluster, with what other tests have broken in it mended."""
    return deployed.cluster


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == len(KINDS)


def test_an_asyncio_program_ends_on_sigterm(whole: LocalCluster, tmp_path: Path) -> None:
    with started(example("asyncio", whole, tmp_path)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert len(values(whole, "handled", 6)) == 6
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "all that was sent is acknowledged\n", "")


def test_a_plain_program_ends_on_sigterm(whole: LocalCluster, tmp_path: Path) -> None:
    with started(example("plain", whole, tmp_path)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert len(values(whole, "events", 20)) >= 20
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (1, "told to end\n")


def test_positions_are_kept_with_the_results(whole: LocalCluster, tmp_path: Path) -> None:
    file = example("offsets", whole, tmp_path)
    assert printed(file) == "{b'k0': 3, b'k1': 3}\n" or printed(file) == "{b'k1': 3, b'k0': 3}\n"
    with Producer(whole.bootstrap) as producer:
        producer.send("events", b"{}", key=b"k0")
    totals = printed(file)
    assert "b'k0': 4" in totals
    assert "b'k1': 3" in totals


def test_settings_are_changed_while_everything_runs(whole: LocalCluster, tmp_path: Path) -> None:
    assert printed(example("settings", whole, tmp_path)) == "2 DYNAMIC_DEFAULT_BROKER\n"


def test_processes_share_a_topic(whole: LocalCluster, tmp_path: Path) -> None:
    out = printed(example("assign", whole, tmp_path))
    assert re.findall(r"partition=(\d)", out) == ["0", "3"]


def test_dead_letters(whole: LocalCluster, tmp_path: Path) -> None:
    assert sorted(printed(example("dead letters", whole, tmp_path)).split()) == ["a", "b", "c", "d"]
    with Consumer("events-bad", bootstrap=whole.bootstrap, auto_offset_reset="earliest") as consumer:
        found = []
        while len(found) < 2:
            found += consumer.poll(5000)
    assert sorted(record.value or b"" for record in found) == [b"no JSON", b"{}"]
    headers = dict(found[0].headers)
    assert headers["highwater.topic"] == b"events"
    assert set(headers) == {f"highwater.{name}" for name in ("error", "topic", "partition", "offset")}


def test_records_as_a_table(whole: LocalCluster, tmp_path: Path) -> None:
    assert printed(example("table", whole, tmp_path)) == "6 2\nTrue\n"


@pytest.mark.skipif(importlib.util.find_spec("fastapi") is None, reason="FastAPI is not installed")
async def test_fastapi(whole: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastapi.testclient import TestClient

    file = example("fastapi", whole, tmp_path)
    monkeypatch.syspath_prepend(file.parent)
    import application

    def posted() -> dict[str, int]:
        with TestClient(application.app) as client:
            answer = client.post("/events/k1", content=b"hello")
            assert answer.status_code == 201
            return answer.json()

    assert set(await asyncio.to_thread(posted)) == {"partition", "offset"}


def test_the_tutorial(whole: LocalCluster, tmp_path: Path) -> None:
    """Its producer, a killed broker, and its check."""
    page = (ROOT / "docs" / "tutorial.md").read_text()
    for name, code in re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", page, re.M | re.S):
        own = code.replace("127.0.0.1:9092,127.0.0.1:9093,127.0.0.1:9094", whole.bootstrap)
        assert own != code
        (tmp_path / name).write_text(own.replace("time.sleep(0.005)", "time.sleep(0.001)"))
    with Admin(whole.bootstrap) as admin:
        if "events" in admin.list_topics():
            admin.delete_topic("events")
        admin.create_topic("events", partitions=3, replication_factor=3, config={"min.insync.replicas": "2"})
    with started(tmp_path / "produce.py") as producer:
        assert producer.stdout is not None
        assert producer.stdout.readline() == "500 acknowledged\n"
        whole.kill_broker(2)
        try:
            out, err = producer.communicate(timeout=60)
        finally:
            whole.start_broker(2)
    assert (producer.returncode, err) == (0, "")
    assert out.splitlines()[-1] == "6,000 acknowledged"
    assert printed(tmp_path / "check.py") == "6,000 events, each once: True\nin order: True\n"


# docker/compose.yaml


@contextmanager
def composed(folder: Path) -> Iterator[int]:
    """The commands of the compose file as processes: names of services are this machine, and each port is a free one.
    Yields the port that is published."""
    services = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]
    text = json.dumps({name: one["command"] for name, one in services.items()})
    assert set(re.findall(r"([a-z-]+):\d{4}", text)) <= set(services)  # each leads to a service
    ports = sorted(set(re.findall(r":(\d{4})\b", text)))
    free = dict(zip(ports, map(str, free_ports(len(ports))), strict=True))
    (published,) = services["replica-manager"]["ports"]
    assert published == "127.0.0.1:9092:9092"
    text = re.sub(r"(?:0\.0\.0\.0|127\.0\.0\.1|[a-z-]+):(\d{4})\b", lambda at: f"127.0.0.1:{free[at[1]]}", text)
    commands = json.loads(text.replace("://etcd", "://127.0.0.1"))
    with ExitStack() as running:
        for name, command in commands.items():
            if name == "etcd":
                program = str(find_etcd())
                rest = [part.replace("=/etcd", f"={folder / 'etcd'}") for part in command[1:]]
                (peer,) = free_ports(1)
                rest += [f"--listen-peer-urls=http://127.0.0.1:{peer}"]
            else:
                program = sys.executable
                rest = [part.replace("=/log", f"={folder / 'log'}") for part in command[1:]]
            with (folder / f"{name}.out").open("wb") as output:
                process = subprocess.Popen(tied_to_parent([program, *rest]), stdout=output, stderr=output)
            running.callback(process.wait, 30)
            running.callback(process.terminate)
        yield int(free["9092"])


@pytest.mark.timeout(120)
def test_the_commands_of_the_compose_file_make_a_cluster(tmp_path: Path) -> None:
    with composed(tmp_path) as port:
        bootstrap = f"127.0.0.1:{port}"
        with Admin(bootstrap, max_block_ms=60_000) as admin:
            deadline = monotonic() + 60
            while True:
                try:
                    admin.create_topic("events", partitions=3, replication_factor=1)
                    break
                except TopicAlreadyExistsError:
                    break
                except HighwaterError:
                    assert monotonic() < deadline
                    sleep(0.2)
            assert [one.problem for one in admin.check_brokers()] == [None]
        with Producer(bootstrap) as producer:
            assert producer.send_and_wait("events", b"hello").offset == 0
        assert os.listdir(tmp_path / "log")
