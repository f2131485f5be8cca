"""All logs of one broker: which there are, where they are, and the files that several of them share."""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from highwater.errors import ErrorCode
from highwater.log_storage import checkpoints, partition_metadata
from highwater.log_storage.checkpoints import TopicPartition
from highwater.log_storage.config import LogConfig
from highwater.log_storage.durable import fsync_directory
from highwater.log_storage.epochs import NO_EPOCH
from highwater.log_storage.errors import LogError
from highwater.log_storage.hosted import HostedLog
from highwater.log_storage.log import Log
from highwater.log_storage.log_core import new_segment
from highwater.log_storage.log_dir import LogDir
from highwater.log_storage.partition_metadata import PartitionMetadataError
from highwater.log_storage.recovery import Checkpointed, open_log
from highwater.metadata.keys import is_legal_topic_name
from highwater.metadata.models import TOPIC_ID_BYTES, PartitionKey
from highwater.rpc.server import UserError
from highwater.telemetry.log import get_logger, pairs

_CREATING = ".creating"
_DELETED = ".deleted"

_log = get_logger("log_storage.log_manager")


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class LogManager:
    def __init__(
        self,
        paths: Sequence[Path],
        config: LogConfig,
        *,
        broker_id: int,
        recovery_threads: int = 1,
        now_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        """Locks the directories. Raises `UserError`."""
        if not paths or len({path.resolve() for path in paths}) < len(paths):
            raise UserError("log.dirs must name at least one directory, and each only once")
        self.config = config
        self.log_dirs: list[LogDir] = []
        self._recovery_threads = recovery_threads
        self._now_ms = now_ms
        self._wall_offset_ms = time.time_ns() // 1_000_000 - now_ms()
        self._hosted: dict[PartitionKey, HostedLog] = {}
        self._names: dict[TopicPartition, PartitionKey] = {}
        try:
            for path in paths:
                every = config.flush_messages == 1
                self.log_dirs.append(LogDir(path, broker_id, flush_every_message=every))
        except UserError:
            self.unlock()
            raise

    # -- start and stop -----------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Opens every log, `num.recovery.threads.per.data.dir` at a time in each directory, then takes the
        clean-shutdown marks. A log that cannot be opened is offline; the others are not touched by it. Raises
        `UserError`."""
        try:
            for log_dir in self.log_dirs:
                self._load_directory(log_dir)
            for log_dir in self.log_dirs:
                log_dir.consume_clean_mark()
        except OSError as error:
            raise UserError(f"cannot read the data dir {error.filename}: {error.strerror or error}") from None

    def _load_directory(self, log_dir: LogDir) -> None:
        started_ms = self._now_ms()
        found = []
        for directory in sorted(path for path in log_dir.path.iterdir() if path.is_dir()):
            if directory.name.endswith((_CREATING, _DELETED)):
                shutil.rmtree(directory)
                continue
            name = partition_metadata.parse_directory_name(directory.name)
            hosted = None if name is None else self._identify(log_dir, directory, *name)
            if hosted is None:
                _log.warning("%s is not a log's directory; it is left alone", directory)
            else:
                found.append(hosted)
        known = log_dir.checkpointed()
        with ThreadPoolExecutor(self._recovery_threads, "recovery") as threads:
            list(threads.map(lambda hosted: self._open(hosted, known(*hosted.topic_partition)), found))
        for hosted in found:
            self._add(hosted)
        # Without the entries of logs that are gone: a topic made again under its old name must not inherit them.
        self.write_checkpoints(log_dir)
        _log.info(
            "opened %s %s",
            log_dir.path,
            pairs(logs=len(found), clean=log_dir.clean, tail_lost=log_dir.tail_lost, ms=self._now_ms() - started_ms),
        )

    def _identify(self, log_dir: LogDir, directory: Path, topic: str, partition: int) -> HostedLog | None:
        try:
            topic_id = partition_metadata.read(directory)
        except PartitionMetadataError as error:
            _log.error("%s: without a topic id nobody can ask for this log", error)
            return None
        if topic_id is None:
            return None
        return HostedLog(PartitionKey(topic_id, partition), topic, log_dir, directory, None)

    def _open(self, hosted: HostedLog, known: Checkpointed) -> None:
        try:
            hosted.log = open_log(hosted.directory, self.config, known, self._now_ms(), self._wall_offset_ms)
            hosted.high_watermark_written = known.high_watermark
        except (LogError, OSError) as error:
            hosted.failure = str(error)
            _log.error("a log is offline: %s", error)

    def close(self) -> None:
        """A clean stop: every log to disk, the checkpoints, then the mark.

        A directory in which anything failed, or a log is offline, gets no mark; nor does one whose tail is lost: until
        that is settled every start says so (RULES 7.2).
        """
        for log_dir in self.log_dirs:
            try:
                healthy = self._close_directory(log_dir)
                self.write_checkpoints(log_dir)
                if healthy and not log_dir.tail_lost:
                    log_dir.mark_clean()
            except OSError as error:
                _log.error("%s is not stopped cleanly: %s", log_dir.path, error)
            log_dir.close()

    def _close_directory(self, log_dir: LogDir) -> bool:
        healthy = True
        for hosted in self.in_directory(log_dir):
            try:
                log = hosted.online()
                log.close()
                log.remove_deleted()
            except LogError as error:
                _log.error("%s", error)
                healthy = False
        return healthy

    def unlock(self) -> None:
        """Lets go of the directories without writing anything."""
        for log_dir in self.log_dirs:
            log_dir.close()

    # -- finding ------------------------------------------------------------------------------------------------------

    def find(self, key: PartitionKey) -> HostedLog | None:
        return self._hosted.get(key)

    def get(self, key: PartitionKey) -> HostedLog:
        """Raises `LogError` (UNKNOWN_TOPIC_ID)."""
        hosted = self._hosted.get(key)
        if hosted is None:
            raise LogError(ErrorCode.UNKNOWN_TOPIC_ID, f"this broker has no log of partition {key}")
        return hosted

    def __iter__(self) -> Iterator[HostedLog]:
        return iter(list(self._hosted.values()))

    def __len__(self) -> int:
        return len(self._hosted)

    def in_directory(self, log_dir: LogDir) -> Iterator[HostedLog]:
        return (hosted for hosted in self if hosted.log_dir is log_dir)

    def _add(self, hosted: HostedLog) -> None:
        present = self._hosted.get(hosted.key)
        if present is not None:
            raise UserError(
                f"{present.directory} and {hosted.directory} are the same partition: remove the one that is older"
            )
        self._hosted[hosted.key] = hosted
        self._names[hosted.topic_partition] = hosted.key

    # -- creating and deleting ----------------------------------------------------------------------------------------

    def create(self, topic: str, key: PartitionKey, topic_config: Mapping[str, str]) -> bool:
        """Creates the log where there is none; whether it did. An existing one takes the configuration.

        Raises `LogError`: INVALID_TOPIC, INVALID_CONFIG, INCONSISTENT_TOPIC_ID, LOG_STORAGE_ERROR.
        """
        config = self.config.with_topic(topic_config)
        present = self._hosted.get(key)
        if present is not None:
            present.online().config = config
            present.configured = True
            return False
        if not is_legal_topic_name(topic) or key.partition < 0:
            raise LogError(ErrorCode.INVALID_TOPIC, f"{topic!r}, partition {key.partition}, cannot name a log")
        if len(key.topic_id) != TOPIC_ID_BYTES:
            raise LogError(ErrorCode.INVALID_REQUEST, f"a topic id has 16 bytes, not {len(key.topic_id)}")
        other = self._names.get((topic, key.partition))
        if other is not None:
            raise LogError(
                ErrorCode.INCONSISTENT_TOPIC_ID,
                f"{self._hosted[other].directory} belongs to another topic of this name, {other}: delete it first",
            )
        log_dir = min(self.log_dirs, key=lambda candidate: sum(1 for _ in self.in_directory(candidate)))
        try:
            directory = self._make_directory(log_dir, topic, key)
            log = open_log(directory, config, Checkpointed(), self._now_ms(), self._wall_offset_ms)
        except OSError as error:
            raise LogError(ErrorCode.LOG_STORAGE_ERROR, f"cannot create a log in {log_dir.path}: {error}") from error
        hosted = HostedLog(key, topic, log_dir, directory, log)
        hosted.configured = True
        self._add(hosted)
        return True

    def _make_directory(self, log_dir: LogDir, topic: str, key: PartitionKey) -> Path:
        directory = log_dir.path / partition_metadata.directory_name(topic, key.partition)
        if directory.exists():
            raise LogError(
                ErrorCode.INCONSISTENT_TOPIC_ID, f"{directory} exists and is not a log of ours: move it out of the way"
            )
        making = directory.with_name(f"{secrets.token_hex(8)}{_CREATING}")
        making.mkdir()
        partition_metadata.write(making, key.topic_id)
        new_segment(making, 0, self.config)
        fsync_directory(making)
        making.rename(directory)
        fsync_directory(log_dir.path)
        return directory

    def delete(self, key: PartitionKey, leader_epoch: int) -> Path | None:
        """Renames the log's directory to `.deleted` and forgets it (RULES 9.3); the directory to be removed, None where
        there is no such log.

        Raises `LogError`: STALE_FENCE where the fence is higher than `leader_epoch` (-1, a dead topic id: never),
        LOG_STORAGE_ERROR.
        """
        hosted = self._hosted.get(key)
        if hosted is None:
            return None
        fence = hosted.fence
        if fence is not None and leader_epoch != NO_EPOCH and fence.leader_epoch > leader_epoch:
            raise LogError(
                ErrorCode.STALE_FENCE,
                f"{hosted.directory} is fenced at leader epoch {fence.leader_epoch}, the deletion knows only "
                f"{leader_epoch}",
            )
        target = hosted.directory.with_name(f"{hosted.directory.name[:200]}.{secrets.token_hex(4)}{_DELETED}")
        try:
            hosted.directory.rename(target)
            fsync_directory(hosted.log_dir.path)
            del self._hosted[key]
            del self._names[hosted.topic_partition]
            hosted.log, hosted.failure = None, "deleted"
            self.write_checkpoints(hosted.log_dir)
            hosted.log_dir.fences.forget([key])
        except OSError as error:
            raise LogError(ErrorCode.LOG_STORAGE_ERROR, f"cannot delete {hosted.directory}: {error}") from error
        return target

    # -- truncation ---------------------------------------------------------------------------------------------------

    def truncate(self, hosted: HostedLog, offset: int, unclean_epoch: int) -> None:
        """Raises `LogError`: TRUNCATION_BELOW_HIGH_WATERMARK (RULES 4.4), LOG_STORAGE_ERROR."""
        log = hosted.online()
        cut = log.cut_for(offset, unclean_epoch)
        if log.promise_at_most(cut):
            self._lower_checkpoints(hosted.log_dir)
        log.truncate_to(cut)

    def truncate_fully_and_start_at(self, hosted: HostedLog, offset: int, unclean_epoch: int) -> None:
        """Raises `LogError`: as `truncate`."""
        log = hosted.online()
        log.check_restart_at(offset, unclean_epoch)
        log.promise_at_most(offset)
        # A crash on the way must find the new log start, or a log without segments would begin at the old one.
        log.log_start_offset = offset
        self._lower_checkpoints(hosted.log_dir)
        log.truncate_fully_and_start_at(offset)

    # -- retention ----------------------------------------------------------------------------------------------------

    def retain(self, hosted: HostedLog, wall_clock_ms: int) -> int:
        """Lets go of what retention does not keep; how many segments. Nothing else may happen to the log meanwhile.

        The log start is on disk before the first segment goes: after a crash a log is never found to begin at, or to
        have fallen back to, an offset below what it had started at. Raises `LogError` (LOG_STORAGE_ERROR)."""
        log = hosted.online()
        count = log.expired(wall_clock_ms) if hosted.configured else 0
        if count:
            log.start_behind(count)
            try:
                self.write_checkpoint(hosted.log_dir, checkpoints.LOG_STARTS)
            except OSError as error:
                raise LogError(ErrorCode.LOG_STORAGE_ERROR, f"cannot write a checkpoint: {error}") from error
            log.release_segments()
            _log.info("retention %s", pairs(log=hosted.directory.name, segments=count, log_start=log.log_start_offset))
        return count

    def _lower_checkpoints(self, log_dir: LogDir) -> None:
        try:
            self.write_checkpoints(log_dir)
        except OSError as error:
            raise LogError(ErrorCode.LOG_STORAGE_ERROR, f"cannot write a checkpoint: {error}") from error

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def write_checkpoints(self, log_dir: LogDir) -> None:
        """Writes all offset checkpoints of a directory. Raises `OSError`."""
        for name in _CHECKPOINTED:
            self.write_checkpoint(log_dir, name)

    def write_checkpoint(self, log_dir: LogDir, name: str) -> None:
        """Writes one of the offset checkpoints of a directory. An offline log's entry is kept as it last was. May be
        called from several threads. Raises `OSError`."""
        log_dir.write_checkpoint(name, lambda: dict(self._offsets(log_dir, name)))

    def _offsets(self, log_dir: LogDir, name: str) -> Iterable[tuple[TopicPartition, int]]:
        read = _CHECKPOINTED[name]
        unopened = [hosted for hosted in self.in_directory(log_dir) if hosted.log is None]
        if unopened:
            before = checkpoints.read_offsets(log_dir.path / name)
            for hosted in unopened:
                if hosted.topic_partition in before:
                    yield hosted.topic_partition, before[hosted.topic_partition]
        for hosted in self.in_directory(log_dir):
            if hosted.log is not None:
                yield hosted.topic_partition, read(hosted.log)


_CHECKPOINTED: dict[str, Callable[[Log], int]] = {
    checkpoints.RECOVERY_POINTS: lambda log: log.recovery_point,
    checkpoints.HIGH_WATERMARKS: lambda log: log.high_watermark,
    checkpoints.LOG_STARTS: lambda log: log.log_start_offset,
}
