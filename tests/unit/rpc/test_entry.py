"""SIGTERM ends a service's process while it is still importing, and as the first process of a container too."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import highwater

SERVICES = ("controller", "fetcher", "log_storage", "replica_manager")
# In short sleeps: Python runs no handler of a signal that comes in the moment before a long one begins.
SLOW_IMPORT = """
import sys, time
print("importing", file=sys.stderr, flush=True)
for _ in range(600):
    time.sleep(0.1)
"""
DEADLINE_S = 20


@contextmanager
def importing(service: str, directory: Path, *before: str) -> Iterator[subprocess.Popen[bytes]]:
    """The service's process, in the midst of its imports: gRPC's does not come to an end."""
    (directory / "grpc").mkdir()
    (directory / "grpc" / "__init__.py").write_text(SLOW_IMPORT)
    path = os.pathsep.join((str(directory), str(Path(highwater.__file__).parents[1])))
    process = subprocess.Popen(
        [*before, sys.executable, "-m", f"highwater.{service}"],
        env={**os.environ, "PYTHONPATH": path},
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        assert process.stderr.readline() == b"importing\n"
        yield process
    finally:
        process.kill()
        process.communicate(timeout=DEADLINE_S)


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_ends_while_it_is_importing(service: str, number: signal.Signals, tmp_path: Path) -> None:
    with importing(service, tmp_path) as process:
        process.send_signal(number)
        assert process.wait(DEADLINE_S) == 0


def test_so_does_the_first_process_of_a_container(tmp_path: Path) -> None:
    """The kernel gives it no signal that it has no handler for."""
    unshare = shutil.which("unshare")
    if unshare is None or os.geteuid() != 0:
        pytest.skip("a namespace of processes takes root and unshare")
    command = (unshare, "--pid", "--fork", "--kill-child")
    if subprocess.run([*command, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no namespace of processes can be made here")
    with importing("replica_manager", tmp_path, *command) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
