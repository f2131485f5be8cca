"""Small files that are there whole or not at all after a crash: `.tmp`, fsync, rename, fsync of the directory."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Puts `content` in the place of the file at `path`; it is on disk when this returns. Raises `OSError`: the file is
    the old one then (where the rename itself could not be made durable: the old or the new one, whole)."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        _write(temporary, content)
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):  # what is left of it takes space where there may be none
            temporary.unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_directory(path: Path) -> None:
    """Makes creations, renames and removals in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
