"""One of the directories in `log.dirs`: its lock, its clean-shutdown mark, its boot record, its fences, its
checkpoints."""

from __future__ import annotations

import fcntl
import os
import secrets
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from highwater.atomic_file import OWNERS, OWNERS_DIRECTORY, fsync_directory, remove_temporaries, replace_file
from highwater.errors import ErrorCode, UserError
from highwater.log_storage.errors import LogError
from highwater.log_storage.fence import Fence
from highwater.log_storage.files import boot_record, checkpoints, future_files, meta_properties
from highwater.log_storage.files.boot_record import CLEAN_SHUTDOWN, BootRecord
from highwater.log_storage.files.checkpoints import CheckpointError, TopicPartition
from highwater.log_storage.files.disk import LOCK, Disk, is_lacking
from highwater.log_storage.files.fence_journal import FILE_NAME as FENCE_JOURNAL
from highwater.log_storage.files.fence_journal import FenceJournal, FenceJournalError
from highwater.log_storage.files.meta_properties import MetaProperties
from highwater.log_storage.files.partition_metadata import directory_name
from highwater.log_storage.recovery.recovery import Checkpointed
from highwater.log_storage.recovery.recovery_progress import RecoveryProgress
from highwater.model.partition import PartitionKey, format_topic_id
from highwater.telemetry.log import get_logger

REMEMBER_S = 5.0  # a stop waits so long for a failing disk to take that it failed

_log = get_logger("log_storage.log_dir")


class LogDir:
    """`clean` is what the mark said when it was opened, `tail_lost` what RULES 7.2 makes of it. Where the directory
    cannot be used, `offline` says why, and nothing else may be asked of it."""

    def __init__(self, path: Path, broker_id: int, *, flush_every_message: bool = False) -> None:
        """Creates the directory where there is none, and locks it; `begin` follows.

        Raises `UserError`: in use by another process, or of another broker."""
        self.path = path
        self.disk = Disk(path)
        self.clean = False
        self.tail_lost = False
        self.properties = MetaProperties()
        self.record: BootRecord | None = None  # how it was last used
        self.loaded = False  # which logs are in it is known
        self.recovery: RecoveryProgress | None = None  # from the start on
        self.stale_checkpoints = False  # they may have entries of logs that are gone
        self.unhosted: list[Path] = []  # the logs' directories in it of which nobody knows whose they are, or what for
        self._broker_id = broker_id
        # Whether every log in it flushes every append, as far as this process has been told.
        self._flush_every_message = flush_every_message
        self._claims_every = False  # whether the boot record says so
        self._at_start: dict[str, Mapping[TopicPartition, int]] = {}  # what the checkpoints said
        self._write_lock = threading.Lock()
        self._record_lock = threading.Lock()
        self._remembering: threading.Thread | None = None
        self._lock_descriptor = -1
        self._fences: FenceJournal | None = None
        self._directory_ids: tuple[str, ...] = ()
        try:
            self._open()
        except UserError:
            self.unlock()
            raise
        except FenceJournalError as error:
            self._give_up(str(error))
        except OSError as error:
            if is_lacking(error):
                self.unlock()
                raise lacking(error) from error
            self._give_up(f"data dir {path} cannot be used: {error.strerror or error}")

    def _open(self) -> None:
        self.path.mkdir(OWNERS_DIRECTORY, parents=True, exist_ok=True)
        self._lock_descriptor = _lock(self.path)
        self.disk.remember(self._lock_descriptor)
        remove_temporaries(self.path)
        self.disk.release_reserve()  # what a start has to write finds room on a full disk
        self.present_boot = boot_record.present_boot(self.path)
        self.record = boot_record.read_record(self.path)
        if self.record is not None and self.record.broker_id != self._broker_id:
            raise UserError(
                f"data dir {self.path} belongs to broker {self.record.broker_id}, this is {self._broker_id}: set "
                f"log.dirs to directories of its own, or where the volumes of two brokers were swapped, give each "
                f"broker its own back"
            )
        self._claims_every = self.record is not None and self.record.flush_every_message
        self.clean = (self.path / CLEAN_SHUTDOWN).exists()
        self.properties = meta_properties.read(self.path)
        if not self.properties.directory_id:
            if self.record is not None:
                _log.warning(
                    "%s is damaged or missing: it is written anew, as that of a directory that was just added. To have "
                    "it known as the one that it was, stop log-storage and restore the file",
                    self.path / meta_properties.FILE_NAME,
                )
            self._write_properties(self.properties.cluster_id, format_topic_id(secrets.token_bytes(16)))
        self.tail_lost = boot_record.tail_lost(self.record, self.present_boot, self.clean)
        self._fences = FenceJournal(self.path / FENCE_JOURNAL, clean=self.clean)

    def _give_up(self, reason: str) -> None:
        self.unlock()
        self.disk.fail(reason)

    def begin(self, directory_ids: Collection[str]) -> None:
        """Records this start; `directory_ids` are those of all of the broker's directories. Takes the directory offline
        where that fails."""
        self._directory_ids = tuple(sorted(directory_ids))
        if self.offline:
            return
        self.disk.doubted = self._begin_to_remember
        if self.tail_lost:
            return
        # Before the mark goes: a crash after this start is a crash under this boot.
        synced = self.clean or (self.record is not None and self.record.flush_every_message)
        try:
            self._write_record(flush_every_message=synced)
        except OSError as error:
            self._give_up(f"data dir {self.path} cannot be used: {error.strerror or error}")

    @property
    def offline(self) -> str:
        """The reason why nothing of this directory is served; empty while it is."""
        return self.disk.failure

    @property
    def fences(self) -> FenceJournal:
        assert self._fences is not None
        return self._fences

    @property
    def cluster_id(self) -> str:
        """The cluster whose logs these are; empty: not recorded yet."""
        return self.properties.cluster_id

    def consume_clean_mark(self) -> None:
        """Once the logs are open: a crash from here on is an unclean stop. Raises `OSError`."""
        (self.path / CLEAN_SHUTDOWN).unlink(missing_ok=True)
        fsync_directory(self.path)

    def mark_clean(self) -> None:
        """Leaves the mark of a clean stop, when everything is on disk and nothing more will be written. Raises
        `OSError`."""
        replace_file(self.path / CLEAN_SHUTDOWN, b"")

    def record_boot(self) -> None:
        """Ends `tail_lost`: this boot and mount are the ones last used, and no fence says of a log whose tail is lost
        that it led (RULES 7.9). Everything must be on disk; what is not, because a write has failed since the start,
        the next start has lost. No fence may be raised meanwhile. Raises `OSError`."""
        if self.tail_lost and (short := self.fences.after_loss()):
            self.record_fences(short)
        with self._record_lock:
            self._replace_record(self._flush_every_message, bool(self.disk.doubt))
            self.tail_lost = False

    def may_hold_unflushed(self, flush_messages: int) -> None:
        """Before one of its logs takes this `flush.messages`: the boot record must not say of all that they flush every
        append where one does not; durable when it returns. Until the next start it stays so. Raises `OSError`."""
        if boot_record.flushes_every_append(flush_messages):
            return
        if not self._flush_every_message and not self._claims_every:
            return
        with self._record_lock:  # a record that is being written may be about to claim it
            self._flush_every_message = False
            if self._claims_every:
                self._replace_record(flush_every_message=False, tail_lost=self.tail_lost or bool(self.disk.doubt))

    def lose_tail(self, reason: str) -> None:
        """Records that what had been written before the start is not all there; durable when it returns, for recovery
        to cut what is left. Called from several threads. Raises `OSError`."""
        with self._record_lock:
            if self.tail_lost:
                return
            self._replace_record(flush_every_message=False, tail_lost=True)
            self.tail_lost = True
        _log.warning("the tail of %s is lost: %s", self.path, reason)

    def _begin_to_remember(self) -> None:
        """In a thread: a failing disk may take its time, and other directories are not to wait for it."""
        self._remembering = threading.Thread(target=self._remember_doubt, name="tail in doubt", daemon=True)
        self._remembering.start()

    def _remember_doubt(self) -> None:
        """Records the doubt. Where the disk does not take even this, the replica-manager keeps it in etcd (RULES
        7.2)."""
        try:
            if self.disk.present():  # else its path leads somewhere else
                self._write_record(flush_every_message=False)
        except OSError as error:
            _log.warning("%s cannot remember that its tail may be lost: %s", self.path, error)

    def record_cluster(self, cluster_id: str) -> None:
        """Records the cluster whose logs these are, from now on. Raises `LogError` (INVALID_REQUEST) where they are
        another cluster's, and `OSError`."""
        if self.cluster_id == cluster_id:
            return
        if self.cluster_id:
            raise LogError(
                ErrorCode.INVALID_REQUEST, f"the logs belong to cluster {self.cluster_id}, not to {cluster_id}"
            )
        self._write_properties(cluster_id, self.properties.directory_id)

    def _write_properties(self, cluster_id: str, directory_id: str) -> None:
        properties = MetaProperties(cluster_id, directory_id, str(self._broker_id))
        meta_properties.write(self.path, properties)
        self.properties = properties

    def _write_record(self, flush_every_message: bool) -> None:
        with self._record_lock:
            lost = self.tail_lost or bool(self.disk.doubt)
            self._replace_record(flush_every_message and self._flush_every_message, lost)

    def _replace_record(self, flush_every_message: bool, tail_lost: bool) -> None:
        """Under the lock."""
        record = BootRecord(self._broker_id, self.present_boot, flush_every_message, self._directory_ids, tail_lost)
        boot_record.write_record(self.path, record)
        self._claims_every = flush_every_message

    def record_fences(self, raised: Mapping[PartitionKey, Fence]) -> None:
        """Makes fences durable (`FenceJournal.record`). Raises `OSError`."""
        try:
            self.disk.using_reserve(lambda: self.fences.record(raised))
        except OSError as error:
            self.disk.note(error)
            raise

    def checkpointed(self) -> Callable[[str, int], Checkpointed]:
        """Reads what the checkpoints say of a (topic, partition). A damaged one is as good as none: recovery points are
        then 0, high watermarks and log starts what the log itself allows. Raises `OSError`."""
        recovery_points = self._read(checkpoints.RECOVERY_POINTS)
        log_starts = self._read(checkpoints.LOG_STARTS)
        high_watermarks = self._read(checkpoints.HIGH_WATERMARKS)
        cleaned_to = self._read(checkpoints.CLEANER_OFFSETS)
        page_cache = boot_record.page_cache_intact(self.record, self.present_boot, self.clean)

        def of(topic: str, partition: int) -> Checkpointed:
            key = (topic, partition)
            return Checkpointed(
                self.clean,
                recovery_points.get(key, 0),
                log_starts.get(key, 0),
                high_watermarks.get(key, 0),
                cleaned_to.get(key),
                page_cache,
            )

        return of

    def _read(self, name: str) -> Mapping[TopicPartition, int]:
        if name not in self._at_start:
            try:
                self._at_start[name] = checkpoints.read_offsets(self.path / name)
            except CheckpointError as error:
                _log.warning("%s; it is not used", error)
                self._at_start[name] = {}
        return self._at_start[name]

    def entry_at_start(self, name: str, topic_partition: TopicPartition) -> int | None:
        """The offset that the checkpoint said of a log that has not been opened since: nobody knows better."""
        return self._at_start.get(name, {}).get(topic_partition)

    def unhosted_entries(self, name: str) -> dict[TopicPartition, int]:
        """The same of all `unhosted` logs: once they are mended they are opened with it."""
        names = {path.name for path in self.unhosted}
        copies = {future_files.copied(path.name) for path in self.unhosted}
        if not names:
            return {}
        return {
            (topic, partition): offset
            for (topic, partition), offset in self._at_start.get(name, {}).items()
            if directory_name(topic, partition) in names or future_files.copied_name(topic, partition) in copies
        }

    def must_forget(self) -> bool:
        """Tells whether the checkpoints have to be written before a log is made: they may have an entry of an earlier
        one of its name. An `unhosted` one may have been moved away meanwhile."""
        present = [path for path in self.unhosted if path.exists()]
        if len(present) < len(self.unhosted):
            self.unhosted, self.stale_checkpoints = present, True
        return self.stale_checkpoints

    def write_checkpoint(self, name: str, snapshot: Callable[[], Mapping[TopicPartition, int]]) -> None:
        """Writes one checkpoint file; `snapshot` is taken when it is this writer's turn, so that the last to write
        has the newest. May be called from several threads. Raises `OSError`; the file is the one of before then."""
        with self._write_lock:
            try:
                self.disk.using_reserve(lambda: checkpoints.write_offsets(self.path / name, snapshot()))
            except OSError as error:
                self.disk.note(error)
                raise

    def unlock(self) -> None:
        if self._remembering is not None and self._remembering is not threading.current_thread():
            self._remembering.join(REMEMBER_S)
        if self._lock_descriptor >= 0:
            os.close(self._lock_descriptor)
            self._lock_descriptor = -1

    def close(self) -> None:
        if self._fences is not None:
            self._fences.close()
        self.unlock()


def lacking(error: OSError) -> UserError:
    """A start that lacks descriptors or memory: it could open some of the logs only, and nothing is wrong with them."""
    return UserError(
        f"cannot open the logs: {error.strerror or error}. Give log-storage more (open files: `ulimit -n`, three for "
        f"each log and some hundreds), and start it again"
    )


def _lock(path: Path) -> int:
    descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, OWNERS)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UserError(
            f"data dir in use: {path} is locked by another log-storage; stop that one, or set log.dirs to another "
            f"directory"
        ) from None
    return descriptor
