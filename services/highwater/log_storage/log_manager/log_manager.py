"""All logs of one broker: made, cut, shortened and deleted, with the checkpoints in step."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from highwater.atomic_file import fsync_directory
from highwater.errors import ErrorCode
from highwater.log_storage.clock import monotonic_ms
from highwater.log_storage.config import LogConfig
from highwater.log_storage.errors import LogError
from highwater.log_storage.files import checkpoints, partition_metadata
from highwater.log_storage.log.log import Log
from highwater.log_storage.log.log_context import NO_OFFSET
from highwater.log_storage.log_manager.hosted_log import HostedLog
from highwater.log_storage.log_manager.log_creation import LogCreation, WantedLog
from highwater.log_storage.log_manager.log_dir import LogDir
from highwater.log_storage.log_manager.log_loader import LogLoader
from highwater.log_storage.log_manager.log_mover import LogMover
from highwater.log_storage.log_manager.log_registry import LogRegistry, mark_deleted
from highwater.log_storage.log_manager.side_by_side import Outcome, side_by_side
from highwater.model.leader_epochs import NO_EPOCH
from highwater.model.partition import PartitionKey, format_topic_id
from highwater.telemetry.log import get_logger, pairs

CLOSED_AT_ONCE = 8  # logs of one directory: their threads wait for the disk, which takes several at a time
CHECKPOINTS_S = 2.0  # for the checkpoints of what was closed in time

_log = get_logger("log_storage.log_manager")


@dataclass(frozen=True, slots=True)
class Cut:
    """A cut that was begun: the log's offsets promise no more than it leaves, and nothing is gone. Whoever began it has
    the log alone until it is finished, or withdrawn."""

    hosted: HostedLog
    offset: int  # the new log end
    fully: bool  # everything goes, and the log starts anew there
    to_checkpoint: bool  # after a crash the checkpoints must not speak for what is dropped: they are written first
    log_start_before: int

    def withdraw(self) -> None:
        """The checkpoints could not be written: the log stays as it is."""
        if self.fully:
            self.hosted.online().offsets.log_start_offset = self.log_start_before


class LogManager:
    """`logs` are those that there are; `mover` moves them between directories."""

    def __init__(
        self,
        paths: Sequence[Path],
        config: LogConfig,
        *,
        broker_id: int,
        recovery_threads: int = 1,
        most_logs: int | None = None,
        now_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        """Touches no disk: `load` follows, or `lock` and `load`. `most_logs`: no more are made; None: as many as are
        asked for."""
        self.logs = LogRegistry(config, now_ms)
        self.mover = LogMover(self.logs)
        self._creation = LogCreation(self.logs, most_logs)
        self._loader = LogLoader(self.logs, paths, broker_id=broker_id, recovery_threads=recovery_threads)

    @property
    def locked(self) -> bool:
        """True when the directories are this manager's, and known."""
        return self._loader.locked

    @property
    def loaded(self) -> bool:
        """True when the logs are open, but for those that cannot be."""
        return self._loader.loaded

    def lock(self) -> None:
        """See `LogLoader.lock`."""
        self._loader.lock()

    def load(self) -> None:
        """See `LogLoader.load`."""
        self._loader.load()

    def stop_loading(self) -> None:
        """See `LogLoader.stop_loading`."""
        self._loader.stop_loading()

    def unlock(self) -> None:
        """Lets go of the directories without writing anything."""
        self._loader.unlock()

    def close(self, within_s: float | None = None, unanswered: Collection[LogDir] = ()) -> None:
        """A clean stop: every log to disk, `CLOSED_AT_ONCE` at a time in each directory, then the checkpoints, and the
        mark. What is not on disk `within_s` is left as a kill would leave it: the directory gets no mark, and the next
        start looks at those logs. `unanswered` directories are left like that from the beginning, and stay locked.

        Nor does a directory in which anything failed, or a log is offline, or whose tail is lost: until that is settled
        every start says so (RULES 7.2).
        """
        until_s = None if within_s is None else time.monotonic() + within_s
        directories = [log_dir for log_dir in self.logs.online_dirs if log_dir not in unanswered]
        for log_dir in unanswered:
            _log.warning("%s is not stopped cleanly: its disk has not answered what was begun before", log_dir.path)
        free: list[LogDir] = [
            log_dir for log_dir in self.logs.log_dirs if log_dir.offline and log_dir not in unanswered
        ]

        def close(log_dir: LogDir) -> bool:
            if self._close_directory(log_dir, until_s):
                free.append(log_dir)
            return True

        patience_s = None if until_s is None else until_s + CHECKPOINTS_S
        side_by_side([partial(close, log_dir) for log_dir in directories], len(directories), patience_s)
        for log_dir in free:  # where something is still being written, the lock goes with the process
            log_dir.close()

    def _close_directory(self, log_dir: LogDir, until_s: float | None) -> bool:
        """Tells whether nothing is being written to it any more."""
        closed = Outcome(well=False, late=0, running=False)
        try:
            log_dir.must_forget()
            closed = side_by_side(self._closings(log_dir), CLOSED_AT_ONCE, until_s)
            # A log that was not opened is as its last stop has left it.
            healthy = closed.well and (log_dir.clean or not log_dir.unhosted)
            self.logs.write_checkpoints(log_dir)
            if healthy and not log_dir.tail_lost:
                log_dir.mark_clean()
        except (OSError, LogError) as error:
            _log.error("%s is not stopped cleanly: %s", log_dir.path, error)
        if closed.late:
            _log.warning(
                "%s is not stopped cleanly: the time was over before all logs were on disk %s",
                log_dir.path,
                pairs(logs=closed.late),
            )
        return not closed.running

    def _closings(self, log_dir: LogDir) -> list[Callable[[], bool]]:
        """Of each log, and of each copy that moves to the directory. Each says whether it went well."""

        def close(hosted: HostedLog) -> bool:
            try:
                _close_log(hosted.online())
            except LogError as error:
                _log.error("%s", error)
                return False
            return True

        def close_copy(hosted: HostedLog) -> bool:
            try:
                assert hosted.future is not None
                _close_log(hosted.future.log)
            except LogError as error:
                _log.error("the move is given up: %s", error)
                self.mover.drop_future(hosted)
            return True

        return [
            *(partial(close, hosted) for hosted in self.logs.in_directory(log_dir)),
            *(partial(close_copy, hosted) for hosted in self.logs.moving_to(log_dir)),
        ]

    # -- creating and deleting ----------------------------------------------------------------------------------------

    def create(self, topic: str, key: PartitionKey, topic_config: Mapping[str, str], new: bool = False) -> bool:
        """Creates one log, as `create_all`; whether it did. Raises `LogError`."""
        (made,) = self.create_all([WantedLog(topic, key, topic_config, new)])
        if isinstance(made, LogError):
            raise made
        return made

    def create_all(self, wanted: Sequence[WantedLog]) -> list[bool | LogError]:
        """See `LogCreation.create`."""
        return self._creation.create(wanted)

    def delete(self, key: PartitionKey, leader_epoch: int) -> Path | None:
        """Renames the log's directory to `.deleted` and forgets it (RULES 9.3), and its copy if it moves; the directory
        to be removed, None where there is no such log.

        Raises `LogError`: STALE_FENCE where the fence is higher than `leader_epoch` (-1, a dead topic id: never),
        LOG_STORAGE_ERROR; also where the topic id that is dead, or not wanted here, is not the log's.
        """
        hosted = self.logs.find(key)
        if hosted is None:
            self.logs.check_all_loaded()
            return None
        if hosted.log_dir.offline:
            raise LogError(
                ErrorCode.LOG_STORAGE_ERROR,
                f"cannot delete {hosted.directory}: it is offline: {hosted.log_dir.offline}",
            )
        if hosted.misnamed:
            raise LogError(
                ErrorCode.LOG_STORAGE_ERROR,
                f"{hosted.directory} is not deleted: it has batches and no fence under topic id "
                f"{format_topic_id(key.topic_id)}, so its {partition_metadata.FILE_NAME} is damaged "
                f"or the directory's fence-journal is gone. Remove it by hand if it is not wanted",
            )
        fence = hosted.fence
        if fence is not None and leader_epoch != NO_EPOCH and fence.leader_epoch > leader_epoch:
            raise LogError(
                ErrorCode.STALE_FENCE,
                f"{hosted.directory} is fenced at leader epoch {fence.leader_epoch}, the deletion knows only "
                f"{leader_epoch}",
            )
        self.mover.drop_future(hosted)  # first: it must not be found without the log
        if hosted.log is not None:  # nor may a snapshot come into a directory that is made anew under its name
            hosted.log.producer_state.pending.drop_above(NO_OFFSET)
        try:
            removable = mark_deleted(hosted.directory)
            fsync_directory(hosted.log_dir.path)
        except OSError as error:
            hosted.log_dir.disk.note(error)
            raise LogError(ErrorCode.LOG_STORAGE_ERROR, f"cannot delete {hosted.directory}: {error}") from error
        self.logs.take_out(hosted)
        hosted.log, hosted.failure = None, "deleted"
        # Written without its entries before a log is made there, or at the next start: all of them for each that is
        # deleted would make n deletions cost n * n.
        hosted.log_dir.stale_checkpoints = True
        try:
            hosted.log_dir.disk.using_reserve(lambda: hosted.log_dir.fences.forget([key]))
        except OSError as error:
            # The log is gone, and makes the room that may be lacking. Its fence is of an id that does not come again.
            _log.warning("after the deletion of %s: %s", hosted.directory, error)
        return removable

    # -- truncation ---------------------------------------------------------------------------------------------------

    def begin_truncation(self, hosted: HostedLog, offset: int, unclean_epoch: int) -> Cut:
        """Raises `LogError`: TRUNCATION_BELOW_HIGH_WATERMARK (RULES 4.4), LOG_STORAGE_ERROR, STORAGE_FULL."""
        log = hosted.online()
        return _begin_cut(hosted, log, log.truncation.cut_for(offset, unclean_epoch))

    def begin_restart(self, hosted: HostedLog, offset: int, unclean_epoch: int) -> Cut:
        """Of TruncateFullyAndStartAt. Raises as `begin_truncation`."""
        log = hosted.online()
        log.truncation.check_restart_at(offset, unclean_epoch)
        return _begin_restart(hosted, log, offset)

    def lower_checkpoints(self, log_dir: LogDir) -> None:
        """The checkpoints of a directory to disk, after cuts were begun in it. Raises `LogError` (LOG_STORAGE_ERROR,
        STORAGE_FULL)."""
        try:
            self.logs.write_checkpoints(log_dir)
        except OSError as error:
            raise log_dir.disk.refusal(error, "cannot write a checkpoint") from error

    def finish(self, cut: Cut) -> None:
        """Cuts the log. Where the cut says so, the checkpoints must have been written since it was begun. Raises
        `LogError` (LOG_STORAGE_ERROR, STORAGE_FULL)."""
        hosted, truncation = cut.hosted, cut.hosted.online().truncation
        if cut.fully:
            truncation.truncate_fully_and_start_at(cut.offset)
        else:
            truncation.truncate_to(cut.offset)
        hosted.uncleanable = ""
        self.mover.cut_future(hosted, 0 if cut.fully else cut.offset)

    def truncate(self, hosted: HostedLog, offset: int, unclean_epoch: int) -> None:
        """Raises as `begin_truncation`."""
        self._carry_out(self.begin_truncation(hosted, offset, unclean_epoch))

    def truncate_fully_and_start_at(self, hosted: HostedLog, offset: int, unclean_epoch: int) -> None:
        """Raises as `begin_restart`."""
        self._carry_out(self.begin_restart(hosted, offset, unclean_epoch))

    def drop_damaged(self, hosted: HostedLog) -> None:
        """Drops the first segment that is known to be damaged and all behind it, whatever the high watermark (RULES
        7.6). Raises `LogError` (LOG_STORAGE_ERROR, STORAGE_FULL)."""
        log = hosted.online()
        damaged = log.damage.first_segment(log.segments)
        if damaged is not None:
            begin = _begin_restart if damaged is log.segments[0] else _begin_cut
            self._carry_out(begin(hosted, log, damaged.base_offset))

    def _carry_out(self, cut: Cut) -> None:
        if cut.to_checkpoint:
            try:
                self.lower_checkpoints(cut.hosted.log_dir)
            except LogError:
                cut.withdraw()
                raise
        self.finish(cut)

    # -- retention ----------------------------------------------------------------------------------------------------

    def retain(self, hosted: HostedLog, wall_clock_ms: int) -> int:
        """Lets go of what retention does not keep; how many segments. Nothing else may happen to the log meanwhile.

        The log start is on disk before the first segment goes: after a crash a log is never found to begin at, or to
        have fallen back to, an offset below what it had started at. Raises `LogError` (LOG_STORAGE_ERROR,
        STORAGE_FULL)."""
        log = hosted.online()
        count = log.log_start.expired(wall_clock_ms) if hosted.configured else 0
        if count:
            log.log_start.move_behind(count)
            try:
                self.logs.write_checkpoint(hosted.log_dir, checkpoints.LOG_STARTS)
            except OSError as error:
                raise hosted.log_dir.disk.refusal(error, "cannot write a checkpoint") from error
            log.log_start.release_segments()
            _log.info("retention %s", pairs(log=hosted.directory.name, segments=count, log_start=log.log_start_offset))
        return count


def _begin_cut(hosted: HostedLog, log: Log, offset: int) -> Cut:
    return Cut(hosted, offset, False, log.offsets.promise_at_most(offset), log.log_start_offset)


def _begin_restart(hosted: HostedLog, log: Log, offset: int) -> Cut:
    log.offsets.promise_at_most(offset)
    # A crash on the way must find the new log start, or a log without segments would begin at the old one.
    before, log.offsets.log_start_offset = log.log_start_offset, offset
    return Cut(hosted, offset, True, True, before)


def _close_log(log: Log) -> None:
    log.close()
    log.remove_deleted()
