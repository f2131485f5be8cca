"""Recovers the logs of a broker while its log-storage does not run, and tells what they hold.

The logs are opened as log-storage opens them, by the same code: what a crash has torn is cut, a lost tail is noticed
and written down, a move that was finished is finished. Then they are closed as after a clean stop. So the next start of
log-storage finds what it would have found, only sooner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from highwater.errors import UserError
from highwater.log_storage.config import LogConfig
from highwater.log_storage.files import boot_record, meta_properties
from highwater.log_storage.files.disk import LOCK
from highwater.log_storage.log_manager.hosted_log import HostedLog
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.model.leader_epochs import NO_EPOCH, EpochEntry
from highwater.model.partition import PartitionKey
from highwater.records.header import NO_PRODUCER_ID


@dataclass(frozen=True, slots=True)
class RecoveredLog:
    """One log. Where it cannot be opened `failure` says why, and of the offsets nothing is known (0)."""

    topic: str
    key: PartitionKey
    fence_epoch: int  # the highest leader epoch that the log was fenced under; NO_EPOCH: none
    led_epoch: int | None  # the last that it was fenced to lead under; NO_EPOCH: it never led; None: not known
    failure: str = ""
    log_start_offset: int = 0
    log_end_offset: int = 0
    high_watermark: int = 0  # as checkpointed: everything below it was committed
    epochs: tuple[EpochEntry, ...] = ()  # of the leader-epoch cache
    last_epoch: int = NO_EPOCH  # of the last batch
    highest_producer_id: int = NO_PRODUCER_ID


@dataclass(frozen=True, slots=True)
class RecoveredDirectory:
    path: Path
    directory_id: str
    failure: str  # why it cannot be used; then nothing is known of what is in it


@dataclass(frozen=True, slots=True)
class RecoveredLogs:
    """`tail_lost`: what the broker wrote last may be gone (RULES 7.2). `unidentified`: (topic, partition) of logs whose
    topic id is not known. `missing_directories`: so many were there at the broker's last start, and are not now."""

    cluster_id: str  # "": none of the directories was ever used in a cluster
    directories: tuple[RecoveredDirectory, ...]
    logs: tuple[RecoveredLog, ...]
    tail_lost: bool
    unidentified: tuple[tuple[str, int], ...]
    missing_directories: int


def was_used(directory: Path) -> bool:
    """Tells whether a log-storage has ever opened it."""
    return (directory / LOCK).exists() or (directory / meta_properties.FILE_NAME).exists()


def broker_of(directories: Sequence[Path]) -> int | None:
    """The id of the broker that has used them; None where none has. Raises `UserError` where they are of several."""
    found: dict[int, Path] = {}
    for path in directories:
        record = boot_record.read_record(path)
        told = meta_properties.read(path).broker_id
        if record is not None:
            found[record.broker_id] = path
        elif told.isdecimal():
            found[int(told)] = path
    if len(found) > 1:
        said = ", ".join(f"{path} is of broker {broker}" for broker, path in sorted(found.items()))
        raise UserError(f"these directories are of several brokers: {said}; take the inventory of one broker at a time")
    return next(iter(found), None)


def recover_logs(directories: Sequence[Path], broker_id: int, *, recovery_threads: int = 1) -> RecoveredLogs:
    """Recovers the logs of all directories that the broker has used, `recovery_threads` at once in each, and closes
    them. Raises `UserError`: a directory is in use, or of another broker; none can be used. `OSError`."""
    manager = LogManager(directories, _config(directories), broker_id=broker_id, recovery_threads=recovery_threads)
    try:
        manager.load()
        recovered = _recovered(manager)
    except BaseException:
        manager.unlock()
        raise
    manager.close()
    return recovered


def _config(directories: Sequence[Path]) -> LogConfig:
    """Nothing is appended, so one setting counts: it must not make the boot records say less than they do."""
    records = map(boot_record.read_record, directories)
    every = all(record is not None and record.flush_every_message for record in records)
    return LogConfig(flush_messages=1) if every else LogConfig()


def _recovered(manager: LogManager) -> RecoveredLogs:
    ids = {log_dir.properties.directory_id for log_dir in manager.logs.online_dirs}
    known = {
        directory_id
        for log_dir in manager.logs.online_dirs
        if log_dir.record is not None
        for directory_id in log_dir.record.directory_ids
    }
    failed = sum(1 for log_dir in manager.logs.log_dirs if log_dir.offline)
    cluster_ids = {log_dir.cluster_id for log_dir in manager.logs.online_dirs} - {""}
    hosted = sorted(manager.logs, key=lambda each: (each.topic, each.key))
    return RecoveredLogs(
        next(iter(cluster_ids), ""),  # of several the start was refused
        tuple(
            RecoveredDirectory(log_dir.path, log_dir.properties.directory_id, log_dir.offline)
            for log_dir in manager.logs.log_dirs
        ),
        tuple(_log(each) for each in hosted if not each.misnamed),
        any(log_dir.tail_lost for log_dir in manager.logs.log_dirs),
        tuple(sorted({*manager.logs.unidentified, *(each.topic_partition for each in hosted if each.misnamed)})),
        max(len(known - ids) - failed, 0),
    )


def _log(hosted: HostedLog) -> RecoveredLog:
    fence = None if hosted.log_dir.offline else hosted.fence
    fence_epoch = NO_EPOCH if fence is None else fence.leader_epoch
    led_epoch = NO_EPOCH if fence is None else fence.last_led_epoch
    log = hosted.log
    if log is None or hosted.offline_reason:
        return RecoveredLog(hosted.topic, hosted.key, fence_epoch, led_epoch, hosted.offline_reason)
    return RecoveredLog(
        hosted.topic,
        hosted.key,
        fence_epoch,
        led_epoch,
        log_start_offset=log.log_start_offset,
        log_end_offset=log.log_end_offset,
        high_watermark=hosted.high_watermark_written,
        epochs=log.epochs.entries,
        last_epoch=log.last_epoch,
        highest_producer_id=max((producer_id for producer_id, _ in log.producers.items()), default=NO_PRODUCER_ID),
    )
