from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from highwater.cli.child_process import ChildProcess
from highwater.cli.fork_server.forked_process import ForkServer, forks_here
from highwater.cli.local_cluster import PROGRAMS
from highwater.errors import UserError

pytestmark = pytest.mark.skipif(not forks_here(), reason="no pidfd")

PROGRAM = """
import json, os, sys, time

def main():
    print(json.dumps([sys.argv[1:], os.getpid() == os.getsid(0), sys.stdin.read(), os.getppid()]), flush=True)
    if "--wait" in sys.argv:
        time.sleep(600)
    print("not said", end="")  # until the interpreter ends
    sys.exit(3)
"""


Servers = Callable[..., ForkServer]


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Servers]:
    """Starts fork servers, of `speaker` and of modules that consist of the lines given."""
    package = tmp_path / "speaker"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "process.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    started: list[ForkServer] = []

    def start(answer_timeout_s: float = 60.0, **modules: str) -> ForkServer:
        for name, lines in modules.items():
            (tmp_path / f"{name}.py").write_text(lines)
        programs = {"speaker": "speaker.process", **{name: name for name in modules}}
        started.append(ForkServer(programs, tmp_path / "logs" / "fork-server.log", answer_timeout_s))
        return started[-1]

    yield start
    for server in started:
        server.close()


@pytest.fixture
def server(servers: Servers) -> ForkServer:
    return servers()


def speaker(server: ForkServer, tmp_path: Path, *arguments: str) -> ChildProcess:
    command = [sys.executable, "-m", "speaker", *arguments]
    return ChildProcess("speaker", command, tmp_path / "logs" / "speaker.log", server)


def said(child: ChildProcess) -> list[object]:
    while not (line := child.last_words(1)):
        assert child.running
    found: list[object] = json.loads(line)
    return found


def server_of(child: ChildProcess) -> psutil.Process:
    parent = psutil.Process(child.pid).parent()
    assert parent is not None
    return parent


def test_a_program_runs_as_if_it_were_started_by_itself(server: ForkServer, tmp_path: Path) -> None:
    child = speaker(server, tmp_path, "--set=a=b", "two words")
    child.start()
    assert child.wait(20)
    assert child.exit_status == 3
    told, rest = child.log_file.read_text().splitlines()
    assert json.loads(told)[:3] == [["--set=a=b", "two words"], True, ""]
    assert rest == "not said"
    child.start()
    assert child.wait(20)
    assert child.log_file.read_text().count("not said") == 2


def test_it_is_seen_as_what_it_is_and_has_no_open_files_of_the_servers(server: ForkServer, tmp_path: Path) -> None:
    child = speaker(server, tmp_path, "--wait")
    child.start()
    said(child)
    process = psutil.Process(child.pid)
    assert " ".join(process.cmdline()) == f"{sys.executable} -m speaker --wait"
    files = {os.readlink(f"/proc/{child.pid}/fd/{number}") for number in os.listdir(f"/proc/{child.pid}/fd")}
    assert files == {"/dev/null", str(child.log_file)}
    child.terminate()
    assert child.wait(20)
    assert child.exit_status == 0  # as any service that is stopped before it has begun


def test_it_is_named_as_it_is_by_itself_wherever_it_runs(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an environment of little room, and a directory whose name is no UTF-8."""
    for variable in os.environ.keys() - {"PYTHONPATH"}:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), f"{Path(__file__).parents[3]}/services"]))
    child = speaker(servers(), tmp_path, "--wait", "--set=log.dirs=/caf\udce9", f"--set=long={'a' * 3000}")
    child.start()
    said(child)
    process = psutil.Process(child.pid)
    assert " ".join(process.cmdline()) == " ".join(child.command)
    assert process.name().startswith("python")  # what `top` and `killall` go by
    assert process.environ()["PYTHONPATH"] == os.environ["PYTHONPATH"]
    assert " ".join(server_of(child).cmdline()) == f"{sys.executable} -m highwater.cli.fork_server"


def test_its_messages_name_the_program_that_was_run(tmp_path: Path) -> None:
    server = ForkServer({"highwater.fetcher": "highwater.fetcher.process"}, tmp_path / "fork-server.log")
    command = [sys.executable, "-m", "highwater.fetcher", "--help"]
    child = ChildProcess("fetcher", command, tmp_path / "fetcher.log", server)
    child.start()
    assert child.wait(20)
    server.close()
    assert child.log_file.read_text().startswith("usage: python -m highwater.fetcher [-h]")


def test_a_killed_one_is_told(server: ForkServer, tmp_path: Path) -> None:
    child = speaker(server, tmp_path, "--wait")
    child.start()
    assert not child.wait(0.01)
    child.kill()
    assert child.exit_status == -signal.SIGKILL
    assert not child.running
    child.kill()


def test_several_threads_may_look_at_once(server: ForkServer, tmp_path: Path) -> None:
    for _ in range(20):
        child = speaker(server, tmp_path)
        child.start()
        found: list[int | None] = []

        def look(child: ChildProcess = child, found: list[int | None] = found) -> None:
            child.wait(20)
            found.append(child.exit_status)

        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [3, 3, 3, 3]


def test_children_end_with_the_server_and_another_one_is_started(server: ForkServer, tmp_path: Path) -> None:
    child = speaker(server, tmp_path, "--wait")
    child.start()
    said(child)
    server_of(child).kill()
    assert child.wait(20)
    assert child.exit_status == -signal.SIGKILL
    child.start()
    said(child)
    assert child.running
    server.close()
    assert child.wait(20)


def test_a_server_is_not_asked_for_what_an_earlier_one_started(server: ForkServer, tmp_path: Path) -> None:
    first, second = speaker(server, tmp_path, "--wait"), speaker(server, tmp_path, "--wait")
    first.start()
    second.start()
    server_of(first).kill()
    assert first.wait(20)
    first.start()
    assert second.wait(20)
    assert second.exit_status == -signal.SIGKILL
    assert first.running


def test_children_are_reaped_though_the_supervisor_was_started_without_sigchld(
    servers: Servers, tmp_path: Path
) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        server = servers()
    finally:
        signal.signal(signal.SIGCHLD, before)
    goes_on, ends = speaker(server, tmp_path, "--wait"), speaker(server, tmp_path)
    goes_on.start()
    ends.start()
    assert ends.wait(20)
    assert ends.exit_status == 3
    assert goes_on.running


def test_ctrl_c_in_a_request_leaves_no_answer_for_the_next(server: ForkServer, tmp_path: Path) -> None:
    first, second = speaker(server, tmp_path, "--wait"), speaker(server, tmp_path, "--wait")
    first.start()
    said(first)
    server_of(first).suspend()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            second.start()
    finally:
        signal.signal(signal.SIGALRM, before)
    first.kill()
    assert first.exit_status == -signal.SIGKILL
    second.start()
    said(second)
    assert second.running


def test_a_server_that_does_not_answer_is_ended(servers: Servers, tmp_path: Path) -> None:
    server = servers(answer_timeout_s=4.0)
    goes_on, ends = speaker(server, tmp_path, "--wait"), speaker(server, tmp_path)
    goes_on.start()
    said(goes_on)
    ends.start()
    server_of(goes_on).suspend()
    assert ends.wait(20)
    assert goes_on.wait(20)
    assert (ends.exit_status, goes_on.exit_status) == (-signal.SIGKILL, -signal.SIGKILL)
    ends.start()
    assert ends.wait(20)
    assert ends.exit_status == 3


def test_it_is_ready_when_it_has_imported_all_and_closed_before(servers: Servers, tmp_path: Path) -> None:
    server = servers(slow=f"import os, time\nwhile not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.01)")
    assert not server.ready
    begun = time.monotonic()
    server.close()
    assert time.monotonic() - begun < 5
    assert server.ready  # to say that it has ended
    (tmp_path / "go").touch()
    child = speaker(server, tmp_path)
    child.start()
    assert child.wait(20)
    assert server.ready


def test_where_nothing_can_be_forked_the_others_go_on(servers: Servers, tmp_path: Path) -> None:
    module = f"""
import os
fork = os.fork
def full():
    if os.path.exists({str(tmp_path / "full")!r}):
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return fork()
os.fork = full
"""
    server = servers(full=module)
    first, second = speaker(server, tmp_path, "--wait"), speaker(server, tmp_path)
    first.start()
    (tmp_path / "full").touch()
    with pytest.raises(BlockingIOError):
        second.start()
    assert first.running
    (tmp_path / "full").unlink()
    second.start()
    assert second.wait(20)
    assert first.running


def test_several_threads_may_start_what_a_killed_server_had(server: ForkServer, tmp_path: Path) -> None:
    children = [speaker(server, tmp_path, "--wait") for _ in range(4)]
    children[0].start()
    server_of(children[0]).kill()
    assert children[0].wait(20)
    looked = threading.Event()
    started = threading.Semaphore(0)

    def start(child: ChildProcess) -> None:
        child.start()
        started.release()
        looked.wait(60)  # the server ends with the thread that made it

    threads = [threading.Thread(target=start, args=(child,)) for child in children]
    for thread in threads:
        thread.start()
    try:
        for _ in threads:
            assert started.acquire(timeout=20)
        assert all(child.running for child in children)
        assert len({server_of(child) for child in children}) == 1
    finally:
        looked.set()
        for thread in threads:
            thread.join()


def test_all_end_with_the_supervisor(tmp_path: Path, server: ForkServer) -> None:
    code = f"""
        import sys, threading
        from pathlib import Path
        from highwater.cli.child_process import ChildProcess
        from highwater.cli.fork_server.forked_process import ForkServer
        logs = Path({str(tmp_path)!r}) / "supervised"
        child = ChildProcess("speaker", [sys.executable, "-m", "speaker", "--wait"], logs / "speaker",
                             ForkServer({{"speaker": "speaker.process"}}, logs / "server"))
        child.start()
        print(child.pid, flush=True)
        threading.Event().wait()
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        forking = psutil.Process(pid).ppid()
        watched = [os.pidfd_open(pid), os.pidfd_open(forking)]
        parent.kill()
    try:
        for handle in watched:
            ended, _, _ = select.select([handle], [], [], 20)
            assert ended
    finally:
        for handle in watched:
            os.close(handle)


def test_what_it_does_not_know_is_started_otherwise(server: ForkServer, tmp_path: Path) -> None:
    for command in (["sh", "-c", "exit 4"], [sys.executable, "-m", "timeit", "--no-such-option"], [sys.executable]):
        assert not server.forks(command)
    assert not server.forks([sys.executable, "-m", "speaker", *["x" * 50_000] * 3])  # more than a message holds
    child = ChildProcess("shell", ["sh", "-c", "exit 4"], tmp_path / "log", server)
    child.start()
    assert child.wait(20)
    assert child.exit_status == 4


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    server = ForkServer({"speaker": "no_such_module"}, tmp_path / "fork-server.log")
    with pytest.raises(UserError, match=r"fork-server\.log: ModuleNotFoundError: No module named 'no_such_module'"):
        speaker(server, tmp_path).start()
    server.close()


def test_a_python_that_does_not_know_of_pidfds_forks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Conda's 3.11 was built."""
    monkeypatch.delattr(os, "pidfd_open")
    assert not forks_here()


def test_importing_the_services_starts_no_thread() -> None:
    """Another thread's locks would stay held in a fork."""
    code = """
import json, os, sys
from highwater.cli.fork_server.__main__ import prepare
prepare(json.loads(sys.argv[1]))
print(len(os.listdir("/proc/self/task")))
"""
    command = [sys.executable, "-c", code, json.dumps(list(PROGRAMS.values()))]
    assert subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout == "1\n"
