"""Logs are made: which directory each goes to, and its files; many of them beside one another."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar

from highwater.atomic_file import OWNERS_DIRECTORY, fsync_directory
from highwater.errors import ErrorCode
from highwater.log_storage.config import LogConfig
from highwater.log_storage.errors import LogError
from highwater.log_storage.files import partition_metadata
from highwater.log_storage.log.segment_list import new_segment
from highwater.log_storage.log_manager.hosted_log import HostedLog
from highwater.log_storage.log_manager.log_dir import LogDir
from highwater.log_storage.log_manager.log_loader import CREATING
from highwater.log_storage.log_manager.log_registry import LogRegistry
from highwater.log_storage.recovery.recovery import Checkpointed, open_log
from highwater.model.partition import TOPIC_ID_BYTES, PartitionKey
from highwater.model.topic_name import is_legal_topic_name

# Of what the process may have open: each log has its active segment's file open.
_SHARE = 2
MADE_AT_ONCE = 8  # logs of one call: their threads wait for the disk, which takes several at a time

_LONGEST_NAME = 255  # of a file: the longest topic has it with a partition of five digits, and there are 10,000

_Given = TypeVar("_Given")
_Made = TypeVar("_Made")
_Taken: TypeAlias = tuple[str, int] | PartitionKey
"""Of each log that is to be made, its name and its key."""


@dataclass(frozen=True, slots=True)
class WantedLog:
    """`config` is what the topic sets. `new`: the topic is newer than this start, so no directory that could not be
    opened can hold the log."""

    topic: str
    key: PartitionKey
    config: Mapping[str, str]
    new: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    wanted: WantedLog
    config: LogConfig
    log_dir: LogDir
    directory: Path


class LogCreation:
    """Nothing else is made, deleted or moved to another directory meanwhile."""

    def __init__(self, logs: LogRegistry, most: int | None = None) -> None:
        """`most`: logs that there may be; None: as many as are asked for."""
        self._logs = logs
        self._most = most

    def create(self, wanted: Sequence[WantedLog]) -> list[bool | LogError]:
        """Creates each log where there is none: whether it did, or the error. An existing one takes the configuration.
        What one costs does not grow with the logs that there are: a sync of its own files, and one of each log
        directory for all.

        The codes: INVALID_TOPIC, INVALID_REQUEST, INVALID_CONFIG, INCONSISTENT_TOPIC_ID, POLICY_VIOLATION (there are as
        many logs as there may be), LOG_STORAGE_ERROR, STORAGE_FULL.
        """
        placement = _Placement(self._logs)
        taken: set[_Taken] = set()
        places = [self._tried(each, placement, taken) for each in wanted]
        to_make = [place for place in places if isinstance(place, _Place)]
        made = dict(zip(to_make, _beside_each_other(self._make, to_make), strict=True))
        unsynced = self._sync_names({place.log_dir for place, error in made.items() if error is None})
        return [
            place if not isinstance(place, _Place) else self._take_up(place, made[place] or unsynced.get(place.log_dir))
            for place in places
        ]

    def _tried(self, wanted: WantedLog, placement: _Placement, taken: set[_Taken]) -> _Place | bool | LogError:
        try:
            return self._place(wanted, placement, taken)
        except LogError as error:
            return error

    def _place(self, wanted: WantedLog, placement: _Placement, taken: set[_Taken]) -> _Place | bool:
        """False: the log is there. `taken`: by this request. Raises `LogError`."""
        topic, key = wanted.topic, wanted.key
        config = self._logs.config.with_topic(wanted.config)
        present = self._logs.find(key)
        if present is not None:
            present.configure(self._logs.config, wanted.config)
            self._logs.due.touch(present)
            return False
        name = partition_metadata.directory_name(topic, key.partition)
        if not is_legal_topic_name(topic) or key.partition < 0 or len(name) > _LONGEST_NAME:
            raise LogError(ErrorCode.INVALID_TOPIC, f"{topic!r}, partition {key.partition}, cannot name a log")
        if len(key.topic_id) != TOPIC_ID_BYTES:
            raise LogError(ErrorCode.INVALID_REQUEST, f"a topic id has 16 bytes, not {len(key.topic_id)}")
        # Two directories of one partition would not let log-storage start again.
        if (topic, key.partition) in taken or key in taken:
            raise LogError(ErrorCode.INVALID_REQUEST, f"{topic}-{key.partition} is named twice in one request")
        if self._most is not None and len(self._logs) + len(taken) // 2 >= self._most:
            raise LogError(
                ErrorCode.POLICY_VIOLATION,
                f"this broker has {len(self._logs)} logs and takes at most {self._most}, half of the files that its "
                f"log-storage may open: delete topics, add brokers, or raise that limit (ulimit -n)",
            )
        self._logs.check_name_is_free(topic, key)
        if not wanted.new:
            self._logs.check_all_loaded()
        log_dir = placement.next()
        log_dir.disk.check_room()
        directory = log_dir.path / name
        try:
            self._logs.forget_deleted(log_dir)  # one of this name may have an entry that the new one must not inherit
            log_dir.may_hold_unflushed(config.flush_messages)
        except OSError as error:
            raise _refusal(log_dir, error) from error
        if directory.exists():
            raise LogError(
                ErrorCode.INCONSISTENT_TOPIC_ID, f"{directory} exists and is not a log of ours: move it out of the way"
            )
        taken.update(((topic, key.partition), key))
        placement.took(log_dir)
        return _Place(wanted, config, log_dir, directory)

    def _make(self, place: _Place) -> LogError | None:
        """The log's files, under its name, which is not synced yet."""
        making = place.log_dir.path / f"{secrets.token_hex(8)}{CREATING}"
        try:
            making.mkdir(OWNERS_DIRECTORY)
            partition_metadata.write(making, place.wanted.key.topic_id)
            new_segment(making, 0, self._logs.config)
            fsync_directory(making)
            making.rename(place.directory)
        except OSError as error:
            return _refusal(place.log_dir, error)
        return None

    def _sync_names(self, log_dirs: set[LogDir]) -> dict[LogDir, LogError]:
        """The errors."""
        failed = {}
        for log_dir in log_dirs:
            try:
                fsync_directory(log_dir.path)
            except OSError as error:
                failed[log_dir] = _refusal(log_dir, error)
        return failed

    def _take_up(self, place: _Place, error: LogError | None) -> bool | LogError:
        if error is not None:
            return error
        now_ms, disk = self._logs.now_ms(), place.log_dir.disk
        try:
            log = open_log(place.directory, place.config, Checkpointed(), now_ms, self._logs.wall_offset_ms, disk=disk)
        except OSError as failure:
            return _refusal(place.log_dir, failure)
        except LogError as refused:
            return refused
        hosted = HostedLog(place.wanted.key, place.wanted.topic, place.log_dir, place.directory, log)
        hosted.configured, hosted.topic_config = True, place.wanted.config
        self._logs.add(hosted)
        return True


def most_logs(descriptors: int) -> int | None:
    """The logs that a process may have which may open so many files; below 0: as many as it likes."""
    return descriptors // _SHARE if descriptors >= 0 else None


class _Placement:
    """Shares logs out over the directories, in which those that there are have been counted once."""

    def __init__(self, logs: LogRegistry) -> None:
        self._logs = logs
        self._counts: Counter[LogDir] | None = None  # of logs, and of those that move there

    def next(self) -> LogDir:
        """The one with the fewest; one that is full only where all are. Raises `LogError` (LOG_STORAGE_ERROR)."""
        online = self._logs.online_dirs
        if not online:
            offline = self._logs.log_dirs[0].offline
            raise LogError(ErrorCode.LOG_STORAGE_ERROR, f"all log directories are offline: {offline}")
        if len(online) == 1:
            return online[0]
        if self._counts is None:
            self._counts = Counter(hosted.log_dir for hosted in self._logs)
            self._counts.update(hosted.future.log_dir for hosted in self._logs if hosted.future is not None)
        counts = self._counts
        return min(online, key=lambda log_dir: (log_dir.disk.full, counts[log_dir]))

    def took(self, log_dir: LogDir) -> None:
        """One more will be there."""
        if self._counts is not None:
            self._counts[log_dir] += 1


def _beside_each_other(make: Callable[[_Given], _Made], all_given: Sequence[_Given]) -> list[_Made]:
    if len(all_given) < 2:
        return [make(given) for given in all_given]
    with ThreadPoolExecutor(min(MADE_AT_ONCE, len(all_given)), "making-logs") as threads:
        return list(threads.map(make, all_given))


def _refusal(log_dir: LogDir, error: OSError) -> LogError:
    refusal = log_dir.disk.refusal(error, f"cannot create a log in {log_dir.path}")
    refusal.__cause__ = error
    return refusal
