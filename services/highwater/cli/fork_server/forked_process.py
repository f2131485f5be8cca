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

MODULE = "highwater.cli.fork_server"
LONGEST_MESSAGE = 1 << 17  # bytes
_LONGEST_ANSWER = 1 << 10  # bytes
_LOST = -signal.SIGKILL  # what its children die of when a fork server ends


def forks_here() -> bool:
    """Tells whether this machine has what it takes: a Linux that lets a process be watched that is not one's child, and
    a Python that was built with the headers of one (Conda's, and those that uv brings, may not be)."""
    if sys.platform != "linux" or not hasattr(os, "pidfd_open") or not hasattr(signal, "pidfd_send_signal"):
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


class ForkServer:
    """A process that forks `programs`: the module that each of them is, by that which `python -m` runs. It has
    `answer_timeout_s` for each answer, the first of which comes after its imports, and is ended where it gives none.
    Where it has ended, and what it had started with it, it is started again when it is next needed.

    Start it, and what it starts, from the main thread: the kernel ties the server to the thread that made it."""

    def __init__(self, programs: dict[str, str], log_file: Path, answer_timeout_s: float = 60.0) -> None:
        self._programs = programs
        self._log_file = log_file
        self._answer_timeout_s = answer_timeout_s
        self._starting = threading.Lock()
        self._server = self._launched()

    def _launched(self) -> _ServerProcess:
        self._log_file.parent.mkdir(parents=True, exist_ok=True)
        return _ServerProcess(list(self._programs.values()), self._log_file, self._answer_timeout_s)

    @property
    def ready(self) -> bool:
        """Tells whether `start` answers at once, be it with an error."""
        return self._server.ready

    def forks(self, command: Sequence[str]) -> bool:
        """Tells whether it can start this: `[sys.executable, "-m", module, ...]`, a module that it knows, and no longer
        than a message."""
        return (
            len(command) > 2
            and list(command[:2]) == [sys.executable, "-m"]
            and command[2] in self._programs
            and len(self._request(command)) <= LONGEST_MESSAGE
        )

    def start(self, command: Sequence[str], output: IO[bytes]) -> ForkedProcess:
        """Raises `UserError` where the server does not start, `OSError` where the machine has no room for a process."""
        with self._starting:
            for _ in range(2):
                if self._server.ended:
                    self._server = self._launched()
                answer = self._server.ask(self._request(command), output.fileno())
                if answer is None:
                    continue
                if "errno" in answer:
                    raise OSError(answer["errno"], os.strerror(answer["errno"]))
                # What was started is gone where the server was killed at once.
                with contextlib.suppress(ProcessLookupError):
                    return ForkedProcess(answer["pid"], self._server)
                self._server.end()
            said = self._log_file.read_text(errors="replace").splitlines()[-1:]
            raise UserError(f"the process that starts services has ended, see {self._log_file}: {''.join(said)}")

    def close(self) -> None:
        """Ends it, and with it what it has started."""
        self._server.end()

    def _request(self, command: Sequence[str]) -> bytes:
        return json.dumps({"module": self._programs[command[2]], "command": list(command)}).encode()


class _ServerProcess:
    """One process that forks, with the socket to it."""

    def __init__(self, modules: list[str], log_file: Path, answer_timeout_s: float) -> None:
        self._requests, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._requests.settimeout(answer_timeout_s)
        with child_end, log_file.open("ab") as log:
            self._process = subprocess.Popen(
                tied_to_parent([sys.executable, "-m", MODULE, process_title.ROOM]),
                stdin=child_end.fileno(),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches the supervisor alone
            )
        self._asking = threading.RLock()
        self._prepared = False  # it has said so
        with contextlib.suppress(OSError):  # it has ended already
            self._requests.send(json.dumps(modules).encode())

    @property
    def ready(self) -> bool:
        """Also where it has ended."""
        with self._asking:
            return self._prepared or self.ended or _readable(self._requests.fileno(), 0)

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def ask(self, request: bytes, *files: int) -> dict[str, Any] | None:
        """None where it has ended. One that does not answer is ended, too, and one whose answer nobody waits for (after
        Ctrl-C): it would be taken for the next."""
        with self._asking:
            answer = b""
            try:
                if not self._prepared:
                    self._prepared = bool(self._requests.recv(_LONGEST_ANSWER))
                socket.send_fds(self._requests, [request], files)
                answer = self._requests.recv(_LONGEST_ANSWER)
            except OSError:
                return None
            finally:
                if not answer:
                    self.end()
        return json.loads(answer) if answer else None

    def end(self) -> None:
        self._process.kill()  # at first, so that nobody waits for an answer
        with self._asking:
            self._requests.close()
            self._process.wait()


class ForkedProcess:
    """One that a fork server has started, with the part of `subprocess.Popen` that a supervisor needs."""

    def __init__(self, pid: int, server: _ServerProcess) -> None:
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
        if self.returncode is None and _readable(self._handle, timeout_ms):
            with self._reaping:
                if self.returncode is None:
                    self.returncode = self._reaped()
        return self.returncode

    def _reaped(self) -> int:
        """The status of this process, which has ended, as `subprocess` has it."""
        answer = self._server.ask(json.dumps({"reap": self.pid}).encode())
        return _LOST if answer is None else int(answer["status"])


def _readable(descriptor: int, timeout_ms: int | None) -> bool:
    waiting = select.poll()  # `select.select` takes no descriptor above 1,023
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(timeout_ms))
