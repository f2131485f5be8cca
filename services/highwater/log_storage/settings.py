"""The settings of log-storage."""

from __future__ import annotations

import sys

from pydantic import Field

from highwater.rpc.settings import LogDefaultsSettings, PathList
from highwater.security.settings import InternalPrincipalSettings


class LogStorageSettings(InternalPrincipalSettings, LogDefaultsSettings):
    log_dirs: PathList
    log_segment_bytes: int = Field(1 << 30, ge=1024, le=2**31 - 1)
    log_index_interval_bytes: int = Field(4096, ge=0)
    log_index_size_max_bytes: int = Field(10 << 20, ge=12)
    log_roll_ms: int = Field(7 * 24 * 3600 * 1000, ge=1)
    log_roll_jitter_ms: int = Field(0, ge=0)
    flush_messages: int = Field(2**63 - 1, ge=1)
    log_flush_interval_messages: int | None = Field(None, ge=1)
    log_flush_interval_ms: int = Field(2**63 - 1, ge=0)
    log_flush_scheduler_interval_ms: int = Field(1_000, ge=1)
    log_flush_offset_checkpoint_interval_ms: int = Field(60_000, ge=1)
    producer_id_expiration_ms: int = Field(86_400_000, ge=1)
    max_producer_ids_per_log: int = Field(10_000, ge=1)
    min_producer_id_eviction_ms: int = Field(300_000, ge=0)
    num_recovery_threads_per_data_dir: int = Field(1, ge=1)
    log_close_max_wait_ms: int = Field(20_000, ge=0)
    file_delete_delay_ms: int = Field(60_000, ge=0)
    log_retention_ms: int | None = Field(None, ge=-1)
    log_retention_minutes: int | None = Field(None, ge=-1)
    log_retention_hours: int = Field(168, ge=-1)
    log_retention_bytes: int = Field(-1, ge=-1)
    log_retention_check_interval_ms: int = Field(300_000, ge=1)
    replica_alter_log_dirs_io_max_bytes_per_second: float = Field(sys.float_info.max, gt=0)
    log_scrub_bytes_per_second: float = Field(4 << 20, ge=0)
    log_scrub_interval_ms: int = Field(7 * 24 * 3_600_000, ge=1)
    log_cleaner_enable: bool = True
    log_cleaner_threads: int = Field(1, ge=1)
    log_cleaner_io_max_bytes_per_second: float = Field(sys.float_info.max, gt=0)
    log_cleaner_dedupe_buffer_size: int = Field(128 << 20, ge=1024)
    log_cleaner_io_buffer_size: int = Field(512 << 10, ge=1024)
    log_cleaner_io_buffer_load_factor: float = Field(0.9, gt=0, le=0.99)
    log_cleaner_backoff_ms: int = Field(15_000, ge=1)
    log_cleaner_min_cleanable_ratio: float = Field(0.5, ge=0, le=1)
    log_cleaner_min_compaction_lag_ms: int = Field(0, ge=0)
    log_cleaner_max_compaction_lag_ms: int = Field(2**63 - 1, ge=1)
    log_cleaner_delete_retention_ms: int = Field(86_400_000, ge=0)

    @property
    def flush_after_messages(self) -> int:
        """Kafka's name for the setting goes first."""
        return self.flush_messages if self.log_flush_interval_messages is None else self.log_flush_interval_messages

    @property
    def retention_ms(self) -> int:
        """The finest of the three that is given; -1: unlimited."""
        if self.log_retention_ms is not None:
            return self.log_retention_ms
        minutes = self.log_retention_hours * 60
        if self.log_retention_minutes is not None:
            minutes = self.log_retention_minutes
        return minutes * 60_000 if minutes >= 0 else -1
