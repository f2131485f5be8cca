"""Pipelines as processes of their own, for tests to kill."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import monotonic

DEADLINE_S = 600


class PipelineProcess:
    """`highwater pipeline …`, again and again, with one log."""

    def __init__(self, name: str, log: Path, master: str = "local[2]") -> None:
        self._line = [sys.executable, "-m", f"highwater.spark.pipelines.{name}", "--master", master]
        self._log = log
        self._running: subprocess.Popen[bytes] | None = None

    def start(self, arguments: Sequence[str]) -> int:
        """Its process group."""
        with self._log.open("ab") as log:
            self._running = subprocess.Popen([*self._line, *arguments], stdout=log, stderr=log, start_new_session=True)
        return self._running.pid

    @property
    def running(self) -> bool:
        return self._running is not None and self._running.poll() is None

    def wait(self, timeout_s: float) -> int | None:
        """The exit status; None where it runs on for so long."""
        assert self._running is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._running.wait(timeout_s)
        return None

    def until(self, holds: Callable[[], bool], every_s: float = 0.01) -> None:
        """Waits for a state of the outside; the process may not end before. To look takes from what it needs."""
        assert self._running is not None
        deadline = monotonic() + DEADLINE_S
        while not holds():
            assert monotonic() < deadline, self.said()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._running.wait(every_s)
                raise AssertionError(self.said())

    def kill(self) -> None:
        """Python and the JVM at once, as when a node is lost."""
        if self._running is not None:
            with contextlib.suppress(ProcessLookupError):  # it has ended by itself
                os.killpg(self._running.pid, signal.SIGKILL)
            self._running.wait()
            self._running = None

    def interrupt(self) -> None:
        """As Ctrl-C does."""
        assert self._running is not None
        self._running.send_signal(signal.SIGINT)

    def terminate(self) -> None:
        """As Kubernetes does: SIGTERM to the container's first process, which is Python."""
        assert self._running is not None
        self._running.terminate()

    def end(self, status: int = 0) -> None:
        """Waits for it to end by itself."""
        assert self._running is not None
        assert self._running.wait(DEADLINE_S) == status, self.said()
        self._running = None

    def said(self) -> str:
        return self._log.read_text()[-4000:]


@contextlib.contextmanager
def pipeline_process(name: str, directory: Path) -> Iterator[PipelineProcess]:
    process = PipelineProcess(name, directory / "log")
    try:
        yield process
    finally:
        process.kill()
