"""The consumer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Literal, Self

import pyarrow as pa

from highwater.client.consumer_record import ConsumerRecord
from highwater.client.topic_partition import OffsetAndTimestamp, TopicPartition

Partition = TopicPartition | tuple[str, int]


class Consumer:
    def __init__(
        self,
        *topics: str,  # subscribed to at start
        bootstrap: str | Sequence[str] = "127.0.0.1:9092",
        client_id: str = "highwater-consumer",
        auto_offset_reset: Literal["earliest", "latest", "error"] | int = "latest",  # int: from this timestamp in ms
        fetch_min_bytes: int = 1,
        fetch_max_wait_ms: int = 500,
        fetch_max_bytes: int = 50 * 1024 * 1024,
        max_partition_fetch_bytes: int = 1024 * 1024,
        max_poll_records: int = 500,
        check_crcs: bool = True,
        include_headers: bool = False,  # a `headers` column in tables; records always have them
        request_timeout_ms: int = 30_000,
        retry_backoff_ms: int = 50,
        retry_backoff_max_ms: int = 1000,
        metadata_max_age_ms: int = 300_000,
    ) -> None: ...

    async def start(self) -> Self: ...
    async def stop(self) -> None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *exception: object) -> None: ...

    def assign(self, partitions: Iterable[Partition]) -> None: ...
    async def subscribe(self, topics: Iterable[str]) -> None: ...  # all partitions of the topics
    def assignment(self) -> frozenset[TopicPartition]: ...
    def pause(self, *partitions: Partition) -> None: ...
    def resume(self, *partitions: Partition) -> None: ...

    def seek(self, partition: Partition, offset: int) -> None: ...
    async def seek_to_beginning(self, *partitions: Partition) -> None: ...  # none named: all assigned
    async def seek_to_end(self, *partitions: Partition) -> None: ...
    async def position(self, partition: Partition) -> int: ...
    async def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]: ...
    async def beginning_offsets(self, partitions: Iterable[Partition]) -> dict[TopicPartition, int]: ...
    async def end_offsets(self, partitions: Iterable[Partition]) -> dict[TopicPartition, int]: ...

    # Empty when nothing came within timeout_ms.
    async def poll(self, timeout_ms: float = 1000, max_records: int | None = None) -> list[ConsumerRecord]: ...

    # Columns topic (string), partition (int32), offset (int64), timestamp (timestamp[ms, UTC]), key, value (binary).
    async def poll_table(self, timeout_ms: float = 1000, max_records: int | None = None) -> pa.Table: ...

    # One RecordBatch of the same columns for each batch of the log, not combined.
    async def poll_batches(self, timeout_ms: float = 1000, max_records: int | None = None) -> list[pa.RecordBatch]: ...
    def __aiter__(self) -> AsyncIterator[ConsumerRecord]: ...
