"""Fences on disk (RULES 3.1): an append-only file for each log directory, so that a call which fences many partitions
costs one write and one fdatasync.

A line for each call: the CRC-32C of the rest in hex, a space, a JSON list of entries `[topic id in hex, partition,
leader epoch, role, replica-manager's incarnation, log-storage's incarnation, the last leader epoch that it led under]`
(null: not known, or the log has lost something since); entries of six are those of earlier versions. An epoch of -1
forgets a deleted log's fence. The last line may be torn by a crash: it was not answered for, and is dropped. The file
is written anew at every start."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from highwater.atomic_file import OversizedFileError, read_whole, replace_file
from highwater.log_storage.fence import Fence
from highwater.model.fence_role import Role
from highwater.model.partition import PartitionKey
from highwater.model.written_json import checked, parse_json
from highwater.records.header import crc32c

FILE_NAME = "fence-journal"
REWRITE_BYTES = 4 << 20  # the file is written anew when it has grown by so much
_FORGOTTEN = -1
_REMEDY = "Restore the file, or remove the log directory and let its replicas be copied again"


class FenceJournalError(ValueError):
    """Fences are lost: a line before the last is damaged. The message names the file and the line."""


class FenceJournal:
    """The fences of one log directory. A write that fails is cut off again (no space: a later one may succeed). After
    an fsync has failed, or the cut, it refuses all others, because what is on disk is no longer known. Several
    threads may write to it."""

    def __init__(self, path: Path, *, clean: bool = False) -> None:
        """Reads the file and writes it anew; `clean` as for `read_fences`. Raises `OSError`, `FenceJournalError`."""
        self._path = path
        self.fences = read_fences(path, clean=clean)
        self._led_at_start = {key: fence.last_led_epoch for key, fence in self.fences.items()}
        self._failure: OSError | None = None
        self._unwritten: dict[PartitionKey, Fence] = {}
        self._descriptor = -1
        self._writing = threading.Lock()
        self._rewrite()

    @property
    def failed(self) -> bool:
        """Tells whether what is on disk is not known any more."""
        return self._failure is not None

    def written(self, key: PartitionKey) -> bool:
        """Tells whether the partition's fence is on disk as it is in memory."""
        return self._failure is None and key not in self._unwritten

    def get(self, key: PartitionKey) -> Fence | None:
        return self.fences.get(key)

    def record(self, raised: Mapping[PartitionKey, Fence]) -> None:
        """Makes these fences durable; they are in `fences` from the start, so that what they shut out is shut out at
        once. Where that fails they are not `written`, until a later call has written them too. Raises `OSError`."""
        with self._writing:
            self.fences.update(raised)
            self._unwritten.update(raised)
            due = dict(self._unwritten)
            self._append(_entry(key, fence) for key, fence in due.items())
            for key in due:
                del self._unwritten[key]

    def after_loss(self) -> dict[PartitionKey, Fence]:
        """The fences to be recorded where the logs had lost their tails at the start: of those that have not led
        since. None may be raised until they are."""
        return {
            key: after
            for key, fence in self.fences.copy().items()
            if (after := fence.after_loss) is not fence and fence.last_led_epoch == self._led_at_start.get(key)
        }

    def forget(self, keys: Iterable[PartitionKey]) -> None:
        """Drops the fences of deleted logs. Raises `OSError`."""
        with self._writing:
            known = [key for key in keys if self.fences.pop(key, None) is not None]
            for key in known:
                self._unwritten.pop(key, None)
            if known:
                self._append([key.topic_id.hex(), key.partition, _FORGOTTEN, 0, "", ""] for key in known)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _append(self, entries: Iterable[list[object]]) -> None:
        if self._failure is not None:
            raise self._failure
        line = _line(entries)
        try:
            self._write(line)
            os.fdatasync(self._descriptor)
        except _CutOffError as error:
            raise error.reason from None
        except OSError as error:
            self._failure = error
            raise
        self._size_bytes += len(line)
        if self._size_bytes > self._rewrite_bytes:
            self._rewrite_grown()

    def _write(self, line: bytes) -> None:
        """Raises `_CutOffError`, the file being as it was, or `OSError`."""
        view = memoryview(line)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError as error:
            os.ftruncate(self._descriptor, self._size_bytes)
            raise _CutOffError(error) from error

    def _rewrite_grown(self) -> None:
        try:
            self._rewrite()
        except OSError as error:
            try:
                unchanged = os.path.samestat(os.stat(self._path), os.fstat(self._descriptor))
            except OSError:
                unchanged = False
            if not unchanged:
                self._failure = error
                raise
            # The longer file says the same.
            self._rewrite_bytes = self._size_bytes + REWRITE_BYTES

    def _rewrite(self) -> None:
        replace_file(self._path, _line(_entry(*item) for item in sorted(self.fences.copy().items())))
        before = self._descriptor
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        if before >= 0:
            os.close(before)
        self._size_bytes = os.fstat(self._descriptor).st_size
        self._rewrite_bytes = self._size_bytes + REWRITE_BYTES


class _CutOffError(Exception):
    def __init__(self, reason: OSError) -> None:
        super().__init__(str(reason))
        self.reason = reason


def _entry(key: PartitionKey, fence: Fence) -> list[object]:
    return [
        key.topic_id.hex(),
        key.partition,
        fence.leader_epoch,
        int(fence.role),
        fence.replica_manager_incarnation,
        fence.log_storage_incarnation,
        fence.last_led_epoch,
    ]


def _line(entries: Iterable[list[object]]) -> bytes:
    body = json.dumps(list(entries), separators=(",", ":")).encode()
    return b"%08x %s\n" % (crc32c(body), body)


def read_fences(path: Path, *, clean: bool = False) -> dict[PartitionKey, Fence]:
    """Reads what the file says, without writing it anew. `clean`: it was closed in good order, so that its last line
    cannot be torn. Raises `OSError`, `FenceJournalError`."""
    try:
        lines = read_whole(path).split(b"\n")
    except FileNotFoundError:
        return {}
    except OversizedFileError as error:
        raise FenceJournalError(f"{error}. {_REMEDY}") from None
    if not lines[-1]:
        lines.pop()
    last = len(lines)
    fences: dict[PartitionKey, Fence] = {}
    for number, line in enumerate(lines, 1):
        crc, _, body = line.partition(b" ")
        if crc != b"%08x" % crc32c(body):
            if (
                1 < number == last and not clean
            ):  # torn: it was not answered for. The first was there whole before the file was
                break
            raise FenceJournalError(
                f"{path}, line {number} is damaged: which leader epochs this broker has seen is not known. {_REMEDY}"
            )
        try:
            _take(fences, parse_json(body))
        except (ValueError, TypeError) as error:
            raise FenceJournalError(f"{path}, line {number} is no list of fences: {error}. {_REMEDY}") from None
    return fences


def _take(fences: dict[PartitionKey, Fence], entries: list[Any]) -> None:
    """Raises `ValueError`, `TypeError`."""
    for topic_id, partition, leader_epoch, role, replica_manager, log_storage, *last_led in entries:
        key = PartitionKey(bytes.fromhex(topic_id), partition)
        if type(partition) is not int:
            raise TypeError(f"{partition!r} is no partition")
        if leader_epoch == _FORGOTTEN:
            fences.pop(key, None)
        else:
            led_before = last_led[0] if last_led else None
            whole = led_before is not None or not last_led
            fences[key] = checked(Fence(leader_epoch, Role(role), replica_manager, log_storage, led_before, whole))
