"""Takes the inventory of a broker's log directories while its log-storage does not run: the logs are recovered as it
would recover them (`log_storage/inspect/recovered_logs`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from highwater.errors import UserError
from highwater.kube.lost_etcd.inventory import BrokerInventory, Directory, Replica
from highwater.log_storage.inspect.recovered_logs import RecoveredLog, broker_of, recover_logs, was_used


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
    used = [path for path in paths if was_used(path)]
    found_id = broker_of(used)
    if found_id is None:
        if broker_id is None:
            raise UserError("no broker has ever used these directories: say with --broker-id whose they are to be")
        return BrokerInventory(broker_id, "", tuple(Directory(str(path)) for path in paths), tail_lost=True)
    if broker_id is not None and found_id != broker_id:
        raise UserError(f"these directories are of broker {found_id}, not of {broker_id}")
    recovered = recover_logs(used, found_id, recovery_threads=recovery_threads)
    return BrokerInventory(
        found_id,
        recovered.cluster_id,
        tuple(Directory(str(each.path), each.directory_id, each.failure) for each in recovered.directories)
        + tuple(Directory(str(path)) for path in paths if path not in used),
        tuple(map(_replica, recovered.logs)),
        recovered.tail_lost,
        recovered.unidentified,
        recovered.missing_directories,
    )


def _replica(log: RecoveredLog) -> Replica:
    return Replica(
        log.topic,
        log.key.topic_id,
        log.key.partition,
        log.log_start_offset,
        log.log_end_offset,
        log.high_watermark,
        log.epochs,
        log.last_epoch,
        log.fence_epoch,
        log.led_epoch,
        log.highest_producer_id,
        log.failure,
    )
