"""The keyword options of the clients, as types: the blocking twins hand theirs on to the async clients.

`highwater.client.Producer`, `Consumer`, `Scan` and `Admin` have their defaults and say what they mean; a unit test
holds these names and types to theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from highwater.client.cluster.token_options import SecurityOptions
from highwater.client.cluster.tracing import Tracing
from highwater.client.consumer.corrupt_batches import OnCorrupt
from highwater.client.consumer.group_assignment import RebalanceCallback
from highwater.client.scan.positions import WrittenPositions
from highwater.client.scan.scan_progress import ProgressCallback


class _ClientOptions(SecurityOptions, total=False):
    client_id: str
    max_block_ms: float
    request_timeout_ms: float
    retry_backoff_ms: float
    retry_backoff_max_ms: float


class ProducerOptions(_ClientOptions, total=False):
    acks: Literal["all", -1, 1, 0]
    enable_idempotence: bool | None
    linger_ms: float
    batch_size: int
    compression: str | None
    max_in_flight: int
    buffer_memory: int
    max_request_size: int
    delivery_timeout_ms: float
    metadata_max_age_ms: float
    tracing: Tracing | None


class ConsumerOptions(_ClientOptions, total=False):
    auto_offset_reset: Literal["earliest", "latest", "error"] | int
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    max_poll_records: int
    check_crcs: bool
    on_corrupt: OnCorrupt
    include_headers: bool
    metadata_max_age_ms: float
    tracing: Tracing | None
    group: str | None
    instance_id: str | None
    assignor: Literal["uniform", "range"] | None
    pattern: str | None
    client_rack: str | None
    enable_auto_commit: bool
    auto_commit_interval_ms: float
    max_poll_interval_ms: int
    on_assigned: RebalanceCallback | None
    on_revoked: RebalanceCallback | None
    on_lost: RebalanceCallback | None


class ScanOptions(SecurityOptions, total=False):
    """It retries as a consumer does by default."""

    start: WrittenPositions
    end: WrittenPositions
    partitions: Iterable[int] | None
    columns: Sequence[str] | None
    progress: bool | ProgressCallback
    fail_on_data_loss: bool
    timeout_ms: float
    client_id: str
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    check_crcs: bool
    on_corrupt: OnCorrupt
    max_block_ms: float
    request_timeout_ms: float


class AdminOptions(_ClientOptions, total=False):
    """No more than every client has."""
