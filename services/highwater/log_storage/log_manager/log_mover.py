"""A log moves to another directory: a `-future` log there copies it, and takes its place when it has all of it."""

from __future__ import annotations

import secrets
from contextlib import suppress
from pathlib import Path

from highwater.atomic_file import OWNERS_DIRECTORY, fsync_directory
from highwater.errors import ErrorCode
from highwater.log_storage.errors import LogError
from highwater.log_storage.files import future_files, partition_metadata
from highwater.log_storage.log import log_copy
from highwater.log_storage.log.log_context import NO_OFFSET
from highwater.log_storage.log.segment_list import new_segment
from highwater.log_storage.log_manager.hosted_log import FutureLog, HostedLog
from highwater.log_storage.log_manager.log_dir import LogDir
from highwater.log_storage.log_manager.log_loader import CREATING
from highwater.log_storage.log_manager.log_registry import LogRegistry
from highwater.log_storage.recovery.recovery import Checkpointed, open_log
from highwater.model.partition import PartitionKey
from highwater.telemetry.log import get_logger, pairs

_log = get_logger("log_storage.log_mover")


class LogMover:
    """The steps of a move; `LogMoves` of the server takes them."""

    def __init__(self, logs: LogRegistry) -> None:
        self._logs = logs

    def start_move(self, key: PartitionKey, path: str) -> bool:
        """Begins the log's move to the directory of that path; whether it moves now. To the one where it is: ends a
        move that is under way. Nothing else may happen to the log meanwhile.

        Raises `LogError`: UNKNOWN_TOPIC_ID, INVALID_REQUEST where `path` is none of `log.dirs`, LOG_STORAGE_ERROR,
        STORAGE_FULL."""
        hosted = self._logs.get(key)
        hosted.online()
        target = self._directory_of(path)
        if hosted.future is not None and hosted.future.log_dir is target:
            return True
        if hosted.future is not None:
            self.drop_future(hosted)
        if hosted.log_dir is target:
            return False
        target.disk.check_room()
        try:
            self._logs.forget_deleted(target)  # an entry of a log of this name would speak for the copy
            self._make_future(hosted, target)
        except OSError as error:
            raise target.disk.refusal(error, f"cannot begin a copy in {target.path}") from error
        except LogError as error:
            target.disk.note(error.__cause__)
            raise
        _log.info("moving %s", pairs(log=hosted.directory, to=target.path))
        return True

    def _directory_of(self, path: str) -> LogDir:
        for log_dir in self._logs.log_dirs:
            if Path(path) == log_dir.path or path == log_dir.properties.directory_id:
                if log_dir.offline:
                    raise LogError(ErrorCode.LOG_STORAGE_ERROR, f"{log_dir.path} is offline: {log_dir.offline}")
                return log_dir
        known = ", ".join(str(log_dir.path) for log_dir in self._logs.log_dirs)
        raise LogError(ErrorCode.INVALID_REQUEST, f"{path} is none of this broker's log.dirs: choose among {known}")

    def _make_future(self, hosted: HostedLog, target: LogDir) -> None:
        source = hosted.online()
        making = target.path / f"{secrets.token_hex(8)}{CREATING}"
        directory = target.path / future_files.future_directory_name(hosted.topic, hosted.key.partition)
        making.mkdir(OWNERS_DIRECTORY)
        partition_metadata.write(making, hosted.key.topic_id)
        new_segment(making, source.segments[0].base_offset, source.config)
        fsync_directory(making)
        making.rename(directory)
        fsync_directory(target.path)
        try:
            log = open_log(
                directory,
                source.config,
                Checkpointed(),
                self._logs.now_ms(),
                self._logs.wall_offset_ms,
                disk=target.disk,
            )
        except (OSError, LogError):
            with suppress(OSError):  # or the next start would take it up
                self._logs.let_go(directory)
            raise
        # What compaction does to the source from now on the copy may have missed.
        log.offsets.cleaned_to = source.cleaned_to
        hosted.future = FutureLog(target, log)

    def drop_future(self, hosted: HostedLog) -> None:
        """Ends a move without effect. What is left of the copy is `removable`."""
        future, hosted.future = hosted.future, None
        if future is None:
            return
        try:
            future_files.unmark(future.log.directory)  # or a start could take it for the log
            self._logs.let_go(future.log.directory)
        except OSError as error:
            future.log_dir.disk.note(error)
            _log.warning("%s is not removed: %s", future.log.directory, error)

    def cut_future(self, hosted: HostedLog, offset: int) -> None:
        """After a truncation of the log: the copy does not keep what was cut. Where that fails the move ends."""
        future = hosted.future
        if future is None or offset >= future.log.log_end_offset:
            return
        try:
            if future.log.offsets.promise_at_most(offset):
                self._logs.write_checkpoints(future.log_dir)
            log_copy.cut_copy(future.log, offset)
        except (OSError, LogError) as error:
            _log.warning("the move to %s is given up: %s", future.log_dir.path, error)
            self.drop_future(hosted)

    def swap(self, hosted: HostedLog) -> None:
        """The copy, which has all batches, takes the log's place. Nothing else may happen to the log meanwhile, and no
        fence be set. A crash leaves the one or the other: the old one until its directory is renamed, then the new one,
        which is marked and has all of its state on disk before.

        Raises `LogError`: the log is as it was, unless the code is LOG_STORAGE_ERROR: then it may be offline."""
        future, source_dir = hosted.future, hosted.log_dir
        assert future is not None
        source, log, target = hosted.online(), future.log, future.log_dir
        log_copy.take_over(log, source)
        fence = hosted.fence
        try:
            target.may_hold_unflushed(source.config.flush_messages)
            if fence is not None:
                target.record_fences({hosted.key: fence})
            self._logs.write_checkpoints(target)
            future_files.mark_complete(log.directory, hosted.topic)
        except OSError as error:
            raise target.disk.refusal(error, f"cannot finish the copy in {target.path}") from error
        source.producer_state.pending.drop_above(NO_OFFSET)  # none may come into the directory that takes its name
        try:
            self._logs.let_go(hosted.directory)
        except OSError as error:
            if hosted.directory.exists():
                self.drop_future(hosted)
                raise source_dir.disk.refusal(error, f"cannot let go of {hosted.directory}") from error
            source_dir.disk.note(
                error
            )  # renamed, perhaps not for good: then it is found again, beside the complete copy
            raise source.context.fail(error) from error
        hosted.future, hosted.log, hosted.log_dir = None, log, target
        hosted.directory = target.path / partition_metadata.directory_name(*hosted.topic_partition)
        hosted.high_watermark_written = log.high_watermark
        self._logs.uncounted = True
        self._arrive(hosted)
        self._forget(hosted, source_dir)
        _log.info("moved %s", pairs(log=hosted.directory, log_end=log.log_end_offset))

    def _arrive(self, hosted: HostedLog) -> None:
        log = hosted.online()
        try:
            log.move_to(hosted.directory)
            future_files.unmark(hosted.directory)
        except (OSError, LogError) as error:
            hosted.log_dir.disk.note(error if isinstance(error, OSError) else error.__cause__)
            raise log.context.fail(error) from error

    def _forget(self, hosted: HostedLog, source_dir: LogDir) -> None:
        """The directory that the log has left need not remember it."""
        try:
            self._logs.write_checkpoints(source_dir)
            source_dir.fences.forget([hosted.key])
        except (OSError, LogError) as error:
            source_dir.stale_checkpoints = True
            _log.warning("%s: %s", source_dir.path, error)
