"""Who may write to an archive of plain files."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from threading import Event, Thread
from typing import ClassVar

import pytest

from highwater.errors import UserError
from highwater.spark.pipelines.files import lease
from highwater.spark.pipelines.files.lease import Files, Holder, Lease


class Disk:
    """A local one, that may be read while it is written."""

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def read(self, path: str) -> bytes:
        return Path(path).read_bytes()

    def overwrite(self, path: str, content: bytes) -> None:
        Path(path).write_bytes(content)

    def delete(self, path: str) -> None:
        Path(path).unlink()


class Hdfs(Disk):
    """Where a file that is begun anew is taken from who writes it."""

    begun: ClassVar[dict[str, object]] = {}

    def overwrite(self, path: str, content: bytes) -> None:
        self.begun[path] = writer = object()
        Path(path).write_bytes(b"")
        Event().wait(0.005)
        if self.begun[path] is not writer:
            raise OSError("java.io.FileNotFoundException: File does not exist")
        Path(path).write_bytes(content)


class Full(Disk):
    def overwrite(self, path: str, content: bytes) -> None:
        raise OSError("no space left")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "RENEW_S", 0.02)
    monkeypatch.setattr(lease, "LEASE_S", 1.0)
    monkeypatch.setattr(lease, "SETTLE_S", 0.02)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "writer.json"


def of(path: Path, files: Files | None = None) -> Lease:
    return Lease(files or Disk(), str(path), "archive pipeline", "writes to /archive")


def written_by(path: Path, *, pid: int, processes: str = "elsewhere") -> None:
    holder = {"run": "another", "host": socket.gethostname(), "pid": pid, "renewed_ms": 1, "processes": processes}
    path.write_text(json.dumps(holder))


def test_one_at_a_time(path: Path) -> None:
    first, second = of(path), of(path)
    with first.held():
        first.check()
        whose = rf"another archive pipeline \(process {os.getpid()} on .*\) writes to /archive: only one at a time can"
        with pytest.raises(UserError, match=whose), second.held():
            pass
        first.check()
    assert not path.exists()
    with second.held():
        second.check()
        with pytest.raises(UserError, match="writes to /archive"):
            first.check()


def test_who_is_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that says nothing any more, and none that is known to be gone."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    monkeypatch.setattr(lease, "LEASE_S", 60.0)
    written_by(path, pid=gone.pid, processes=lease.process_namespace())
    with of(path).held():
        pass
    monkeypatch.setattr(lease, "LEASE_S", 0.1)
    for pid, processes in ((1, "elsewhere"), (os.getpid(), lease.process_namespace())):
        written_by(path, pid=pid, processes=processes)
        taken = of(path)
        with taken.held():
            taken.check()


def test_a_pid_of_other_processes_says_nothing() -> None:
    """Of another container or machine with this one's name: its process may be alive."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    here = socket.gethostname(), gone.pid, 1
    assert Holder("r", *here, lease.process_namespace()).gone
    for processes in ("elsewhere", ""):  # "": written by a version that did not say
        assert not Holder("r", *here, processes).gone


def test_what_is_no_lease_is_replaced(path: Path) -> None:
    for text in ("", "{", "[]", '{"run": 1}'):
        path.write_text(text)
        taken = of(path)
        with taken.held():
            taken.check()


def test_whose_lease_was_taken_may_not_write_and_leaves_it_alone(path: Path) -> None:
    first = of(path)
    with first.held():
        written_by(path, pid=7)
        Event().wait(0.1)
        written_by(path, pid=7)  # again: a renewal may have been under way
        with pytest.raises(UserError, match=r"another archive pipeline \(process 7 on .*\)"):
            first.check()
    assert json.loads(path.read_text())["run"] == "another"


def test_a_lease_that_cannot_be_written_is_nobody_elses_fault(path: Path) -> None:
    with pytest.raises(OSError, match="no space left"), of(path, Full()).held():
        pass
    written_by(path, pid=7)
    with pytest.raises(OSError, match="no space left"), of(path, Full()).held():
        pass


@pytest.mark.parametrize("files", [Disk(), Hdfs()])
def test_of_many_at_once_one_may_write(path: Path, files: Files) -> None:
    go, done = Event(), Event()
    holding: list[int] = []
    refused: list[Exception] = []

    def stand(number: int) -> None:
        go.wait()
        one = of(path, files)
        try:
            with one.held():
                one.check()
                holding.append(number)
                done.wait(5)
        except Exception as error:
            refused.append(error)

    threads = [Thread(target=stand, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    go.set()
    while len(holding) + len(refused) < 6:
        Event().wait(0.01)
    done.set()
    for thread in threads:
        thread.join()
    assert (len(holding), len(refused)) == (1, 5)
    assert all(isinstance(error, UserError) for error in refused), refused
