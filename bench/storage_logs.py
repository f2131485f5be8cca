"""Batches and logs for the measurements of log storage."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from highwater.log_storage.config import LogConfig
from highwater.log_storage.log.log import Log
from highwater.log_storage.recovery.recovery import Checkpointed, open_log
from highwater.records import Codec, encode_lists

# Larger than any batch here, and nothing is let go.
CONFIG = LogConfig(message_max_bytes=4 << 20, retention_ms=-1)
RECORD_BYTES = 1024
BASE_TIMESTAMP_MS = 1_700_000_000_000


def batch_of(size_bytes: int, first_timestamp: int = BASE_TIMESTAMP_MS, values: list[bytes] | None = None) -> bytes:
    """About so many bytes of records of 1 KiB that do not compress, as the SDK writes them; a record a millisecond."""
    values = values or values_of(max(1, size_bytes // RECORD_BYTES))
    return encode_lists(range(first_timestamp, first_timestamp + len(values)), None, values, codec=Codec.NONE)


def values_of(count: int) -> list[bytes]:
    return [os.urandom(RECORD_BYTES) for _ in range(count)]


def opened(directory: Path, known: Checkpointed | None = None, config: LogConfig = CONFIG) -> Log:
    directory.mkdir(parents=True, exist_ok=True)
    return open_log(directory, config, known or Checkpointed())


def append(log: Log, records: bytes) -> None:
    log.append_as_leader(records, 1, log.log_end_offset, 0)


def run_of(batch: bytes, total_bytes: int) -> Iterator[bytes]:
    """Appends of at most 1 MiB of whole batches that make up about `total_bytes`."""
    together = max(1, (1 << 20) // len(batch))
    joined = batch * together
    for _ in range(max(1, total_bytes // len(joined))):
        yield joined
