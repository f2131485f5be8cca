"""Opening the log directories and all logs in them."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from highwater.errors import UserError
from highwater.log_storage.errors import LogError
from highwater.log_storage.files import future_files, partition_metadata
from highwater.log_storage.files.disk import DiskErrorKind, is_lacking
from highwater.log_storage.files.partition_metadata import PartitionMetadataError
from highwater.log_storage.log import log_copy
from highwater.log_storage.log_manager.hosted_log import FutureLog, HostedLog
from highwater.log_storage.log_manager.log_dir import LogDir, lacking
from highwater.log_storage.log_manager.log_registry import DELETED, LogRegistry
from highwater.log_storage.recovery.recovery import Checkpointed, open_log, unflushed_bytes
from highwater.log_storage.recovery.recovery_progress import RecoveryProgress
from highwater.log_storage.segment.segment_files import LOG_SUFFIX
from highwater.model.partition import PartitionKey
from highwater.telemetry.log import get_logger, pairs

CREATING = ".creating"
_UNIDENTIFIED = (
    "nobody can ask for this log. Stop log-storage and restore the file; the refusal to make the log anew says what "
    "belongs into it"
)

_log = get_logger("log_storage.log_loader")


class LogLoader:
    """Fills a registry. What it finds of moves that were under way goes on, or is dropped."""

    def __init__(
        self,
        logs: LogRegistry,
        paths: Sequence[Path],
        *,
        broker_id: int,
        recovery_threads: int,
    ) -> None:
        self.locked = False  # whether the directories are known
        self.loaded = False  # whether all logs are open that can be
        self._logs = logs
        self._paths = paths
        self._broker_id = broker_id
        self._recovery_threads = recovery_threads
        self._futures: list[tuple[LogDir, Path]] = []
        self._stopping = threading.Event()

    def lock(self) -> None:
        """Locks the directories. One that cannot be used is offline and does not stop the others. Raises `UserError`:
        one is in use or not this broker's, they are not of one set, or none can be used."""
        if not self._paths or len({path.resolve() for path in self._paths}) < len(self._paths):
            raise UserError("log.dirs must name at least one directory, and each only once")
        every = self._logs.config.flush_messages == 1
        try:
            for path in self._paths:
                self._logs.log_dirs.append(LogDir(path, self._broker_id, flush_every_message=every))
            self._check_usable()
            self._begin()
        except UserError:
            self.unlock()
            raise
        self.locked = True

    def _check_usable(self) -> None:
        if not self._logs.online_dirs:
            raise UserError(self._logs.log_dirs[0].offline)

    def _begin(self) -> None:
        """Compares what the directories say of each other (RULES 7.2)."""
        present = [log_dir.properties.directory_id for log_dir in self._logs.online_dirs]
        for number, log_dir in enumerate(self._logs.online_dirs):
            if log_dir.properties.directory_id in present[:number]:
                raise UserError(
                    f"{log_dir.path} is a copy of another of log.dirs, with the same directory.id in meta.properties: "
                    f"remove the copy"
                )
        clusters = {log_dir.cluster_id: log_dir.path for log_dir in self._logs.online_dirs if log_dir.cluster_id}
        if len(clusters) > 1:
            told = ", ".join(f"{path} to {cluster_id}" for cluster_id, path in clusters.items())
            raise UserError(f"log.dirs belong to several clusters: {told}; set log.dirs to directories of one")
        known = {
            directory_id
            for log_dir in self._logs.online_dirs
            if log_dir.record is not None
            for directory_id in log_dir.record.directory_ids
        }
        missing = known.difference(present)
        if len(self._logs.online_dirs) == len(self._logs.log_dirs):
            for log_dir in self._logs.log_dirs:
                if missing:  # a directory was taken away, and its logs with it
                    log_dir.tail_lost = True
                elif known and log_dir.record is None:  # added to those that were there, and are
                    log_dir.tail_lost = False
            missing = set()
        for log_dir in self._logs.online_dirs:
            log_dir.begin(missing.union(present))
        self._check_usable()

    def load(self) -> None:
        """Locks the directories where `lock` has not, and opens every log, `num.recovery.threads.per.data.dir` at a
        time in each directory, of all directories at once (they may be volumes of their own), then takes the
        clean-shutdown marks. A log that cannot be opened is offline, and so are all of a directory that fails; the
        others are not touched by it. Raises `UserError`, and `OpeningStopped` after `stop_loading`."""
        if not self.locked:
            self.lock()
        directories = self._logs.online_dirs
        with ThreadPoolExecutor(len(directories), "log-dirs") as threads:
            list(threads.map(lambda log_dir: self._in(log_dir, self._load_directory), directories))
        for log_dir, directory in self._futures:
            if not log_dir.offline:
                self._take_up(log_dir, directory)
        self._futures.clear()
        for log_dir in self._logs.online_dirs:
            self._in(log_dir, self._settle)
        self._check_usable()
        self._logs.count_offline()
        self.loaded = True

    def stop_loading(self) -> None:
        """Ends `load`, soon, from another thread: as a kill would, so the next start recovers what is left."""
        self._stopping.set()

    def _in(self, log_dir: LogDir, work: Callable[[LogDir], None]) -> None:
        """Whatever ends `work` ends this directory, and no other: but for a lack of descriptors, which is nobody's."""
        try:
            work(log_dir)
        except UserError:
            raise
        except OSError as error:
            if is_lacking(error):
                raise lacking(error) from error
            log_dir.disk.fail(f"cannot read the data dir {error.filename or log_dir.path}: {error.strerror or error}")
        except Exception as error:
            _log.exception("cannot open %s", log_dir.path)
            log_dir.disk.fail(f"cannot open the data dir {log_dir.path}: {error!r}")

    def _load_directory(self, log_dir: LogDir) -> None:
        started_ms = self._logs.now_ms()
        found = []
        for directory in sorted(path for path in log_dir.path.iterdir() if path.is_dir()):
            if directory.name.endswith((CREATING, DELETED)):
                _remove(log_dir, directory)
                continue
            if future_files.partition_of(directory.name) is not None:
                self._futures.append((log_dir, directory))
                continue
            name = partition_metadata.parse_directory_name(directory.name)
            hosted = None if name is None else self._identify(log_dir, directory, *name)
            if hosted is None:
                _log.warning("%s is not a log's directory; it is left alone", directory)
                if name is not None:
                    log_dir.unhosted.append(directory)
            else:
                found.append(hosted)
        known = log_dir.checkpointed()
        log_dir.recovery = RecoveryProgress(log_dir.path, self._logs.now_ms, self._stopping)
        log_dir.recovery.begin(len(found), sum(_unflushed_bytes(hosted, known) for hosted in found))
        with ThreadPoolExecutor(self._recovery_threads, "recovery") as threads:
            list(threads.map(lambda hosted: self._open(hosted, known(*hosted.topic_partition)), found))
        for hosted in found:
            self._logs.add(hosted)
        log_dir.loaded = True
        _log.info(
            "opened %s %s",
            log_dir.path,
            pairs(
                logs=len(found), clean=log_dir.clean, tail_lost=log_dir.tail_lost, ms=self._logs.now_ms() - started_ms
            ),
        )

    def _settle(self, log_dir: LogDir) -> None:
        # Without the entries of logs that are gone: a topic made again under its old name must not inherit them.
        try:
            self._logs.write_checkpoints(log_dir)
        except OSError as error:
            if log_dir.disk.note(error) is not DiskErrorKind.FULL:
                raise
            log_dir.stale_checkpoints = True
        log_dir.consume_clean_mark()
        log_dir.disk.keep_reserve()

    def _identify(self, log_dir: LogDir, directory: Path, topic: str, partition: int) -> HostedLog | None:
        try:
            topic_id = partition_metadata.read(directory)
            if topic_id is not None:
                return HostedLog(PartitionKey(topic_id, partition), topic, log_dir, directory, None)
            if not any(directory.glob(f"*{LOG_SUFFIX}")):
                return None
            _log.error("%s is missing: %s", directory / partition_metadata.FILE_NAME, _UNIDENTIFIED)
        except PartitionMetadataError as error:
            _log.error("%s: %s", error, _UNIDENTIFIED)
        except OSError as error:
            if log_dir.disk.note(error) is not DiskErrorKind.OTHER:
                raise
            _log.error("%s: nobody can ask for this log", error)
        self._logs.note_unidentified(topic, partition, directory)
        return None

    def _open(self, hosted: HostedLog, known: Checkpointed) -> None:
        disk, progress = hosted.log_dir.disk, hosted.log_dir.recovery
        assert progress is not None
        progress.opening()
        try:
            hosted.log = open_log(
                hosted.directory,
                self._logs.config,
                known,
                self._logs.now_ms(),
                self._logs.wall_offset_ms,
                progress.scanned,
                hosted.log_dir.lose_tail,
                disk,
            )
            hosted.high_watermark_written = known.high_watermark
            future_files.unmark(hosted.directory)
        except (LogError, OSError) as error:
            cause = error if isinstance(error, OSError) else error.__cause__
            if isinstance(cause, OSError) and is_lacking(cause):
                raise lacking(cause) from error
            if disk.note(cause) is not DiskErrorKind.FAILED:
                _log.error("a log is offline: %s", error)
            hosted.failure = str(error)
        except Exception as error:  # whatever is in its files, the others are opened
            _log.exception("a log is offline: %s", hosted.directory)
            hosted.failure = f"{hosted.directory} cannot be opened: {error!r}"
        progress.opened()

    # -- moves that were under way ------------------------------------------------------------------------------------

    def _take_up(self, log_dir: LogDir, directory: Path) -> None:
        """One that cannot be looked at is left alone, as it is: it may be all that there is of a log."""
        try:
            taken_up = self._load_future(directory, log_dir)
        except UserError:
            raise
        except Exception as error:
            if isinstance(error, OSError) and is_lacking(error):
                raise lacking(error) from error
            if log_dir.disk.note(error) is DiskErrorKind.FAILED:
                return
            _log.error("the move of %s is not taken up: %s", directory, error)
            taken_up = False
        if not taken_up:
            log_dir.unhosted.append(directory)

    def _load_future(self, directory: Path, log_dir: LogDir) -> bool:
        """The move goes on; or it is finished, where the log that is replaced had gone; or the copy is dropped, where
        there is nothing to copy from. False, and left alone, where that cannot be told. Raises `OSError`, and
        `ValueError` where its mark is damaged."""
        topic_id = _topic_id(directory)
        partition = future_files.partition_of(directory.name)
        if topic_id is None or partition is None:
            _log.warning("%s is not a log's directory; it is left alone", directory)
            return False
        key = PartitionKey(topic_id, partition)
        hosted = self._logs.find(key)
        if hosted is not None:
            if hosted.offline_reason:
                return False
            self._resume(hosted, log_dir, directory)
        elif all(other.loaded for other in self._logs.log_dirs):
            self._finish_or_drop(key, log_dir, directory)
        else:
            return False
        return True

    def _resume(self, hosted: HostedLog, log_dir: LogDir, directory: Path) -> None:
        if hosted.future is not None or hosted.log_dir is log_dir:
            _log.warning("%s is dropped: its log is in, or moves to, another directory", directory)
            shutil.rmtree(directory)
            return
        future_files.unmark(directory)
        try:
            log = open_log(
                directory,
                self._logs.config,
                log_dir.checkpointed()(*hosted.topic_partition),
                self._logs.now_ms(),
                self._logs.wall_offset_ms,
                log_dir.recovery.scanned if log_dir.recovery is not None else None,
                disk=log_dir.disk,
            )
        except LogError as error:
            _log.warning("%s is dropped, and copied anew when it is asked for: %s", directory, error)
            shutil.rmtree(directory)
            return
        hosted.future = FutureLog(log_dir, log)
        source = hosted.online()
        try:
            log_copy.agree_with(log, source)
        except LogError as error:
            hosted.future = None
            _log.warning("%s is dropped, and copied anew when it is asked for: %s", directory, error)
            shutil.rmtree(directory)

    def _finish_or_drop(self, key: PartitionKey, log_dir: LogDir, directory: Path) -> None:
        topic = future_files.completed_topic(directory)
        if topic is None:
            _log.warning("%s is dropped: it is no complete copy, and its log is gone", directory)
            shutil.rmtree(directory)
            return
        target = log_dir.path / partition_metadata.directory_name(topic, key.partition)
        directory.rename(target)
        hosted = HostedLog(key, topic, log_dir, target, None)
        self._open(hosted, log_dir.checkpointed()(topic, key.partition))
        self._logs.add(hosted)

    def unlock(self) -> None:
        """Lets go of the directories without writing anything."""
        for log_dir in self._logs.log_dirs:
            log_dir.close()


def _unflushed_bytes(hosted: HostedLog, known: Callable[[str, int], Checkpointed]) -> int:
    try:
        return unflushed_bytes(hosted.directory, known(*hosted.topic_partition))
    except Exception:  # opening it will tell
        return 0


def _remove(log_dir: LogDir, directory: Path) -> None:
    """Removes what is left of a directory that was about to go. Raises `OSError` where more than that one is
    concerned."""
    try:
        shutil.rmtree(directory)
    except OSError as error:
        if log_dir.disk.note(error) is not DiskErrorKind.OTHER:
            raise
        _log.warning("%s is not removed: %s", directory, error)


def _topic_id(directory: Path) -> bytes | None:
    try:
        return partition_metadata.read(directory)
    except PartitionMetadataError:
        return None
