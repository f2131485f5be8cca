"""Starts a log-storage on disks that fail on demand, as the last machine that Python sees of a real one:

    python log_storage_launcher.py CONTROL --set=broker.id=1 ...

CONTROL is a directory of the broker's own. Its files:

- `boot_id`: what the service takes for the kernel's, so that a loss of power can be played;
- `faults.json`: `{"<log directory>": {"operations": {"fdatasync": 5}, "after": 0, "drop": true}}`: calls that end with
  that errno, `after` so many more of them. It is looked at every few milliseconds, and before the service starts;
- `synced`: (device, inode, bytes) as often as a file was synced or cut: what is behind that is only in the page cache;
- `dropped`: device, inode and position, for each file whose unsynced bytes were dropped.

With `drop` the first sync that fails finds the directory's dirty pages gone: whatever was not synced reads as zeros, as
pages that the kernel could not write do once they have left the page cache.

The cleaner's process is started by this, too, with `cleaner` and its limits behind CONTROL, and has the same disk.
"""

from __future__ import annotations

import errno
import io
import json
import os
import stat
import struct
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import sleep
from typing import Any

WRITES = ("pwritev", "pwrite", "write", "posix_fallocate")
SYNCS = ("fdatasync", "fsync")
READS = ("pread",)
CHANGES = ("ftruncate", "truncate", "replace", "rename", "unlink", "mkdir")
OPENS = ("open",)
RESERVE = ".reserve"
_POLL_S = 0.01
_SYNCED = struct.Struct(">QQQ")
_CLEANER = "cleaner"

File = tuple[int, int]
"""Device and inode."""


def file_of(status: os.stat_result) -> File:
    return status.st_dev, status.st_ino


class SyncedSizes:
    """How much of each file is on the disk. In a file, since the page cache outlives a process, and two share it."""

    def __init__(self, path: Path) -> None:
        self._sizes: dict[File, int] = {}
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._read_to = 0
        self._reading = threading.Lock()
        self._write, self._pread = os.write, os.pread  # the real ones, before they are wrapped

    def of(self, file: File) -> int:
        with self._reading:  # what another process has noted, too
            while told := self._pread(self._file, _SYNCED.size << 10, self._read_to):
                told = told[: len(told) // _SYNCED.size * _SYNCED.size]
                self._sizes.update(_sizes_of(told))
                self._read_to += len(told)
            return self._sizes.get(file, 0)

    def note(self, file: File, size_bytes: int) -> None:
        self._write(self._file, _SYNCED.pack(*file, size_bytes))


def read_synced(path: Path) -> dict[File, int]:
    if not path.exists():
        return {}
    whole = path.read_bytes()
    return _sizes_of(whole[: len(whole) // _SYNCED.size * _SYNCED.size])


def _sizes_of(entries: bytes) -> dict[File, int]:
    return {(device, inode): size_bytes for device, inode, size_bytes in _SYNCED.iter_unpack(entries)}


def unsynced(directory: Path, sizes: Callable[[File], int]) -> list[tuple[Path, int, int]]:
    """Files with bytes that are not on the disk: path, from where, up to where."""
    found = []
    for parent, _, names in os.walk(directory):
        for name in names:
            if name == RESERVE:
                continue  # what it holds is of no interest to anybody
            path = Path(parent, name)
            try:
                status = path.lstat()
            except FileNotFoundError:
                continue
            if stat.S_ISREG(status.st_mode) and status.st_size > sizes(file_of(status)):
                found.append((path, sizes(file_of(status)), status.st_size))
    return found


@dataclass
class Failing:
    """What is wrong with one directory."""

    operations: dict[str, int]  # errno, of each
    after: int = 0  # so many more of them succeed
    drop: bool = False
    met: set[str] = field(default_factory=set)


class FaultyDisk:
    def __init__(self, control: Path) -> None:
        self._control = control
        self._faults: dict[str, Failing] = {}  # by directory, with a slash at its end
        self._read_at = -1
        self._lock = threading.Lock()
        self._open = os.open
        self._pwrite = os.pwrite
        self._fsync = os.fsync
        self._synced = SyncedSizes(control / "synced")

    def install(self) -> None:
        """Wraps the calls that file operations are made of."""
        self.look()
        for name in (*WRITES, *READS, "mkdir"):
            setattr(os, name, self._failing(name, getattr(os, name)))
        for name in SYNCS:
            setattr(os, name, self._syncing(name, getattr(os, name)))
        for name in ("ftruncate", "truncate"):
            setattr(os, name, self._cutting(name, getattr(os, name)))
        for name in ("replace", "rename", "unlink"):
            setattr(os, name, self._removing(name, getattr(os, name)))
        os.open = self._opening(os.open)
        io.open = self._opening(io.open)
        threading.Thread(target=self._watch, name="faults", daemon=True).start()

    def _watch(self) -> None:
        while True:
            sleep(_POLL_S)
            self.look()

    def look(self) -> None:
        """Takes in what `faults.json` says."""
        path = self._control / "faults.json"
        try:
            changed = os.stat(path).st_mtime_ns
        except FileNotFoundError:
            return
        if changed == self._read_at:
            return
        with io.FileIO(path) as file:
            said = json.loads(file.read())
        self._read_at = changed
        self._faults = {os.path.realpath(directory) + os.sep: Failing(**fault) for directory, fault in said.items()}

    # -- the calls ----------------------------------------------------------------------------------------------------

    def _failing(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(where: Any, *arguments: Any, **options: Any) -> Any:
            if self._faults:
                self._check(name, _path_of(where))
            return real(where, *arguments, **options)

        return call

    def _syncing(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(descriptor: int) -> None:
            if self._faults:
                self._check(name, _path_of(descriptor))
            before = os.fstat(descriptor)
            real(descriptor)
            if stat.S_ISREG(before.st_mode):
                self._synced.note(file_of(before), before.st_size)

        return call

    def _cutting(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(where: Any, size_bytes: int) -> None:
            if self._faults:
                self._check(name, _path_of(where))
            real(where, size_bytes)
            file = file_of(os.stat(where))
            if self._synced.of(file) > size_bytes:
                self._synced.note(file, size_bytes)

        return call

    def _removing(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        """An inode that goes may be given to another file."""

        def call(path: Any, *arguments: Any, **options: Any) -> Any:
            if self._faults and options.get("dir_fd") is None:
                self._check(name, _path_of(path))
            gone = arguments[0] if arguments else path
            try:
                file = file_of(os.stat(gone, dir_fd=options.get("dir_fd"), follow_symlinks=False))
            except OSError:
                file = (0, 0)
            answer = real(path, *arguments, **options)
            if self._synced.of(file):
                self._synced.note(file, 0)
            return answer

        return call

    def _opening(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *arguments: Any, **options: Any) -> Any:
            if self._faults and not isinstance(path, int) and options.get("dir_fd") is None:
                self._check("open", os.fspath(path))
            return real(path, *arguments, **options)

        return call

    # -- failing ------------------------------------------------------------------------------------------------------

    def _check(self, name: str, path: str) -> None:
        """Raises `OSError` where the operation is to fail."""
        path = os.path.abspath(path) + os.sep
        for directory, fault in self._faults.items():
            number = fault.operations.get(name)
            if number is None or not path.startswith(directory):
                continue
            with self._lock:
                if fault.after > 0:
                    fault.after -= 1
                    return
                if fault.drop and name in SYNCS:
                    fault.drop = False
                    self._drop(Path(directory))
                if name not in fault.met:
                    fault.met.add(name)
                    print(f"fault: {name} of {path[:-1]}: {errno.errorcode[number]}", file=sys.stderr, flush=True)
            raise OSError(number, os.strerror(number), path[:-1])

    def _drop(self, directory: Path) -> None:
        told = self._open(self._control / "dropped", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        files = 0
        for path, begin, end in unsynced(directory, self._synced.of):
            try:
                descriptor = self._open(path, os.O_WRONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            self._pwrite(descriptor, bytes(end - begin), begin)
            file = file_of(os.fstat(descriptor))
            os.close(descriptor)
            self._synced.note(file, end)
            self._synced._write(told, b"%d %d %d\n" % (*file, begin))
            files += 1
        os.close(told)
        print(f"fault: the dirty pages of {files} files of {directory} are gone", file=sys.stderr, flush=True)


def _path_of(where: Any) -> str:
    return os.readlink(f"/proc/self/fd/{where}") if isinstance(where, int) else os.fspath(where)


def main() -> None:
    control = Path(sys.argv.pop(1))
    from highwater.log_storage.compaction import cleaner_process, cleaner_worker
    from highwater.log_storage.files import boot_record
    from highwater.log_storage.process import main as serve

    FaultyDisk(control).install()
    if sys.argv[1] == _CLEANER:
        del sys.argv[1]
        cleaner_process.main()
    command = cleaner_worker._command
    cleaner_worker._command = lambda limits: [sys.executable, __file__, str(control), _CLEANER, command(limits)[-1]]
    boot_record._BOOT_ID = control / "boot_id"
    serve()


if __name__ == "__main__":
    main()
