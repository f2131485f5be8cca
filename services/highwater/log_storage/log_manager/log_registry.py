"""The logs that a broker has, in which of its directories they are, and the checkpoint files that the logs of a
directory share."""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from highwater.atomic_file import fsync_directory
from highwater.errors import ErrorCode, UserError
from highwater.log_storage.clock import monotonic_ms, wall_clock_ms
from highwater.log_storage.config import LogConfig
from highwater.log_storage.errors import LogError
from highwater.log_storage.files import checkpoints, partition_metadata
from highwater.log_storage.files.checkpoints import TopicPartition
from highwater.log_storage.log.log import Log
from highwater.log_storage.log_manager.due_logs import DueLogs
from highwater.log_storage.log_manager.hosted_log import HostedLog
from highwater.log_storage.log_manager.log_dir import LogDir
from highwater.model.partition import PartitionKey, format_topic_id

DELETED = ".deleted"


class LogRegistry:
    """Changed by threads, and walked over beside that. `now_ms` is the clock of all that happens to logs, and
    `wall_offset_ms` from it to ms since the epoch."""

    def __init__(self, config: LogConfig, now_ms: Callable[[], int] = monotonic_ms) -> None:
        self.config = config
        self.log_dirs: list[LogDir] = []
        self.due = DueLogs()
        self.removable: deque[Path] = deque()  # directories that were renamed to `.deleted`, to be removed
        self.offline_logs = 0  # as `count_offline` last found, and the next
        self.damaged_logs = 0
        self.uncounted = False  # logs have come, gone or moved since, or it was cut short
        self._with_damage: list[HostedLog] = []  # that was noted by then, of segments which may be gone since
        self.now_ms = now_ms
        self.wall_offset_ms = wall_clock_ms() - now_ms()
        # Held for a change of these, and for a walk over them.
        self._changing = threading.Lock()
        self._hosted: dict[PartitionKey, HostedLog] = {}
        self._names: dict[TopicPartition, PartitionKey] = {}
        # Others of a name: of a topic that was made while the directory of an earlier one was away.
        self._namesakes: dict[TopicPartition, list[PartitionKey]] = {}
        self._unidentified: dict[TopicPartition, Path] = {}  # logs whose topic id could not be read

    @property
    def online_dirs(self) -> list[LogDir]:
        return [log_dir for log_dir in self.log_dirs if not log_dir.offline]

    def recount(self) -> None:
        """Once a second, so logs are looked at only where some may have gone offline, or are damaged."""
        if self.uncounted or any(log_dir.disk.health_changed for log_dir in self.log_dirs):
            self.count_offline()
        elif self._with_damage:
            self.damaged_logs = sum(1 for hosted in self._with_damage if hosted.known_damage)

    def count_offline(self) -> None:
        """Looks at every log."""
        self.uncounted = False  # first: what changes from here on is counted by the next
        for log_dir in self.log_dirs:
            log_dir.disk.health_changed = False
        try:
            self._count()
        except BaseException:
            self.uncounted = True
            raise

    def _count(self) -> None:
        offline = damaged = 0
        with_damage = []
        for hosted in self:
            log = hosted.log
            if log is None or log.context.failure or hosted.log_dir.disk.failure:
                offline += 1
                if log is not None:
                    log.await_no_sync()
            if log is not None and log.damage.noted:
                with_damage.append(hosted)
                damaged += bool(hosted.known_damage)
        self.offline_logs, self.damaged_logs, self._with_damage = offline, damaged, with_damage

    @property
    def unidentified_logs(self) -> int:
        """Logs of which nobody knows whose they are: their `partition.metadata` is damaged or missing. One that was
        moved away counts until a log of its name is made, or the next start."""
        misnamed = sum(1 for hosted in self if hosted.log is not None and hosted.misnamed)
        with self._changing:
            return misnamed + len(self._unidentified.keys() - self._names.keys())

    @property
    def unidentified(self) -> list[TopicPartition]:
        """Those of them that have no topic id at all."""
        with self._changing:
            return sorted(self._unidentified)

    def find(self, key: PartitionKey) -> HostedLog | None:
        return self._hosted.get(key)

    def get(self, key: PartitionKey) -> HostedLog:
        """Raises `LogError`: UNKNOWN_TOPIC_ID; LOG_STORAGE_ERROR where the log may be in a directory that could not be
        opened."""
        hosted = self._hosted.get(key)
        if hosted is None:
            self.check_all_loaded()
            raise LogError(ErrorCode.UNKNOWN_TOPIC_ID, f"this broker has no log of partition {key}")
        return hosted

    def check_all_loaded(self) -> None:
        """A log that is not known may be in a directory whose logs are not: it must not be begun anew elsewhere, and
        lead without what it holds. Raises `LogError` (LOG_STORAGE_ERROR)."""
        for log_dir in self.log_dirs:
            if not log_dir.loaded:
                raise LogError(
                    ErrorCode.LOG_STORAGE_ERROR,
                    f"the log directory {log_dir.path} is offline and may hold the log: {log_dir.offline}. Mend it, or "
                    f"take it out of log.dirs, and start log-storage again",
                )

    def __iter__(self) -> Iterator[HostedLog]:
        """Those that there are now: logs are made and deleted in threads, and while whoever walks waits."""
        with self._changing:
            return iter(list(self._hosted.values()))

    def __len__(self) -> int:
        return len(self._hosted)

    def in_directory(self, log_dir: LogDir) -> Iterator[HostedLog]:
        return (hosted for hosted in self if hosted.log_dir is log_dir)

    def moving_to(self, log_dir: LogDir) -> Iterator[HostedLog]:
        return (hosted for hosted in self if hosted.future is not None and hosted.future.log_dir is log_dir)

    def add(self, hosted: HostedLog) -> None:
        with self._changing:  # the directories are opened side by side
            present = self._hosted.get(hosted.key)
            if present is None:
                self._hosted[hosted.key] = hosted
                earlier = self._names.get(hosted.topic_partition)
                if earlier is not None:
                    self._namesakes.setdefault(hosted.topic_partition, []).append(earlier)
                self._names[hosted.topic_partition] = hosted.key
                self.uncounted = True
        if present is not None:
            raise UserError(
                f"{present.directory} and {hosted.directory} are the same partition: remove the one that is older"
            )
        self.due.touch(hosted)

    def take_out(self, hosted: HostedLog) -> None:
        self.due.touch(hosted)
        with self._changing:
            del self._hosted[hosted.key]
            self.uncounted = True
            name = hosted.topic_partition
            others = [key for key in (*self._namesakes.pop(name, ()), self._names.pop(name)) if key != hosted.key]
            if others:
                *earlier, self._names[name] = others
                if earlier:
                    self._namesakes[name] = earlier

    def note_unidentified(self, topic: str, partition: int, directory: Path) -> None:
        """Nobody can ask for this log: its topic id could not be read."""
        with self._changing:
            self._unidentified[topic, partition] = directory

    def check_name_is_free(self, topic: str, key: PartitionKey) -> None:
        """Raises `LogError`: INCONSISTENT_TOPIC_ID where another topic's log is in the way, LOG_STORAGE_ERROR where it
        may be this one's: a log must not be begun anew beside what it holds."""
        directory = self._unidentified.get((topic, key.partition))
        other = self._names.get((topic, key.partition))
        if other is not None:
            directory = self._hosted[other].directory
            if not self._hosted[other].misnamed:
                raise LogError(
                    ErrorCode.INCONSISTENT_TOPIC_ID,
                    f"{directory} belongs to another topic of this name, {other}: delete it first",
                )
        if directory is not None and directory.exists():
            raise LogError(
                ErrorCode.LOG_STORAGE_ERROR,
                f"{directory / partition_metadata.FILE_NAME} is damaged or missing, so whose log it is is not known. "
                f"Stop log-storage; if it is of this topic, write the lines `version: 0` and "
                f"`topic_id: {format_topic_id(key.topic_id)}` to the file; else, or once the "
                f"partition's ISR does not list this broker, move the directory away",
            )

    def let_go(self, directory: Path) -> None:
        """Renames a log's directory to `.deleted`; it is `removable` then. Raises `OSError`."""
        self.removable.append(mark_deleted(directory))
        fsync_directory(directory.parent)

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def write_checkpoints(self, log_dir: LogDir) -> None:
        """Writes all offset checkpoints of a directory. Raises as `write_checkpoint`."""
        for name in _CHECKPOINTED:
            self.write_checkpoint(log_dir, name)

    def write_checkpoint(self, log_dir: LogDir, name: str) -> None:
        """Writes one of the offset checkpoints of a directory. An offline log's entry is kept as it last was. May be
        called from several threads. Raises `OSError`, and `LogError` (LOG_STORAGE_ERROR) where it is offline."""
        if log_dir.offline:
            raise LogError(ErrorCode.LOG_STORAGE_ERROR, f"{log_dir.path} is offline: {log_dir.offline}")
        log_dir.write_checkpoint(name, lambda: self._offsets(log_dir, name))

    def forget_deleted(self, log_dir: LogDir) -> None:
        """Before a log is made in the directory: writes its checkpoints without the entries of logs that are gone, if
        any has gone since they were written. Raises as `write_checkpoint`."""
        if not log_dir.must_forget():
            return
        log_dir.stale_checkpoints = False  # first: a log that goes meanwhile says so again
        try:
            self.write_checkpoints(log_dir)
        except BaseException:
            log_dir.stale_checkpoints = True
            raise

    def _offsets(self, log_dir: LogDir, name: str) -> Mapping[TopicPartition, int]:
        """Of every log that is in the directory, served or not."""
        read = _CHECKPOINTED[name]
        offsets = log_dir.unhosted_entries(name)
        for hosted in self.in_directory(log_dir):
            of = hosted.topic_partition
            offset = log_dir.entry_at_start(name, of) if hosted.log is None else read(hosted.log)
            if offset is not None:
                offsets[of] = offset
        for hosted in self.moving_to(log_dir):
            if hosted.future is not None and (offset := read(hosted.future.log)) is not None:
                offsets[hosted.topic_partition] = offset
        return offsets


_CHECKPOINTED: dict[str, Callable[[Log], int | None]] = {
    checkpoints.RECOVERY_POINTS: lambda log: log.recovery_point,
    checkpoints.HIGH_WATERMARKS: lambda log: log.high_watermark_to_checkpoint,
    checkpoints.LOG_STARTS: lambda log: log.offsets.log_start_to_checkpoint,
    checkpoints.CLEANER_OFFSETS: lambda log: log.cleaned_to,
}


def mark_deleted(directory: Path) -> Path:
    """Renames a log's directory to `.deleted`; its new path. Raises `OSError`."""
    target = directory.with_name(f"{directory.name[:200]}.{secrets.token_hex(4)}{DELETED}")
    directory.rename(target)
    return target
