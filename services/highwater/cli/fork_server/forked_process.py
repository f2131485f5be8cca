"""The fork server as its user has it, and processes that it has started, handled as those of `subprocess` are."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from highwater.cli.fork_server import process_title
from highwater.errors import UserError
from highwater.rpc.process.local_process import tied_to_parent

_LOST = -signal.SIGKILL  # what its children die of when a fork server ends
_END_TIMEOUT_S = 10.0


def forks_here() -> bool:
    """Whether this machine has what it takes: a Linux that lets a process be watched that is not one's child, and a
    Python that was built with the headers of one (Conda's, and those that uv brings, may not be)."""
    if sys.platform != "linux" or not hasattr(os, "pidfd_open") or not hasattr(signal, "pidfd_send_signal"):
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


class ForkServer:
    """A process that forks `programs`: the module that each of them is, by that which `python -m` runs. Where it has
    ended, and what it had started with it, it is started again when it is next needed.

    Start it, and what it starts, from the main thread: the kernel ties the server to the thread that made it."""

    def __init__(self, programs: dict[str, str], log_file: Path) -> None:
        self._programs = programs
        self._log_file = log_file
        self._asking = threading.Lock()
        self._launch()

    def _launch(self) -> None:
        self._log_file.parent.mkdir(parents=True, exist_ok=True)
        self._requests, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with child_end, self._log_file.open("ab") as log:
            self._process = subprocess.Popen(
                tied_to_parent([sys.executable, "-m", "highwater.cli.fork_server", process_title.ROOM]),
                stdin=child_end.fileno(),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches the supervisor alone
            )
        self._requests.send(json.dumps(list(self._programs.values())).encode())

    def forks(self, command: Sequence[str]) -> bool:
        """Whether it can start this command: `[sys.executable, "-m", module, ...]` with a module that it knows."""
        return len(command) > 2 and list(command[:2]) == [sys.executable, "-m"] and command[2] in self._programs

    def start(self, command: Sequence[str], output: IO[bytes]) -> ForkedProcess:
        """Raises `UserError` where the server does not start."""
        request = {"module": self._programs[command[2]], "command": list(command)}
        for _ in range(2):
            answer = self._ask(request, output.fileno())
            # What was started is gone where the server was killed at once.
            with contextlib.suppress(ProcessLookupError):
                if answer is not None:
                    return ForkedProcess(answer["pid"], self)
            self.close()
            self._launch()
        said = self._log_file.read_text(errors="replace").splitlines()[-1:]
        raise UserError(f"the process that starts services has ended, see {self._log_file}: {''.join(said)}")

    def reap(self, pid: int) -> int:
        """The status of a process that has ended, as `subprocess` has it."""
        answer = self._ask({"reap": pid})
        return _LOST if answer is None else int(answer["status"])

    def close(self) -> None:
        """Ends it, and with it what it has started."""
        self._requests.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_TIMEOUT_S)
        self._process.kill()
        self._process.wait()

    def _ask(self, request: dict[str, Any], *files: int) -> dict[str, Any] | None:
        """None where it has ended."""
        with self._asking:
            try:
                socket.send_fds(self._requests, [json.dumps(request).encode()], files)
                answer = self._requests.recv(1 << 10)
            except OSError:
                return None
        return json.loads(answer) if answer else None


class ForkedProcess:
    """One that a fork server has started, with the part of `subprocess.Popen` that a supervisor needs."""

    def __init__(self, pid: int, server: ForkServer) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server
        # It keeps its id until it is reaped: this is the process that was started, though it may have ended.
        self._handle = os.pidfd_open(pid)
        weakref.finalize(self, os.close, self._handle)
        self._reaping = threading.Lock()

    def poll(self) -> int | None:
        return self._wait_ms(0)

    def wait(self, timeout: float | None = None) -> int:
        """Raises `subprocess.TimeoutExpired`."""
        status = self._wait_ms(None if timeout is None else max(0, round(timeout * 1e3)))
        if status is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return status

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, number)

    def _wait_ms(self, timeout_ms: int | None) -> int | None:
        if self.returncode is None:
            waiting = select.poll()  # `select.select` takes no descriptor above 1,023
            waiting.register(self._handle, select.POLLIN)
            if waiting.poll(timeout_ms):
                with self._reaping:
                    if self.returncode is None:
                        self.returncode = self._server.reap(self.pid)
        return self.returncode
