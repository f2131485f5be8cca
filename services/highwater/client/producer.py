"""The producer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

import pyarrow as pa

from highwater.client.delivery import Delivery, RecordMetadata, TableDelivery

Headers = Sequence[tuple[str, bytes | None]]


class Producer:
    def __init__(
        self,
        bootstrap: str | Sequence[str] = "127.0.0.1:9092",
        *,
        client_id: str = "highwater-producer",
        acks: Literal["all", -1, 1, 0] = "all",
        enable_idempotence: bool | None = None,
        linger_ms: float = 5,
        batch_size: int = 256 * 1024,
        compression: str | None = "lz4",
        max_in_flight: int = 5,
        buffer_memory: int = 64 * 1024 * 1024,
        max_request_size: int = 1024 * 1024,
        max_block_ms: int = 60_000,
        request_timeout_ms: int = 30_000,
        delivery_timeout_ms: int = 120_000,
        retry_backoff_ms: int = 50,
        retry_backoff_max_ms: int = 1000,
        metadata_max_age_ms: int = 300_000,
    ) -> None: ...

    async def start(self) -> Self: ...
    async def stop(self) -> None: ...  # flushes first; raises what flush raises
    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *exception: object) -> None: ...

    # `delivery = await producer.send(...)` waits for buffer space only; `await delivery` waits for the acknowledgement.
    async def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> Delivery: ...

    # Never waits: BufferExhaustedError where the buffer is full, UnknownTopicError where the topic's metadata is not here yet.
    def send_nowait(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> Delivery: ...

    async def send_and_wait(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> RecordMetadata: ...

    async def send_table(
        self,
        topic: str,
        table: pa.Table | pa.RecordBatch,
        *,
        key_column: str | None = "key",  # absent from the table: no keys
        value_column: str = "value",
        timestamp_column: str | None = None,
        headers_column: str | None = None,
        partition: int | None = None,
    ) -> TableDelivery: ...

    # Everything sent so far is acknowledged or failed; raises the first failure that nobody has awaited.
    async def flush(self) -> None: ...
    async def partitions_for(self, topic: str) -> int: ...
