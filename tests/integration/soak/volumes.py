"""A small file system under each log directory, which can be made full."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOMY_BYTES = 3 << 30


class Volumes:
    """tmpfs volumes in this process's own mount namespace: they end with it, however it ends."""

    def __init__(self) -> None:
        self._mounted: list[Path] = []

    def mount(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        _run("mount", "-t", "tmpfs", "-o", f"size={ROOMY_BYTES},mode=755", "tmpfs", str(directory))
        self._mounted.append(directory)

    def fill(self, directory: Path, spare_bytes: int) -> None:
        """Leaves so much room: the volume shrinks to what is used. Raises `CalledProcessError` where that grows."""
        found = os.statvfs(directory)
        used = (found.f_blocks - found.f_bfree) * found.f_frsize
        _run("mount", "-o", f"remount,size={used + spare_bytes}", str(directory))

    def mend(self, directory: Path) -> None:
        _run("mount", "-o", f"remount,size={ROOMY_BYTES}", str(directory))

    def close(self) -> None:
        """Unmounts them; what is in them stands in the directories afterwards."""
        for directory in self._mounted:
            copy = directory.with_name(directory.name + ".kept")
            shutil.copytree(directory, copy)
            _run("umount", "--lazy", str(directory))
            directory.rmdir()
            copy.rename(directory)
        self._mounted.clear()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
