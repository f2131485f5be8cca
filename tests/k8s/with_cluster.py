"""`python tests/k8s/with_cluster.py [--minutes N] [--previous COMMIT] COMMAND...`: gives it a Kubernetes of its own.

K8S_CLUSTER names the program that starts one (default ../shared/k8s/cluster; docs/kubernetes.md says with which
commands). The command gets KUBECONFIG, HIGHWATER_IMAGE and HIGHWATER_ETCD_IMAGE, made from this checkout, and with
`--previous` HIGHWATER_PREVIOUS_IMAGE, made from that commit. A cluster that runs already is used and left running; one
that was started here is taken down whatever happens, and nothing of it may be left: no process, mount or interface.

Where there is no such program, or it cannot start a cluster on this machine, the exit status is 0 and the last line
says that nothing was tested; nor is anything where builds get no packages on it, or are too slow. It is the command's
otherwise, and 1 where an image could not be built or something was left.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

REPOSITORY = Path(__file__).resolve().parents[2]
DEFAULT_TOOL = "../shared/k8s/cluster"
IMAGE, PREVIOUS_IMAGE, BASE_IMAGE = "highwater:test", "highwater:previous", "highwater-base:1"
ETCD_IMAGE, PROBE_IMAGE = "etcd-test", "highwater-packages:1"
UP_S = 1140.0  # with 15 minutes to compile Kubernetes, the first time on a machine
BASE_S = 300.0
PACKAGES_S = 120.0
ETCD_S = 120.0
IMAGE_S = 420.0
STATUS_S = 30.0
DOWN_S = 180.0
STOPPED_S = 60.0  # for a command to end after SIGINT
GONE_S = 5.0
_SHOWN_LINES = 15
_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.05


class NotTestedError(Exception):
    """There is no cluster to test on."""


class FailedError(Exception):
    """Something of this repository is wrong."""


class Stopped(BaseException):
    """By a signal."""


def say(message: str) -> None:
    print(f"with_cluster: {message}", file=sys.stderr, flush=True)


def mount_points() -> set[str]:
    return {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}


@dataclass
class Machine:
    """What must be the same after a cluster as before it. Of processes that is this one's descendants: those whose
    parents have ended become its children."""

    mounts: set[str] = field(default_factory=mount_points)
    interfaces: set[str] = field(default_factory=lambda: set(os.listdir("/sys/class/net")))

    @staticmethod
    def children() -> list[int]:
        reap(keeping=None)
        return [int(pid) for pid in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()]

    def left(self) -> list[str]:
        """In words, what is here and was not."""
        now = Machine()
        return [
            *(f"mount {mount}" for mount in sorted(now.mounts - self.mounts)),
            *(f"interface {name}" for name in sorted(now.interfaces - self.interfaces)),
            *(f"process {pid} ({_command_of(pid)})" for pid in self.children()),
        ]


def _command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()[:120]
    except OSError:
        return "it ended"


def reap(keeping: int | None) -> bool:
    """Takes leave of descendants that have ended. Whether `keeping`, which is left to others, has ended, too."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        if ended is None or ended.si_pid == keeping:
            return ended is not None
        os.waitpid(ended.si_pid, 0)


class Runner:
    """Commands in a session of their own: a signal reaches them by this process alone."""

    def run(
        self, arguments: Sequence[str], timeout_s: float, *, log: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> int:  # fmt: skip
        """The exit status; its output goes to `log`, or to where this process's goes. Raises `TimeoutError`. Whatever
        ends this, the command has ended: SIGINT lets it clean up."""
        process = None
        try:
            with open(log or os.devnull, "ab") as output, held_back():
                process = subprocess.Popen(
                    arguments, cwd=REPOSITORY, start_new_session=True, env={**os.environ, **(environment or {})},
                    stdin=subprocess.DEVNULL, stdout=output if log else None, stderr=output if log else None,
                )  # fmt: skip
            if not self._ends(process, timeout_s):
                raise TimeoutError(f"not within {timeout_s:.0f} s")
        except BaseException:
            with cleaning_up():
                for number, wait_s in () if process is None else ((signal.SIGINT, STOPPED_S), (signal.SIGKILL, GONE_S)):
                    try:
                        os.killpg(process.pid, number)
                    except ProcessLookupError:
                        break
                    if self._ends(process, wait_s):
                        break
            raise
        return process.returncode

    @staticmethod
    def _ends(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while not reap(keeping=process.pid):
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        process.wait()
        return True


_cleaning = False


@contextmanager
def cleaning_up() -> Iterator[None]:
    """What is begun here is not broken off by another signal."""
    global _cleaning  # noqa: PLW0603
    before, _cleaning = _cleaning, True
    try:
        yield
    finally:
        _cleaning = before


_held: list[int] | None = None


@contextmanager
def held_back() -> Iterator[None]:
    """A signal that comes meanwhile is heeded at the end: a process that has begun is known then."""
    global _held  # noqa: PLW0603
    _held = []
    try:
        yield
    finally:
        held, _held = _held, None
    if held:
        _stop(held[0], None)


def _stop(number: int, frame: FrameType | None) -> None:
    if _held is not None:
        _held.append(number)
    elif not _cleaning:
        raise Stopped(signal.Signals(number).name)


class Cluster:
    """The program that K8S_CLUSTER names."""

    def __init__(self, tool: Path, logs: Path) -> None:
        self._tool = str(tool)
        self._logs = logs
        self._runner = Runner()

    def runs(self) -> bool:
        log = self._logs / "status.log"
        log.unlink(missing_ok=True)
        status = self._runner.run([self._tool, "status"], STATUS_S, log=log)
        return status == 0 and re.search(r"^kubelet \d+$", log.read_text(), re.MULTILINE) is not None

    def step(self, name: str, timeout_s: float, *arguments: str, ours: bool = False) -> str:
        """Its output. Raises `FailedError` where what fails is `ours`, and `NotTestedError`."""
        log = self._logs / f"{name}.log"
        log.unlink(missing_ok=True)
        began = time.monotonic()
        say(f"{name}: {shlex.join([Path(self._tool).name, *arguments])}, at most {timeout_s:.0f} s; log: {log}")
        try:
            status = self._runner.run([self._tool, *arguments], timeout_s, log=log)
            failed = f"exit status {status}" if status else ""
        except (OSError, TimeoutError) as error:
            failed, ours = str(error), False  # a machine that is slow, or has no way to a registry
        output = log.read_text(errors="replace") if log.exists() else ""
        if failed:
            last = "\n".join(f"    {line}" for line in output.splitlines()[-_SHOWN_LINES:])
            raise (FailedError if ours else NotTestedError)(f"{name} failed: {failed}\n{last}")
        say(f"{name}: {time.monotonic() - began:.0f} s")
        return output

    def image(self, name: str, source: Path) -> None:
        self.step(
            f"image {name}".replace(":", "-").replace(" ", "-"), IMAGE_S,
            "image", name, str(source), "--build-arg", f"BASE={BASE_IMAGE}", ours=True,
        )  # fmt: skip

    def check_packages(self) -> None:
        """That a build here gets packages at all. Raises `NotTestedError`."""
        fetch = "python3 -m venv /probe && /probe/bin/pip download -q --no-deps -d /probe hatchling"
        with tempfile.TemporaryDirectory() as context:
            (Path(context) / "Dockerfile").write_text(f"ARG BASE\nFROM ${{BASE}}\nRUN {fetch}\n")
            self.step("packages", PACKAGES_S, "image", PROBE_IMAGE, context, "--build-arg", f"BASE={BASE_IMAGE}")

    def etcd_image(self) -> str:
        """Its name; the tag is the version, which the chart wants to know."""
        path = Path(self.step("etcd", ETCD_S, "etcd").splitlines()[-1])
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=STATUS_S, check=False).stdout
        version = re.search(r"etcd Version: (\S+)", said)
        if version is None:
            raise NotTestedError(f"{path} --version said: {said or 'nothing'}")
        name = f"{ETCD_IMAGE}:v{version[1]}"
        with tempfile.TemporaryDirectory() as context:
            shutil.copy(path, Path(context) / "etcd")
            dockerfile = str(REPOSITORY / "docker" / "etcd" / "Dockerfile")
            self.step("image-etcd", ETCD_S, "image", name, context, "-f", dockerfile, ours=True)
        return name

    def environment(self) -> dict[str, str]:
        """As `cluster env` says it."""
        line = self.step("env", STATUS_S, "env").strip()
        assigned = dict(word.split("=", 1) for word in shlex.split(line) if "=" in word)
        return {name: value.replace("$PATH", os.environ["PATH"]) for name, value in assigned.items()}

    def down(self) -> None:
        self.step("down", DOWN_S, "down", ours=True)


@contextmanager
def alone() -> Iterator[None]:
    """One such run at a time on a machine: another would have its cluster taken away."""
    with open(Path(tempfile.gettempdir()) / "highwater-with-cluster.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another run to end")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def tested(cluster: Cluster, command: Sequence[str], minutes: float, previous: str) -> int:
    """The command's exit status. Raises `NotTestedError` and `FailedError`."""
    given = cluster.environment() if cluster.runs() else None
    if given is None:
        cluster.step("up", UP_S, "up")
        given = cluster.environment()
    else:
        say("a cluster runs already: it is used, and left running")
    cluster.step("base", BASE_S, "base", BASE_IMAGE)
    cluster.check_packages()
    given["HIGHWATER_ETCD_IMAGE"] = cluster.etcd_image()
    cluster.image(IMAGE, REPOSITORY)
    given["HIGHWATER_IMAGE"] = IMAGE
    if previous:
        with tempfile.TemporaryDirectory() as source:
            archive = f"git archive {shlex.quote(previous)} | tar -x -C {shlex.quote(source)}"
            subprocess.run(["bash", "-o", "pipefail", "-c", archive], cwd=REPOSITORY, check=True, timeout=STATUS_S)
            cluster.image(PREVIOUS_IMAGE, Path(source))
        given["HIGHWATER_PREVIOUS_IMAGE"] = PREVIOUS_IMAGE
    say(shlex.join(command))
    try:
        return Runner().run(command, minutes * 60, environment=given)
    except TimeoutError as error:
        raise FailedError(f"{shlex.join(command)}: {error}") from error


def guarded(cluster: Cluster, work: Callable[[], int]) -> int:
    """Does the work; a cluster that was not there before is taken down, and what is left of it told."""
    before = None if cluster.runs() else Machine()
    try:
        status = work()
    finally:
        with cleaning_up():
            left = [] if before is None else _taken_down(cluster, before)
    if left:
        raise FailedError("left after the cluster: " + ", ".join(left))
    return status


def _taken_down(cluster: Cluster, before: Machine) -> list[str]:
    """What is left of it; processes are killed."""
    try:
        cluster.down()
    except FailedError as error:
        say(str(error))
    deadline = time.monotonic() + GONE_S
    while (left := before.left()) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    while children := before.children():  # those of a killed one come here
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)
    for one in left:
        say(f"LEFT: {one}")
    return left


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=180, help="that the command has")
    parser.add_argument("--previous", default="", metavar="COMMIT", help="makes an image of it, too")
    parser.add_argument("--logs", type=Path, default=REPOSITORY / "build" / "k8s", help="where each step's output goes")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args(arguments)
    if not given.command:
        parser.error("name a command")
    tool = (REPOSITORY / os.environ.get("K8S_CLUSTER", DEFAULT_TOOL)).resolve()
    if not os.access(tool, os.X_OK):
        say(f"without the tests on Kubernetes: there is no {tool} to start one (K8S_CLUSTER names another)")
        return 0
    given.logs.mkdir(parents=True, exist_ok=True)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _stop)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    cluster = Cluster(tool, given.logs)
    try:
        with alone():
            return guarded(cluster, lambda: tested(cluster, given.command, given.minutes, given.previous))
    except NotTestedError as error:
        say(f"{error}\n=== THE TESTS ON KUBERNETES DID NOT RUN: the cluster cannot start on this machine ===")
        return 0
    except FailedError as error:
        say(f"FAILED: {error}")
        return 1
    except Stopped as error:
        say(f"stopped by {error}")
        return 128 + signal.Signals[str(error)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
