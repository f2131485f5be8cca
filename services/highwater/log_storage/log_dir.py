"""One of the directories in `log.dirs`: its lock, its clean-shutdown mark, its boot record, its fences, its
checkpoints."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from highwater.errors import ErrorCode
from highwater.log_storage import boot, checkpoints, meta_properties
from highwater.log_storage.boot import BootRecord
from highwater.log_storage.checkpoints import CheckpointError, TopicPartition
from highwater.log_storage.durable import fsync_directory, replace_file
from highwater.log_storage.errors import LogError
from highwater.log_storage.fence_journal import FILE_NAME as FENCE_JOURNAL
from highwater.log_storage.fence_journal import FenceJournal, FenceJournalError
from highwater.log_storage.recovery import Checkpointed
from highwater.rpc.server import UserError
from highwater.telemetry.log import get_logger

LOCK = ".lock"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"

_log = get_logger("log_storage.log_dir")


class LogDir:
    """Opened and locked. `clean` is what the mark said when it was opened, `tail_lost` what RULES 7.2 makes of it."""

    def __init__(self, path: Path, broker_id: int, *, flush_every_message: bool = False) -> None:
        """Creates the directory where there is none, and locks it.

        Raises `UserError`: in use by another process, of another broker, not writable, or its fences are lost.
        """
        self.path = path
        self._broker_id = broker_id
        self._flush_every_message = flush_every_message
        self._write_lock = threading.Lock()
        self._lock_descriptor = -1
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock_descriptor = _lock(path)
            self.present_boot = boot.present_boot(path)
            record = boot.read_record(path)
            self.clean = (path / CLEAN_SHUTDOWN).exists()
            if record is not None and record.broker_id != broker_id:
                self.unlock()
                raise UserError(
                    f"data dir {path} belongs to broker {record.broker_id}, this is {broker_id}: set log.dirs to "
                    f"directories of its own"
                )
            self.cluster_id = meta_properties.read_cluster_id(path)  # empty: not recorded yet
            self.tail_lost = boot.tail_lost(record, self.present_boot, self.clean)
            self.fences = FenceJournal(path / FENCE_JOURNAL)
            if not self.tail_lost:
                # Before the mark goes: a crash after this start is a crash under this boot.
                synced = self.clean or (record is not None and record.flush_every_message)
                self._write_record(flush_every_message and synced)
        except FenceJournalError as error:
            self.unlock()
            raise UserError(str(error)) from None
        except OSError as error:
            self.unlock()
            raise UserError(f"data dir {path} cannot be used: {error.strerror or error}") from None

    def consume_clean_mark(self) -> None:
        """Once the logs are open: a crash from here on is an unclean stop. Raises `OSError`."""
        (self.path / CLEAN_SHUTDOWN).unlink(missing_ok=True)
        fsync_directory(self.path)

    def mark_clean(self) -> None:
        """When everything is on disk and nothing more will be written. Raises `OSError`."""
        replace_file(self.path / CLEAN_SHUTDOWN, b"")

    def record_boot(self) -> None:
        """Ends `tail_lost`: this boot and mount are the ones last used. Everything must be on disk. Raises
        `OSError`."""
        self._write_record(self._flush_every_message)
        self.tail_lost = False

    def record_cluster(self, cluster_id: str) -> None:
        """Whose logs these are, from now on. Raises `LogError` (INVALID_REQUEST) where they are another cluster's, and
        `OSError`."""
        if self.cluster_id == cluster_id:
            return
        if self.cluster_id:
            raise LogError(
                ErrorCode.INVALID_REQUEST, f"the logs belong to cluster {self.cluster_id}, not to {cluster_id}"
            )
        meta_properties.write(self.path, self._broker_id, cluster_id)
        self.cluster_id = cluster_id

    def _write_record(self, flush_every_message: bool) -> None:
        boot.write_record(self.path, BootRecord(self._broker_id, self.present_boot, flush_every_message))

    def checkpointed(self) -> Callable[[str, int], Checkpointed]:
        """What the checkpoints say of a (topic, partition). A damaged one is as good as none: recovery points are
        then 0, high watermarks and log starts what the log itself allows."""
        recovery_points = self._read(checkpoints.RECOVERY_POINTS)
        log_starts = self._read(checkpoints.LOG_STARTS)
        high_watermarks = self._read(checkpoints.HIGH_WATERMARKS)

        def of(topic: str, partition: int) -> Checkpointed:
            key = (topic, partition)
            return Checkpointed(
                self.clean, recovery_points.get(key, 0), log_starts.get(key, 0), high_watermarks.get(key, 0)
            )

        return of

    def _read(self, name: str) -> dict[TopicPartition, int]:
        try:
            return checkpoints.read_offsets(self.path / name)
        except CheckpointError as error:
            _log.warning("%s; it is not used", error)
            return {}

    def write_checkpoint(self, name: str, snapshot: Callable[[], Mapping[TopicPartition, int]]) -> None:
        """Writes one checkpoint file; `snapshot` is taken when it is this writer's turn, so that the last to write
        has the newest. May be called from several threads. Raises `OSError`."""
        with self._write_lock:
            checkpoints.write_offsets(self.path / name, snapshot())

    def unlock(self) -> None:
        if self._lock_descriptor >= 0:
            os.close(self._lock_descriptor)
            self._lock_descriptor = -1

    def close(self) -> None:
        self.fences.close()
        self.unlock()


def _lock(path: Path) -> int:
    descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UserError(
            f"data dir in use: {path} is locked by another log-storage; stop that one, or set log.dirs to another "
            f"directory"
        ) from None
    return descriptor
