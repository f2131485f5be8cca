"""A disk that fails on demand: the calls that file operations are made of, for the files below one directory."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

WRITES = ("pwritev", "pwrite", "write")
SYNCS = ("fdatasync", "fsync")
READS = ("pread",)
CHANGES = ("ftruncate", "truncate", "replace", "rename", "unlink", "mkdir", "posix_fallocate")
_ON_DESCRIPTORS = (*WRITES, *SYNCS, *READS, "ftruncate", "posix_fallocate")
_BY_PATH = ("truncate", "replace", "rename", "unlink", "mkdir")


class FaultyDisk:
    """Until `fail` or `room` is set it is as sound as the real one."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._directory = os.path.realpath(directory)
        self._failing: dict[str, int] = {}
        self.room: int | None = None  # bytes that can still be written; None: as many as there are
        self.left: int | None = None  # operations until the disk fails for good; None: it does not
        self.met: list[str] = []  # what was refused
        for name in (*_ON_DESCRIPTORS, *_BY_PATH):
            monkeypatch.setattr(os, name, self._wrapped(name, getattr(os, name)))
        monkeypatch.setattr(os, "open", self._opening(os.open))
        monkeypatch.setattr(io, "open", self._opening(io.open))

    def fail(self, operations: Sequence[str], number: int = errno.EIO) -> None:
        """From now on these operations end with that error."""
        self._failing.update(dict.fromkeys(operations, number))

    def heal(self) -> None:
        self._failing.clear()
        self.room = self.left = None

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(where: Any, *arguments: Any, **options: Any) -> Any:
            path = _path_of(where)
            if not self._is_here(path):
                return real(where, *arguments, **options)
            self._check(name, path)
            if self.room is None or name not in (*WRITES, "posix_fallocate"):
                return real(where, *arguments, **options)
            return self._write(name, real, path, where, arguments)

        return call

    def _write(self, name: str, real: Callable[..., Any], path: str, where: Any, arguments: tuple[Any, ...]) -> Any:
        assert self.room is not None
        if name == "posix_fallocate":
            wanted = arguments[1]
            if wanted > self.room:
                raise self._refused(name, errno.ENOSPC, path)
            self.room -= wanted
            return real(where, *arguments)
        data = b"".join(arguments[0]) if name == "pwritev" else bytes(arguments[0])
        if data and not self.room:
            raise self._refused(name, errno.ENOSPC, path)
        data = data[: self.room]  # as the kernel does: what fits is written
        self.room -= len(data)
        return real(where, [data] if name == "pwritev" else data, *arguments[1:])

    def _opening(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *arguments: Any, **options: Any) -> Any:
            if not isinstance(path, int) and self._is_here(os.fspath(path)):
                self._check("open", os.fspath(path))
                mode = arguments[0] if arguments else options.get("mode", "r")
                new = isinstance(mode, str) and set(mode) & set("wxa")
                if self.room == 0 and new:
                    raise self._refused("open", errno.ENOSPC, os.fspath(path))
            return real(path, *arguments, **options)

        return call

    def _check(self, name: str, path: str) -> None:
        if self.left is not None:
            if not self.left:
                raise self._refused(name, errno.EIO, path)
            self.left -= 1
        number = self._failing.get(name)
        if number is not None:
            raise self._refused(name, number, path)

    def _refused(self, name: str, number: int, path: str) -> OSError:
        self.met.append(name)
        return OSError(number, os.strerror(number), path)

    def _is_here(self, path: str) -> bool:
        return os.path.abspath(path).startswith(self._directory + os.sep)


def _path_of(where: Any) -> str:
    return os.readlink(f"/proc/self/fd/{where}") if isinstance(where, int) else os.fspath(where)
