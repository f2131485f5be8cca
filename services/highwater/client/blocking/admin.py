"""The blocking admin."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Unpack

from highwater.client.admin import admin as async_admin
from highwater.client.admin.configs import ConfigEntry, ConfigResource, ConfigResourceType
from highwater.client.admin.descriptions import (
    BrokerReach,
    ClusterDescription,
    ConfigValue,
    LogDirDescription,
    NewTopic,
    TopicDescription,
    TopicResult,
)
from highwater.client.admin.group_descriptions import CommittedOffset, GroupDescription, GroupListing, GroupState
from highwater.client.admin.replica_verification import PartitionVerification
from highwater.client.blocking.client import BlockingClient, with_the_signature_of
from highwater.client.blocking.options import AdminOptions
from highwater.client.cluster.bootstrap import DEFAULT_BOOTSTRAP
from highwater.client.exceptions import HighwaterError
from highwater.client.topic_partition import OffsetAndTimestamp, TopicPartition
from highwater.security.acls import Acl, AclFilter


@with_the_signature_of(async_admin.Admin)
class Admin(BlockingClient[async_admin.Admin]):
    """See `highwater.client.Admin`."""

    def __init__(self, bootstrap: str | Sequence[str] = DEFAULT_BOOTSTRAP, **options: Unpack[AdminOptions]) -> None:
        super().__init__(async_admin.Admin(bootstrap, **options))

    def create_topic(
        self,
        topic: str,
        partitions: int | None = None,
        replication_factor: int | None = None,
        config: Mapping[str, str] | None = None,
        *,
        validate_only: bool = False,
        timeout_ms: int = 30_000,
    ) -> TopicResult:
        return self._run(
            lambda: self._client.create_topic(
                topic, partitions, replication_factor, config, validate_only=validate_only, timeout_ms=timeout_ms
            )
        )

    def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False, timeout_ms: int = 30_000
    ) -> list[TopicResult]:
        return self._run(lambda: self._client.create_topics(topics, validate_only=validate_only, timeout_ms=timeout_ms))

    def create_partitions(
        self,
        topic: str,
        total: int,
        assignment: Sequence[Sequence[int]] = (),
        *,
        validate_only: bool = False,
        timeout_ms: int = 30_000,
    ) -> TopicResult:
        return self._run(
            lambda: self._client.create_partitions(
                topic, total, assignment, validate_only=validate_only, timeout_ms=timeout_ms
            )
        )

    def delete_topic(self, topic: str, *, timeout_ms: int = 30_000) -> TopicResult:
        return self._run(lambda: self._client.delete_topic(topic, timeout_ms=timeout_ms))

    def delete_topics(self, topics: Sequence[str], *, timeout_ms: int = 30_000) -> list[TopicResult]:
        return self._run(lambda: self._client.delete_topics(topics, timeout_ms=timeout_ms))

    def describe_topics(self, topics: Sequence[str] | None = None) -> list[TopicDescription]:
        return self._run(lambda: self._client.describe_topics(topics))

    def alter_topic_config(
        self, topic: str, changed: Mapping[str, str], unset: Iterable[str] = (), *, validate_only: bool = False
    ) -> None:
        self._run(lambda: self._client.alter_topic_config(topic, changed, unset, validate_only=validate_only))

    def describe_topic_config(self, topic: str) -> dict[str, ConfigValue]:
        return self._run(lambda: self._client.describe_topic_config(topic))

    def alter_configs(
        self,
        resource: ConfigResource,
        changed: Mapping[str, str],
        unset: Iterable[str] = (),
        *,
        validate_only: bool = False,
    ) -> None:
        self._run(lambda: self._client.alter_configs(resource, changed, unset, validate_only=validate_only))

    def describe_configs(self, resource: ConfigResource) -> list[ConfigEntry]:
        return self._run(lambda: self._client.describe_configs(resource))

    def list_configs(self, kind: ConfigResourceType) -> dict[ConfigResource, list[ConfigEntry]]:
        return self._run(lambda: self._client.list_configs(kind))

    def elect_leaders(
        self, partitions: Iterable[tuple[str, int]] | None = None, *, timeout_ms: int = 30_000
    ) -> dict[TopicPartition, HighwaterError | None]:
        return self._run(lambda: self._client.elect_leaders(partitions, timeout_ms=timeout_ms))

    def verify_replicas(
        self,
        topic: str,
        partition: int,
        *,
        check_crcs: bool = False,
        progress: Callable[[int, int], None] = lambda offset, high_watermark: None,
    ) -> PartitionVerification:
        return self._run(
            lambda: self._client.verify_replicas(topic, partition, check_crcs=check_crcs, progress=progress)
        )

    def list_topics(self, *, include_internal: bool = False) -> list[str]:
        return self._run(lambda: self._client.list_topics(include_internal=include_internal))

    def describe_cluster(self) -> ClusterDescription:
        return self._run(self._client.describe_cluster)

    def check_brokers(self, *, timeout_ms: float = 5_000) -> list[BrokerReach]:
        return self._run(lambda: self._client.check_brokers(timeout_ms=timeout_ms))

    def create_acls(self, acls: Iterable[Acl]) -> None:
        self._run(lambda: self._client.create_acls(acls))

    def describe_acls(self, wanted: AclFilter = AclFilter()) -> list[Acl]:  # noqa: B008  # it is frozen
        return self._run(lambda: self._client.describe_acls(wanted))

    def delete_acls(self, filters: Iterable[AclFilter]) -> list[Acl]:
        return self._run(lambda: self._client.delete_acls(filters))

    def describe_log_dirs(self, brokers: Sequence[int] | None = None) -> list[LogDirDescription]:
        return self._run(lambda: self._client.describe_log_dirs(brokers))

    def alter_replica_log_dirs(
        self, moves: Mapping[tuple[tuple[str, int], int], str]
    ) -> dict[tuple[TopicPartition, int], HighwaterError | None]:
        return self._run(lambda: self._client.alter_replica_log_dirs(moves))

    def list_offsets(
        self, partitions: Mapping[TopicPartition, int] | Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        return self._run(lambda: self._client.list_offsets(partitions))

    def list_groups(self, states: Iterable[GroupState] | None = None) -> list[GroupListing]:
        return self._run(lambda: self._client.list_groups(states))

    def describe_groups(self, names: Sequence[str], *, include_offsets: bool = False) -> list[GroupDescription]:
        return self._run(lambda: self._client.describe_groups(names, include_offsets=include_offsets))

    def delete_groups(self, names: Sequence[str]) -> dict[str, HighwaterError | None]:
        return self._run(lambda: self._client.delete_groups(names))

    def list_group_offsets(
        self, group: str, partitions: Iterable[tuple[str, int]] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        return self._run(lambda: self._client.list_group_offsets(group, partitions))

    def alter_offsets(
        self, group: str, offsets: Mapping[tuple[str, int], int]
    ) -> dict[TopicPartition, HighwaterError | None]:
        return self._run(lambda: self._client.alter_offsets(group, offsets))

    def delete_offsets(
        self, group: str, partitions: Iterable[tuple[str, int]]
    ) -> dict[TopicPartition, HighwaterError | None]:
        return self._run(lambda: self._client.delete_offsets(group, partitions))
