"""`highwater up` as a user has it: started, interrupted, killed, started again, and started wrongly."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest
from command_line import Result, runner
from running_cluster import HIGHWATER

from highwater.cli import local_cluster
from highwater.cli.local_cluster import LocalCluster, LocalClusterSettings
from highwater.client.blocking import Admin, Consumer, Producer
from highwater.log_storage.files import meta_properties
from highwater.metadata.local import etcd_healthy
from highwater.rpc.process.local_process import free_ports

ENDED_S = 20.0


class Supervisor:
    """A running `highwater up --brokers 1`."""

    def __init__(self, process: subprocess.Popen[str], data: Path) -> None:
        self.process = process
        self.data = data
        self.said: list[str] = []

    @property
    def bootstrap(self) -> str:
        return str(json.loads((self.data / "cluster.json").read_text())["bootstrap"])

    def metrics(self) -> dict[str, str]:
        """Addresses by process."""
        found: dict[str, str] = json.loads((self.data / "cluster.json").read_text())["metrics"]
        return found

    def children(self) -> dict[int, str]:
        """Command lines by process id."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        return {child.pid: " ".join(child.cmdline()) for child in children}

    def child(self, part: str) -> int:
        return next(pid for pid, command in self.children().items() if part in command)

    def await_ready(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line)
            if "ready" in line:
                return
        raise AssertionError(self.process.communicate()[1])


@contextmanager
def up(data: Path) -> Iterator[Supervisor]:
    command = [HIGHWATER, "up", "--brokers", "1", "--data", str(data), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield Supervisor(process, data)
        finally:
            process.kill()


@contextmanager
def all_end(processes: Iterable[int]) -> Iterator[None]:
    """By the end of the body and some seconds more none of these runs."""
    with ExitStack() as stack:
        watched = {}
        for pid in processes:
            handle = os.pidfd_open(pid)
            stack.callback(os.close, handle)
            watched[handle] = pid
        yield
        while watched:
            ended, _, _ = select.select(watched, [], [], ENDED_S)
            assert ended, f"still running: {[psutil.Process(pid).cmdline() for pid in watched.values()]}"
            for handle in ended:
                del watched[handle]


def read_all(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    with Consumer(topic, bootstrap=bootstrap, auto_offset_reset="earliest") as consumer:
        found: list[bytes | None] = []
        while len(found) < count and (records := consumer.poll(timeout_ms=10_000)):
            found += [record.value for record in records]
        return found


def test_a_cluster_is_interrupted_killed_and_started_again(tmp_path: Path) -> None:
    values = [b"%d" % number for number in range(100)]
    with up(tmp_path) as first:
        first.await_ready()
        with Admin(first.bootstrap) as admin, Producer(first.bootstrap) as producer:
            admin.create_topic("kept", 1, 1)
            for value in values[:50]:
                producer.send("kept", value)
        assert any(f"http://{address}/metrics" in line for address in first.metrics().values() for line in first.said)
        for address in first.metrics().values():
            with urlopen(f"http://{address}/metrics", timeout=ENDED_S) as answer:
                assert b"process_cpu_seconds_total" in answer.read()
        children = first.children()
        assert len(children) == 6  # etcd, controller, a broker's three, and that which starts services
        with all_end(children):
            first.process.send_signal(signal.SIGINT)
            assert first.process.wait(ENDED_S) == 0
        out, err = first.process.communicate()
        assert re.fullmatch(rf"stopped after (\d+ min )?\d+ s; the data stays in {tmp_path}\n", out), out
        assert err == ""
        assert not (tmp_path / "cluster.json").exists()
        assert not (tmp_path / "metrics.json").exists()

    with up(tmp_path) as second:
        second.await_ready()
        with Producer(second.bootstrap) as producer:
            for value in values[50:]:
                producer.send("kept", value)
        fetcher = second.child("highwater.fetcher")
        os.kill(fetcher, signal.SIGKILL)
        assert second.process.stderr is not None
        assert second.process.stderr.readline() == "fetcher-1 ended (status -9); starting it again\n"
        children = second.children()
        assert any("etcd" in command for command in children.values())
        sockets = Path((tmp_path / ".lock").read_text())
        assert sockets.is_dir()
        with all_end(children):
            second.process.kill()

    with up(tmp_path) as third:
        third.await_ready()
        assert not sockets.exists()  # the killed one left it
        assert read_all(third.bootstrap, "kept", 100) == values
        with all_end(third.children()):
            third.process.send_signal(signal.SIGTERM)
            assert third.process.wait(ENDED_S) == 0


def test_ctrl_c_while_it_starts(tmp_path: Path) -> None:
    """Its log-storage waits for the broker's identity, so that the start is not over before it is interrupted."""
    (tmp_path / "broker-1").mkdir()
    os.mkfifo(tmp_path / "broker-1" / meta_properties.FILE_NAME)
    with up(tmp_path) as starting:
        log = tmp_path / "logs" / "fetcher-1.log"  # the last of them
        while not log.exists():
            assert starting.process.poll() is None
            time.sleep(0.01)
        with all_end(starting.children()):
            starting.process.send_signal(signal.SIGINT)
            assert starting.process.wait(ENDED_S) == 130
        assert starting.process.communicate() == ("", "interrupted while it was starting: everything is stopped\n")


def test_ctrl_c_while_the_programs_are_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long that takes; another start follows."""
    before = psutil.Process().children()
    (tmp_path / "slow.py").write_text("import time; time.sleep(600)")
    cluster = LocalCluster(LocalClusterSettings(tmp_path / "data", brokers=1, port=0))
    with monkeypatch.context() as slowly:
        slowly.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
        slowly.setattr(local_cluster, "PROGRAMS", {"highwater.controller": "slow"})
        with pytest.raises(KeyboardInterrupt):
            cluster.start(cancelled=lambda: etcd_healthy(cluster.etcd))
    assert psutil.Process().children() == before
    try:
        cluster.start()
    finally:
        cluster.stop()
    assert psutil.Process().children() == before


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--data", "{used}"], "{used} is in use by another cluster"),
        (["--port", "{taken}"], "port {taken} is taken"),
        (["--port", "65534"], "above 65535"),
        (["--port", "99999"], "--port"),
        (["--brokers", "0"], "--brokers"),
        (["--data", "/dev/null"], "cannot use the data directory /dev/null"),
        (["--set", "no.such=1"], "no.such"),
        (["--set", "log.segment.bytes"], "key=value"),
        (["--set", "log.segment.bytes=large"], "log.segment.bytes"),
        (["--set", "controller.session.timeout.ms=1"], "controller.session.timeout.ms"),
        (["--set", "listen=127.0.0.1:1"], "listen is set by"),
        (["--set", "listeners=A://127.0.0.1:1"], "listeners is set by"),
        (["--set", "health.listen=127.0.0.1:1"], "health.listen is set by"),
        (["--set", "metrics.listen=127.0.0.1:1"], "see --metrics-port"),
        (["--set", "log.format=xml"], "log.format: 'xml' is none of 'text' or 'json'"),
        (["--set", "kafka.metrics.reporters=jmx"], "metrics.reporters"),
        (["--metrics-port", "{taken}"], "port {taken} is taken"),
        (["--metrics-port", "65530"], "above 65535"),
        (["--brokers", "1", "--port", "{free}", "--metrics-port", "{free}"], "port {free} is taken: choose other ones"),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, list) else "",
)
def test_what_keeps_a_cluster_from_starting_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, shared_cluster: LocalCluster, tmp_path: Path, options: list[str], part: str
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # pytest's own handlers stay
    here = {
        "used": str(shared_cluster.settings.data),
        "taken": shared_cluster.bootstrap.partition(",")[0].rpartition(":")[2],
        "free": str(free_ports(1)[0]),
    }
    filled = [option.format(**here) for option in options]
    ended = runner(monkeypatch, tmp_path)("up", "--port", 0, "--data", tmp_path / "data", *filled)
    ended.is_one_sentence(part.format(**here))
    assert ended.out == ""


@pytest.mark.parametrize(
    ("etcd", "part"),
    [("/no/such/etcd", "HIGHWATER_ETCD_BINARY is /no/such/etcd"), ("/bin/false", "etcd did not start")],
)
def test_without_etcd(tmp_path: Path, etcd: str, part: str) -> None:
    ended = subprocess.run(
        [HIGHWATER, "up", "--data", str(tmp_path), "--port", "0"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={**os.environ, "HIGHWATER_ETCD_BINARY": etcd},
    )
    Result(ended.returncode, ended.stdout, ended.stderr).is_one_sentence(part)
    assert ended.stdout == ""
