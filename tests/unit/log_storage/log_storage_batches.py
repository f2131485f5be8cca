"""Batches, logs and directories for the tests of log_storage."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from highwater.log_storage.config import LogConfig
from highwater.log_storage.fence import Fence
from highwater.log_storage.log.log import Appended, Log
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.log_storage.recovery.recovery import Checkpointed, open_log
from highwater.model.partition import PartitionKey
from highwater.records import BatchHeader, Record, encode_rows, iter_batches, read_header


def batch(
    count: int = 1,
    *,
    base_offset: int = 0,
    epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    sequence: int = -1,
    timestamp: int = 1_000,
    value: bytes = b"value",
    keys: Sequence[bytes] = (b"key",),
) -> bytes:
    """`count` records whose timestamps rise by one from `timestamp`; the keys in turn."""
    records = [Record(0, timestamp + number, keys[number % len(keys)], value, ()) for number in range(count)]
    return encode_rows(
        records,
        base_offset=base_offset,
        leader_epoch=epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=sequence,
    )


def header_of(encoded: bytes) -> BatchHeader:
    return read_header(encoded)


def produced(
    count: int = 1, *, sequence: int, producer_id: int = 7, producer_epoch: int = 0, base_offset: int = 0
) -> bytes:
    return batch(
        count, producer_id=producer_id, producer_epoch=producer_epoch, sequence=sequence, base_offset=base_offset
    )


def make_log(directory: Path, config: LogConfig | None = None, known: Checkpointed | None = None) -> Log:
    directory.mkdir(parents=True, exist_ok=True)
    return open_log(directory, config or LogConfig(), known or Checkpointed())


def append(log: Log, records: bytes) -> None:
    """By its leader, at its end, in epoch 1; nothing else."""
    log.append_as_leader(records, 1, log.log_end_offset, 0)


def lead(log: Log, records: bytes, epoch: int = 1) -> Appended:
    """With the snapshots of producers, which the service has written in a thread."""
    appended = log.append_as_leader(records, epoch, log.log_end_offset, 0)
    log.producer_state.write_snapshots()
    return appended


def follow(log: Log, records: bytes, epoch: int = 1, *, high_watermark: int = -1, log_start: int = -1) -> Appended:
    appended = log.append_as_follower(records, epoch, log.log_end_offset, high_watermark, log_start, 0)
    log.producer_state.write_snapshots()
    log.log_start.reach(log.offsets.log_start_due)
    return appended


def read_all(log: Log) -> list[BatchHeader]:
    """Every batch through `read`, a batch at a time."""
    headers, offset = [], log.log_start_offset
    while offset < log.log_end_offset:
        content = log.read(offset, -1, 1)
        if not content:  # compaction has taken the last ones
            break
        [(_, header)] = iter_batches(content)
        headers.append(header)
        offset = header.next_offset
    return headers


def manager_with_log(data: Path, key: PartitionKey, config: LogConfig, fence: Fence) -> LogManager:
    """With one log, named `t-<partition>`, and everything that a running broker leaves in its directory."""
    manager = LogManager([data], config, broker_id=1)
    manager.load()
    manager.logs.log_dirs[0].record_boot()
    manager.logs.log_dirs[0].record_cluster("cluster")
    manager.create("t", key, {})
    manager.logs.log_dirs[0].record_fences({key: fence})
    return manager
