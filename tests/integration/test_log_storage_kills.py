"""A process that appends, rolls, flushes, compacts, retains, truncates and restarts is killed with SIGKILL at random
instants, hundreds of times: its log reopens to what invariants 7 and 8 promise."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

KILLER = Path(__file__).with_name("log_storage_killer.py")
KILLS = 250
SECONDS = 60  # on a busy machine fewer kills will do
# A killed process loses nothing of what it has written, on whichever file system: this one does not wait for a disk.
MEMORY = Path("/dev/shm")
SEED = 11


@pytest.mark.timeout(180)
def test_killed_hundreds_of_times(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else tmp_path) as directory:
        command = [sys.executable, str(KILLER), f"{directory}/data", str(KILLS), str(SECONDS), str(SEED)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.startswith("killed ")
