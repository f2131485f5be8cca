"""A small file system of its own, where the machine allows mounts. Tests that use one have a variant with injected
errors, which always runs."""

from __future__ import annotations

import functools
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@functools.cache
def may_mount() -> bool:
    if os.geteuid() != 0:
        return False
    with tempfile.TemporaryDirectory() as directory:
        try:
            with mounted(Path(directory), 1 << 20):
                return True
        except (OSError, subprocess.CalledProcessError):
            return False


@contextmanager
def mounted(directory: Path, size_bytes: int) -> Iterator[None]:
    """A tmpfs of that size at `directory`, which exists."""
    options = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(directory)]
    subprocess.run(options, check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True, capture_output=True)
