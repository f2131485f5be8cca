"""The volume under a log directory, as operations on its files have found it: sound, full, or failed.

A full volume refuses appends and nothing else, and recovers by itself: a reserve of `RESERVE_BYTES` is given up when
the first write finds no room, so that checkpoints, fences and truncations still find some (retention could free nothing
without them); appends are taken again once the reserve can be allocated anew. A failed volume takes the logs of its
directory offline, and no other's, until log-storage is started again.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import TypeVar

from highwater.atomic_file import OWNERS
from highwater.errors import ErrorCode
from highwater.log_storage.errors import LogError
from highwater.telemetry.log import get_logger

LOCK = ".lock"
RESERVE = ".reserve"
RESERVE_BYTES = 1 << 20

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_FAILED = frozenset(
    {
        errno.EIO,
        errno.EROFS,
        errno.ENODEV,
        errno.ENXIO,
        errno.ENOMEDIUM,
        errno.ESTALE,
        errno.EUCLEAN,
        errno.EREMOTEIO,
        errno.ENOTCONN,
        errno.ESHUTDOWN,
        errno.EHOSTDOWN,
        errno.ETIMEDOUT,
    }
)
_MISSING = frozenset({errno.ENOENT, errno.ENOTDIR})
_LACKING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EAGAIN, errno.EINTR})
# What a read of a sound volume ends with where it cannot give back what was written there.
_UNREADABLE = frozenset({errno.EIO, errno.EUCLEAN, errno.EREMOTEIO, errno.EBADMSG, errno.EILSEQ, errno.ENODATA})

_log = get_logger("log_storage.disk")

Done = TypeVar("Done")


class DiskErrorKind(Enum):
    """The kind of an error, by what it says of the volume."""

    FULL = "full"
    FAILED = "failed"
    LACKING = "lacking"  # of the process or the machine: descriptors, memory; the same operation may succeed later
    OTHER = "other"  # says nothing of the volume: a missing file, one that may not be read


def is_lacking(error: BaseException | None) -> bool:
    """Tells whether the process or the machine lacked something, so that nothing is known of the file or its volume."""
    return isinstance(error, OSError) and error.errno in _LACKING


def is_unreadable(error: OSError) -> bool:
    """Tells whether a read ended with `error` because of what stands on the disk there."""
    return error.errno in _UNREADABLE


class Disk:
    """One for each log directory; its logs share it. Without a directory (a log by itself) it only tells errors apart.
    May be used from several threads."""

    def __init__(self, directory: Path | None = None) -> None:
        self.failure = ""  # why the directory is offline
        self.doubt = ""  # why something that was written to it may be gone, though the kernel goes on (RULES 7.2)
        self.doubted: Callable[[], None] | None = None  # called once, by whichever thread finds it
        self.full = False
        # Set, by whichever thread, when the directory or a log in it goes offline, or a log's damage is another;
        # `LogRegistry.recount` takes it.
        self.health_changed = True
        self._directory = directory
        self._identity: tuple[int, int] | None = None

    # -- what an error means ------------------------------------------------------------------------------------------

    def note(self, error: BaseException | None) -> DiskErrorKind:
        """Takes in what an operation ended with, and says of which kind that is."""
        if not isinstance(error, OSError):
            return DiskErrorKind.OTHER
        if error.errno in _FULL:
            self._fill(error)
            return DiskErrorKind.FULL
        if error.errno in _FAILED:
            self.fail(str(error))
            return DiskErrorKind.FAILED
        if is_lacking(error):
            return DiskErrorKind.LACKING
        if error.errno in _MISSING:
            return DiskErrorKind.FAILED if not self.present() else DiskErrorKind.OTHER
        return DiskErrorKind.OTHER

    def refusal(self, error: OSError, what: str) -> LogError:
        """The error to answer with, where `what` failed with `error` and has left nothing behind."""
        if self.note(error) is DiskErrorKind.FULL:
            return LogError(ErrorCode.STORAGE_FULL, f"{what}: no space is left: {error}")
        return LogError(ErrorCode.LOG_STORAGE_ERROR, f"{what}: {error}")

    def fail(self, reason: str) -> None:
        if not self.failure:
            self.failure = reason
            self.health_changed = True
            _log.error("the log directory %s is offline: %s", self._directory, reason)
            self.doubt_written(reason)

    def doubt_written(self, reason: str) -> None:
        """Doubts what has been written and not synced, for it may be gone: the kernel drops the pages that it could not
        write, and says so once. Who starts after that finds less, or pages of which the disk knows nothing."""
        if not self.doubt:
            self.doubt = reason
            if self.doubted is not None:
                self.doubted()

    # -- room ---------------------------------------------------------------------------------------------------------

    def check_room(self) -> None:
        """Before an append. Raises `LogError` (STORAGE_FULL)."""
        if self.full:
            raise LogError(
                ErrorCode.STORAGE_FULL,
                f"no space is left in {self._directory}: appends are taken again when there are {2 * RESERVE_BYTES} "
                f"bytes",
            )

    def release_reserve(self) -> None:
        """At start, before anything is written. Raises `OSError`."""
        if self._directory is not None:
            (self._directory / RESERVE).unlink(missing_ok=True)

    def using_reserve(self, work: Callable[[], Done]) -> Done:
        """Does what makes space, or must be done on a full disk too: where that finds no room it is tried once more
        without the reserve. Raises `OSError`, and what `work` raises."""
        try:
            return work()
        except OSError as error:
            kept = self._directory is not None and (self._directory / RESERVE).exists()
            if self.note(error) is not DiskErrorKind.FULL or not kept:
                raise
        return work()

    def keep_reserve(self) -> None:
        """Allocates the reserve, if the volume has twice the room; if not, it is full until a later call finds it."""
        if self._directory is None or self.failure:
            return
        try:
            _allocate(self._directory / RESERVE)
        except OSError as error:
            self.note(error)
            return
        if self.full:
            _log.info("%s has space again", self._directory)
        self.full = False

    def _fill(self, error: OSError) -> None:
        if self._directory is None:
            return
        if not self.full:
            self.full = True
            told = str(error)  # the error itself holds on to who met it, with all its open files
            _log.error(
                "%s is full: appends to its logs are refused until there is space (expand its volume, or let retention "
                "delete more; no restart is needed): %s",
                self._directory,
                told,
            )
        with suppress(OSError):  # it is noticed by whoever writes next
            self.release_reserve()

    # -- whether it is still there ------------------------------------------------------------------------------------

    def remember(self, lock_descriptor: int) -> None:
        """The directory is the one that holds this lock file. Raises `OSError`."""
        found = os.fstat(lock_descriptor)
        self._identity = (found.st_dev, found.st_ino)

    def present(self) -> bool:
        """Tells whether the path still leads to the directory that was locked; if not, it is offline from now on: what
        is appended to open files of a directory that is gone would be lost with them."""
        if self._directory is None or self._identity is None:
            return True
        try:
            found = os.stat(self._directory / LOCK)
        except OSError as error:
            self.fail(f"the directory is gone: {error}")
            return False
        if (found.st_dev, found.st_ino) != self._identity:
            self.fail("the directory is another one than at start")
            return False
        return True


def _allocate(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, OWNERS)
    try:
        os.posix_fallocate(descriptor, 0, 2 * RESERVE_BYTES)
        os.ftruncate(descriptor, RESERVE_BYTES)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
