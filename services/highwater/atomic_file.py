"""Small files that are there whole or not at all after a crash: `.tmp`, fsync, rename, fsync of the directory."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TEMPORARY_SUFFIX = ".tmp"
SMALL_BYTES = 256 << 20  # no small file has more: at most a line of some hundred bytes for each log of a broker
OWNERS = 0o600
"""The mode of a file that nobody else on the machine may read."""
OWNERS_DIRECTORY = 0o700

_numbers = itertools.count()


class OversizedFileError(ValueError):
    """A file that is larger than any of its kind can be: it is damaged. The message names it."""


def read_whole(path: Path, most_bytes: int = SMALL_BYTES) -> bytes:
    """Reads a small file. Raises `OSError`, and `OversizedFileError`, without having read it, where it is none."""
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most_bytes:
            raise OversizedFileError(f"{path} has {size} bytes, such a file has {most_bytes} at most: it is damaged")
        return file.readall()


def replace_file(path: Path, content: bytes) -> None:
    """Puts `content` in the place of the file at `path`; it is on disk when this returns. Raises `OSError`: the file is
    the old one then (where the rename itself could not be made durable: the old or the new one, whole)."""
    write_whole(path, content, sync=True)
    fsync_directory(path.parent)


def write_whole(path: Path, content: bytes, *, sync: bool, mode: int = OWNERS) -> None:
    """The same, for the readers that `mode` allows, without the fsync of the directory; without `sync` the file is not
    synced either, and a crash of the machine may leave one that is torn. Raises `OSError`: nothing has changed."""
    # A name of its own: two threads may write the same file, and the last one to rename has it.
    temporary = path.with_name(f"{path.name}.{next(_numbers)}{TEMPORARY_SUFFIX}")
    try:
        _write(temporary, content, sync=sync, mode=mode)
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):  # what is left of it takes space where there may be none
            temporary.unlink(missing_ok=True)
        raise


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write a file to that takes the place of `path`, on disk, when the body ends; where it raises, nothing
    has changed. Raises `OSError`."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{next(_numbers)}{TEMPORARY_SUFFIX}")
    try:
        yield temporary
        fsync_file(temporary)
        os.replace(temporary, path)
    finally:
        with suppress(OSError):  # after the rename there is none
            temporary.unlink(missing_ok=True)
    fsync_directory(path.parent)


def remove_temporaries(directory: Path) -> None:
    """Removes what a crash has left of files that were about to be replaced. Nobody may be writing there. Raises
    `OSError`."""
    for path in directory.glob(f"*{TEMPORARY_SUFFIX}"):
        if path.is_file():
            path.unlink(missing_ok=True)


def _write(path: Path, content: bytes, *, sync: bool, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_file(path: Path) -> None:
    """Makes what a file holds durable. Raises `OSError`."""
    _fsync(path, 0)


def fsync_directory(path: Path) -> None:
    """Makes creations, renames and removals in a directory durable. Raises `OSError`."""
    _fsync(path, os.O_DIRECTORY)


def _fsync(path: Path, flags: int) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
