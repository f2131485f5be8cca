"""Administration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from highwater.client.descriptions import ClusterDescription, NewTopic, TopicDescription, TopicResult
from highwater.client.topic_partition import OffsetAndTimestamp, TopicPartition


class Admin:
    def __init__(
        self,
        bootstrap: str | Sequence[str] = "127.0.0.1:9092",
        *,
        client_id: str = "highwater-admin",
        request_timeout_ms: int = 30_000,
        retry_backoff_ms: int = 50,
        retry_backoff_max_ms: int = 1000,
    ) -> None: ...

    async def start(self) -> Self: ...
    async def stop(self) -> None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *exception: object) -> None: ...

    # Raises what the cluster refused it for: TopicAlreadyExistsError, InvalidRequestError, ...
    async def create_topic(
        self,
        topic: str,
        partitions: int | None = None,
        replication_factor: int | None = None,
        config: Mapping[str, str] | None = None,
        *,
        validate_only: bool = False,
        timeout_ms: int = 30_000,
    ) -> TopicResult: ...

    # One result a topic, in order, each with its own error.
    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False, timeout_ms: int = 30_000
    ) -> list[TopicResult]: ...
    async def delete_topic(self, topic: str, *, timeout_ms: int = 30_000) -> TopicResult: ...
    async def delete_topics(self, topics: Sequence[str], *, timeout_ms: int = 30_000) -> list[TopicResult]: ...
    async def describe_topics(self, topics: Sequence[str] | None = None) -> list[TopicDescription]: ...  # None: all
    async def list_topics(self, *, include_internal: bool = False) -> list[str]: ...
    async def describe_cluster(self) -> ClusterDescription: ...

    # timestamp: ms, or EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, MAX_TIMESTAMP of topic_partition.
    async def list_offsets(
        self, partitions: Mapping[TopicPartition, int] | Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndTimestamp]: ...
