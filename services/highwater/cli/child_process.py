"""A child process that cannot outlive its parent."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from highwater.cli.fork_server.forked_process import ForkedProcess, ForkServer
from highwater.rpc.process.local_process import tied_to_parent


class ChildProcess:
    """One program, started again as often as wanted, its output appended to a log file. Start it from the main thread:
    the kernel ties the child to the thread that made it. What `fork_server` can start is forked there."""

    def __init__(self, name: str, command: Sequence[str], log_file: Path, fork_server: ForkServer | None = None):
        self.name = name
        self.command = list(command)
        self.log_file = log_file
        self._fork_server = fork_server
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None
        self._log_begin = 0  # where the log of this start begins

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_status(self) -> int | None:
        return self._process.poll() if self._process is not None else None

    def start(self) -> None:
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        with self.log_file.open("ab") as output:
            self._log_begin = output.tell()
            self._process = self._spawn(output)

    def _spawn(self, output: IO[bytes]) -> subprocess.Popen[bytes] | ForkedProcess:
        if self._fork_server is not None and self._fork_server.forks(self.command):
            return self._fork_server.start(self.command, output)
        return subprocess.Popen(
            tied_to_parent(self.command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches the supervisor alone, which stops the rest in order
        )

    def kill(self) -> None:
        """SIGKILL, and waits for the end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def terminate(self) -> None:
        """SIGTERM, without waiting."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def wait(self, timeout_s: float) -> bool:
        """Tells whether it ended within the time."""
        if self._process is None:
            return True
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        return self._process.poll() is not None

    def last_words(self, lines: int = 5) -> str:
        """The end of what it wrote since it was started last, for an error message."""
        try:
            with self.log_file.open("rb") as log:
                log.seek(self._log_begin)
                return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])
        except OSError:
            return ""
