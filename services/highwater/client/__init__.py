"""The SDK: `Producer`, `Consumer`, `Scan` and `Admin` for asyncio; the same names in `highwater.client.blocking` for
plain code.

The rooms, each of which imports only what stands before it; `producer/`, `consumer/` and `admin/` do not know each
other:

    cluster/   brokers, topics and leaders as this client knows them, and the connections to brokers
    membership/  what a member of a group decides; no I/O
    groups/    coordinators of groups, a member's stream, committed offsets
    producer/  from `send` to the leader: accumulators, batches, the partitions' queues, the sender
    consumer/  from the leader to `poll`: the fetcher and the records that wait
    scan/      a range of offsets or times as Arrow batches, by a consumer
    admin/     topics, configurations, log directories, replicas, groups
    blocking/  the same clients for plain code, over a thread with an event loop

What all of them speak of is here at the top: `exceptions`, `topic_partition`, `notebook`, which shows values, and
`windowed`, of which statistics are made.

Importing it starts nothing: channels, threads and event loops come with `start` or the first call, so that a process
may fork before. A name is imported when it is first used: gRPC, protobuf and Arrow's functions take a third of a
second, and many a process needs a `TopicPartition` only.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from highwater.client.admin.admin import Admin
    from highwater.client.admin.configs import ConfigEntry, ConfigResource, ConfigResourceType, ConfigSource
    from highwater.client.admin.descriptions import (
        BrokerDescription,
        ClusterDescription,
        ConfigValue,
        LogDirDescription,
        LogDirReplica,
        NewTopic,
        PartitionDescription,
        TopicDescription,
        TopicResult,
    )
    from highwater.client.admin.group_descriptions import (
        CommittedOffset,
        GroupDescription,
        GroupListing,
        GroupMemberDescription,
    )
    from highwater.client.admin.replica_verification import DamagedRange, PartitionVerification, ReplicaVerification
    from highwater.client.cluster.tracing import Tracing
    from highwater.client.consumer.consumer import Consumer
    from highwater.client.consumer.consumer_record import ConsumerRecord
    from highwater.client.exceptions import (
        AuthenticationError,
        AuthorizationError,
        BufferExhaustedError,
        ClientClosedError,
        CommitFailedError,
        CorruptRecordError,
        DeliveryTimeoutError,
        HighwaterError,
        InvalidRequestError,
        InvalidTimestampError,
        LeaderNotAvailableError,
        MaxPollIntervalExceededError,
        NetworkError,
        OffsetOutOfRangeError,
        RecordTooLargeError,
        RequestTimedOutError,
        RetriableError,
        SequenceBrokenError,
        SslAuthenticationError,
        TopicAlreadyExistsError,
        UnknownTopicError,
    )
    from highwater.client.producer.delivery import BatchMetadata, Delivery, RecordMetadata, TableDelivery, TableMetadata
    from highwater.client.producer.producer import Producer
    from highwater.client.scan.bounds import OffsetRange
    from highwater.client.scan.scan import Scan
    from highwater.client.scan.scan_progress import ScanProgress
    from highwater.client.topic_partition import (
        EARLIEST_TIMESTAMP,
        LATEST_TIMESTAMP,
        MAX_TIMESTAMP,
        OffsetAndTimestamp,
        TopicPartition,
    )

__all__ = [
    "EARLIEST_TIMESTAMP",
    "LATEST_TIMESTAMP",
    "MAX_TIMESTAMP",
    "Admin",
    "AuthenticationError",
    "AuthorizationError",
    "BatchMetadata",
    "BrokerDescription",
    "BufferExhaustedError",
    "ClientClosedError",
    "ClusterDescription",
    "CommitFailedError",
    "CommittedOffset",
    "ConfigEntry",
    "ConfigResource",
    "ConfigResourceType",
    "ConfigSource",
    "ConfigValue",
    "Consumer",
    "ConsumerRecord",
    "CorruptRecordError",
    "DamagedRange",
    "Delivery",
    "DeliveryTimeoutError",
    "GroupDescription",
    "GroupListing",
    "GroupMemberDescription",
    "HighwaterError",
    "InvalidRequestError",
    "InvalidTimestampError",
    "LeaderNotAvailableError",
    "LogDirDescription",
    "LogDirReplica",
    "MaxPollIntervalExceededError",
    "NetworkError",
    "NewTopic",
    "OffsetAndTimestamp",
    "OffsetOutOfRangeError",
    "OffsetRange",
    "PartitionDescription",
    "PartitionVerification",
    "Producer",
    "RecordMetadata",
    "RecordTooLargeError",
    "ReplicaVerification",
    "RequestTimedOutError",
    "RetriableError",
    "Scan",
    "ScanProgress",
    "SequenceBrokenError",
    "SslAuthenticationError",
    "TableDelivery",
    "TableMetadata",
    "TopicAlreadyExistsError",
    "TopicDescription",
    "TopicPartition",
    "TopicResult",
    "Tracing",
    "UnknownTopicError",
]

_NAMES = {  # of each module
    "admin.admin": "Admin",
    "admin.configs": "ConfigEntry ConfigResource ConfigResourceType ConfigSource",
    "admin.descriptions": (
        "BrokerDescription ClusterDescription ConfigValue LogDirDescription LogDirReplica NewTopic "
        "PartitionDescription TopicDescription TopicResult"
    ),
    "admin.group_descriptions": "CommittedOffset GroupDescription GroupListing GroupMemberDescription",
    "admin.replica_verification": "DamagedRange PartitionVerification ReplicaVerification",
    "cluster.tracing": "Tracing",
    "consumer.consumer": "Consumer",
    "consumer.consumer_record": "ConsumerRecord",
    "exceptions": (
        "AuthenticationError AuthorizationError "
        "BufferExhaustedError ClientClosedError CommitFailedError CorruptRecordError DeliveryTimeoutError "
        "HighwaterError InvalidRequestError InvalidTimestampError LeaderNotAvailableError "
        "MaxPollIntervalExceededError NetworkError OffsetOutOfRangeError "
        "RecordTooLargeError RequestTimedOutError RetriableError SequenceBrokenError SslAuthenticationError "
        "TopicAlreadyExistsError UnknownTopicError"
    ),
    "producer.delivery": "BatchMetadata Delivery RecordMetadata TableDelivery TableMetadata",
    "producer.producer": "Producer",
    "scan.bounds": "OffsetRange",
    "scan.scan": "Scan",
    "scan.scan_progress": "ScanProgress",
    "topic_partition": "EARLIEST_TIMESTAMP LATEST_TIMESTAMP MAX_TIMESTAMP OffsetAndTimestamp TopicPartition",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

# An application that has set up no log hears nothing of it (but what `cluster/last_word` says).
logging.getLogger(__name__).addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
