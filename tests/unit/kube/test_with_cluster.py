"""A cluster for the tests on Kubernetes is brought up, used and taken away again; a script plays the cluster."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
# Its kubelet is a sleep in a session of its own, whose pid is in a file.
CLUSTER = """#!/bin/bash
state=$(dirname "$0"); echo "$*" >> "$state/calls"
if [ "$1" = "$FAILS" ] || [ "$1 $2" = "$FAILS" ]; then echo "no $1 today" >&2; exit 1; fi
case $1 in
  status) [ -f "$state/pid" ] && echo "kubelet $(cat "$state/pid")" || echo "kubelet down" ;;
  up)
    setsid sleep 100 >/dev/null 2>&1 & echo $! > "$state/pid"
    [ -z "$LEAVES" ] || (setsid sleep 99 >/dev/null 2>&1 &) ;;
  down) kill "$(cat "$state/pid")"; rm "$state/pid" ;;
  env) echo "export KUBECONFIG=$state/admin.conf PATH=$state/bin:\\$PATH" ;;
  etcd) echo "$state/etcd" ;;
esac
"""
ETCD = "#!/bin/sh\necho etcd Version: 3.6.16\n"
# Others on the machine mount what they like meanwhile.
ALONE = ["unshare", "--mount", "--net"] if os.geteuid() == 0 and shutil.which("unshare") else []
LINE = 'echo "$KUBECONFIG $HIGHWATER_IMAGE $HIGHWATER_ETCD_IMAGE"'


class Tool:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for name, text in (("cluster", CLUSTER), ("etcd", ETCD)):
            (directory / name).write_text(text)
            (directory / name).chmod(0o755)

    @property
    def calls(self) -> list[str]:
        return [line.split()[0] for line in (self.directory / "calls").read_text().splitlines()]

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        # A lock of its own.
        own = {"K8S_CLUSTER": str(self.directory / "cluster"), "TMPDIR": str(self.directory)}
        return {**os.environ, **own, **more}

    def start(self, *arguments: str, **more: str) -> subprocess.Popen[str]:
        program = [sys.executable, REPOSITORY / "tests" / "k8s" / "with_cluster.py", "--logs", self.directory / "logs"]
        return subprocess.Popen(
            [*ALONE, *program, *arguments],
            env=self.environment(more),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, **more: str) -> tuple[int, str, str]:
        process = self.start(*arguments, **more)
        out, error = process.communicate(timeout=60)
        return process.returncode, out, error

    def kubelet(self) -> int:
        return int((self.directory / "pid").read_text())


@pytest.fixture
def tool(tmp_path: Path) -> Tool:
    return Tool(tmp_path)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_the_command_gets_the_cluster_and_the_images_and_the_cluster_is_gone(tool: Tool) -> None:
    status, out, error = tool.run("bash", "-c", f"{LINE}; exit 7")
    assert status == 7, error
    assert out.split() == [f"{tool.directory}/admin.conf", "highwater:test", "etcd-test:v3.6.16"]
    assert [call for call in tool.calls if call not in ("status", "env")] == [
        "up", "base", "image", "etcd", "image", "image", "down",
    ]  # fmt: skip
    assert not (tool.directory / "pid").exists()


def test_a_cluster_that_runs_already_is_used_and_left_running(tool: Tool) -> None:
    running = subprocess.Popen(["sleep", "100"])
    try:
        (tool.directory / "pid").write_text(str(running.pid))
        status, _, error = tool.run("true")
        assert status == 0, error
        assert "left running" in error
        assert {"up", "down"}.isdisjoint(tool.calls)
        assert running.poll() is None
    finally:
        running.kill()
        running.wait()


def test_without_a_cluster_program_one_line_says_so(tool: Tool) -> None:
    status, out, error = tool.run("false", K8S_CLUSTER=str(tool.directory / "none"))
    assert (status, out, len(error.splitlines())) == (0, "", 1)


@pytest.mark.parametrize("step", ["up", "base", "image highwater-packages:1", "etcd"])
def test_a_cluster_that_cannot_start_is_said_loudly_and_is_no_failure(tool: Tool, step: str) -> None:
    status, out, error = tool.run("bash", "-c", "echo ran", FAILS=step)
    assert (status, out) == (0, "")
    assert "failed: exit status 1" in error
    assert f"no {step.split(maxsplit=1)[0]} today" in error
    assert "DID NOT RUN" in error
    assert tool.calls[-1] == "down"
    assert not (tool.directory / "pid").exists()


def test_an_image_that_cannot_be_built_is_a_failure(tool: Tool) -> None:
    status, _, error = tool.run("true", FAILS="image highwater:test")
    assert status == 1
    assert "no image today" in error
    assert tool.calls[-1] == "down"


def test_what_a_cluster_leaves_is_a_failure_and_is_ended(tool: Tool) -> None:
    status, _, error = tool.run("true", LEAVES="1")
    assert status == 1
    (line,) = [line for line in error.splitlines() if "LEFT: process" in line]
    assert "sleep 99" in line
    assert not is_alive(int(line.split("LEFT: process ")[1].split()[0]))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_command_and_takes_the_cluster_down(tool: Tool, number: signal.Signals) -> None:
    # It is let clean up. One long sleep would be slept to its end, were the signal to come just before it.
    script = (
        "import time\n"
        "try:\n"
        "  print('ready', flush=True)\n"
        "  while True: time.sleep(0.05)\n"
        "except KeyboardInterrupt:\n"
        "  print('bye')"
    )
    process = tool.start(sys.executable, "-c", script)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    kubelet = tool.kubelet()
    began = time.monotonic()
    process.send_signal(number)
    out, error = process.communicate(timeout=40)
    assert process.returncode == 128 + number, error
    assert out == "bye\n"
    assert tool.calls[-1] == "down"
    assert not is_alive(kubelet)
    assert time.monotonic() - began < 20


def test_a_command_that_takes_too_long_is_ended_and_is_a_failure(tool: Tool) -> None:
    status, _, error = tool.run("--minutes", "0.1", "sleep", "50")
    assert status == 1
    assert "not within" in error
    assert tool.calls[-1] == "down"
