"""The settings that may be changed while services run, under Kafka's names, with the values that each takes. Pure.

A key is of the cluster where services must agree on its value, of brokers where each may have its own. A value given
here goes before the service's static setting of the same name; its range is the same (`tests/unit/configuration`).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from highwater.configuration.entities import EntityKind
from highwater.configuration.value_checks import (
    INT_MAX,
    LONG_MAX,
    Check,
    boolean,
    decimal,
    fraction,
    integer,
    one_of,
    policies,
)

MAX_MESSAGE_BYTES = 127 << 20
"""Of `message.max.bytes`: what fits one message between services."""
_rate = decimal(0, sys.float_info.max, above_lowest=True)

CLUSTER_KEYS: Mapping[str, Check] = {
    "auto.create.topics.enable": boolean,
    "auto.leader.rebalance.enable": boolean,
    "default.replication.factor": integer(1, INT_MAX),
    "leader.imbalance.check.interval.seconds": integer(1, INT_MAX),
    "leader.imbalance.per.broker.percentage": integer(0, INT_MAX),
    "log.cleanup.policy": policies,
    "message.max.bytes": integer(1024, MAX_MESSAGE_BYTES),
    "min.insync.replicas": integer(1, INT_MAX),
    "num.partitions": integer(1, 10_000),
    "unclean.leader.election.enable": boolean,
}

LOG_STORAGE_KEYS: Mapping[str, Check] = {
    "file.delete.delay.ms": integer(0, LONG_MAX),
    "log.cleaner.backoff.ms": integer(1, LONG_MAX),
    "log.cleaner.dedupe.buffer.size": integer(1024, LONG_MAX),
    "log.cleaner.delete.retention.ms": integer(0, LONG_MAX),
    "log.cleaner.io.buffer.load.factor": decimal(0, 0.99, above_lowest=True),
    "log.cleaner.io.buffer.size": integer(1024, INT_MAX),
    "log.cleaner.io.max.bytes.per.second": _rate,
    "log.cleaner.max.compaction.lag.ms": integer(1, LONG_MAX),
    "log.cleaner.min.cleanable.ratio": fraction,
    "log.cleaner.min.compaction.lag.ms": integer(0, LONG_MAX),
    "log.cleaner.threads": integer(1, 64),
    "log.flush.interval.messages": integer(1, LONG_MAX),
    "log.flush.interval.ms": integer(0, LONG_MAX),
    "log.index.interval.bytes": integer(0, INT_MAX),
    "log.index.size.max.bytes": integer(12, INT_MAX),
    "log.retention.bytes": integer(-1, LONG_MAX),
    "log.retention.ms": integer(-1, LONG_MAX),
    "log.roll.jitter.ms": integer(0, LONG_MAX),
    "log.roll.ms": integer(1, LONG_MAX),
    "log.scrub.bytes.per.second": decimal(0, sys.float_info.max),
    "log.scrub.interval.ms": integer(1, LONG_MAX),
    "log.segment.bytes": integer(1024, INT_MAX),
    "replica.alter.log.dirs.io.max.bytes.per.second": _rate,
}

REPLICA_MANAGER_KEYS: Mapping[str, Check] = {
    "fetch.max.bytes": integer(1024, INT_MAX),
    "fetch.responses.max.bytes": integer(1 << 20, LONG_MAX),
    "queued.max.request.bytes": integer(1 << 20, LONG_MAX),
    "queued.max.requests": integer(1, INT_MAX),
    "replica.lag.time.max.ms": integer(1, LONG_MAX),
    "tail.cache.bytes": integer(0, LONG_MAX),
}

FETCHER_KEYS: Mapping[str, Check] = {
    "num.replica.fetchers": integer(1, 64),
    "replica.fetch.backoff.ms": integer(1, LONG_MAX),
    "replica.fetch.max.bytes": integer(1, INT_MAX),
    "replica.fetch.min.bytes": integer(1, INT_MAX),
    "replica.fetch.response.max.bytes": integer(1, INT_MAX),
    "replica.fetch.total.max.bytes": integer(1, LONG_MAX),
    "replica.fetch.wait.max.ms": integer(1, INT_MAX),
}

# Of a broker alone, with no static setting of the name.
REPLICATION_QUOTA_KEYS: Mapping[str, Check] = {
    "follower.replication.throttled.rate": integer(1, LONG_MAX),
    "leader.replication.throttled.rate": integer(1, LONG_MAX),
}

EVERY_SERVICE_KEYS: Mapping[str, Check] = {
    "log.level": one_of("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"),
}

BROKER_KEYS: Mapping[str, Check] = {
    **EVERY_SERVICE_KEYS,
    **FETCHER_KEYS,
    **LOG_STORAGE_KEYS,
    **REPLICA_MANAGER_KEYS,
    **REPLICATION_QUOTA_KEYS,
}

CLIENT_KEYS: Mapping[str, Check] = {
    "consumer_byte_rate": integer(1, LONG_MAX),
    "controller_mutation_rate": decimal(0, sys.float_info.max, above_lowest=True),
    "producer_byte_rate": integer(1, LONG_MAX),
    "request_percentage": decimal(0, sys.float_info.max, above_lowest=True),
}
"""Quotas, of clients, users, and users' clients."""

KEYS: Mapping[EntityKind, Mapping[str, Check]] = {
    EntityKind.BROKERS: BROKER_KEYS,
    EntityKind.CLIENTS: CLIENT_KEYS,
    EntityKind.CLUSTER: CLUSTER_KEYS,
    EntityKind.USERS: CLIENT_KEYS,
}

# What decides about records that are there: where a value of these cannot be read, none is deleted, or lost by an
# unclean election.
DELETING_KEYS = frozenset(
    {"log.cleanup.policy", "log.retention.bytes", "log.retention.ms", "unclean.leader.election.enable"}
)
KEEP_ALL_RECORDS: Mapping[str, str] = {
    "log.retention.bytes": "-1",
    "log.retention.ms": "-1",
    "unclean.leader.election.enable": "false",
}
