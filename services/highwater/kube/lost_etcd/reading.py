"""Takes the inventory of a broker's log directories while its log-storage does not run.

The logs are opened as log-storage opens them, by the same code: what a crash has torn is cut, a lost tail is noticed
and written down, a move that was finished is finished. Then they are closed as after a clean stop. So the next start of
log-storage finds what it would have found, only sooner.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from highwater.errors import UserError
from highwater.kube.lost_etcd.inventory import NO_PRODUCER_ID, BrokerInventory, Directory, Replica
from highwater.log_storage.config import LogConfig
from highwater.log_storage.files import boot_record, meta_properties
from highwater.log_storage.files.disk import LOCK
from highwater.log_storage.log_manager.hosted_log import HostedLog
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.model.leader_epochs import NO_EPOCH


def take_inventory(
    paths: Sequence[Path], broker_id: int | None = None, *, recovery_threads: int = 1
) -> BrokerInventory:
    """`broker_id` is what the directories should say; where none of them has ever been used it is all there is to say.

    Raises `UserError`: a directory is missing, in use, or of another broker; none can be used.
    """
    for path in paths:
        # On a volume that was never used there is none yet.
        if not path.is_dir() and (path.exists() or not path.parent.is_dir()):
            raise UserError(f"{path} is no directory: name those that log.dirs names")
    used = [path for path in paths if (path / LOCK).exists() or (path / meta_properties.FILE_NAME).exists()]
    found_id = _broker_id(used)
    if found_id is None:
        if broker_id is None:
            raise UserError("no broker has ever used these directories: say with --broker-id whose they are to be")
        return BrokerInventory(broker_id, "", tuple(Directory(str(path)) for path in paths), tail_lost=True)
    if broker_id is not None and found_id != broker_id:
        raise UserError(f"these directories are of broker {found_id}, not of {broker_id}")
    manager = LogManager(used, _config(used), broker_id=found_id, recovery_threads=recovery_threads)
    try:
        manager.load()
        inventory = _inventory(manager, found_id, [path for path in paths if path not in used])
    except BaseException:
        manager.unlock()
        raise
    manager.close()
    return inventory


def _broker_id(paths: Sequence[Path]) -> int | None:
    """Raises `UserError`."""
    found: dict[int, Path] = {}
    for path in paths:
        record = boot_record.read_record(path)
        told = meta_properties.read(path).broker_id
        if record is not None:
            found[record.broker_id] = path
        elif told.isdigit():
            found[int(told)] = path
    if len(found) > 1:
        said = ", ".join(f"{path} is of broker {broker}" for broker, path in sorted(found.items()))
        raise UserError(f"these directories are of several brokers: {said}; take the inventory of one broker at a time")
    return next(iter(found), None)


def _config(paths: Sequence[Path]) -> LogConfig:
    """Nothing is appended, so one setting counts: it must not make the boot records say less than they do."""
    every = all(record is not None and record.flush_every_message for record in map(boot_record.read_record, paths))
    return LogConfig(flush_messages=1) if every else LogConfig()


def _inventory(manager: LogManager, broker_id: int, unused: Sequence[Path]) -> BrokerInventory:
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
    return BrokerInventory(
        broker_id,
        next(iter(cluster_ids), ""),  # of several the start was refused
        tuple(
            Directory(str(log_dir.path), log_dir.properties.directory_id, log_dir.offline)
            for log_dir in manager.logs.log_dirs
        )
        + tuple(Directory(str(path)) for path in unused),
        tuple(_replica(each) for each in hosted if not each.misnamed),
        any(log_dir.tail_lost for log_dir in manager.logs.log_dirs),
        tuple(sorted({*manager.logs.unidentified, *(each.topic_partition for each in hosted if each.misnamed)})),
        max(len(known - ids) - failed, 0),
    )


def _replica(hosted: HostedLog) -> Replica:
    fence = None if hosted.log_dir.offline else hosted.fence
    fence_epoch = NO_EPOCH if fence is None else fence.leader_epoch
    led_epoch = NO_EPOCH if fence is None else fence.last_led_epoch
    log = hosted.log
    if log is None or hosted.offline_reason:
        return Replica(
            hosted.topic,
            hosted.key.topic_id,
            hosted.key.partition,
            fence_epoch=fence_epoch,
            led_epoch=led_epoch,
            failure=hosted.offline_reason,
        )
    return Replica(
        hosted.topic,
        hosted.key.topic_id,
        hosted.key.partition,
        log.log_start_offset,
        log.log_end_offset,
        hosted.high_watermark_written,
        log.epochs.entries,
        log.last_epoch,
        fence_epoch,
        led_epoch,
        max((producer_id for producer_id, _ in log.producers.items()), default=NO_PRODUCER_ID),
    )
