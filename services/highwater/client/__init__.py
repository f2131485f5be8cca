"""The SDK: `Producer`, `Consumer` and `Admin` for asyncio; the same names in `highwater.client.blocking` for plain
code.

Importing it starts nothing: channels, threads and event loops come with `start` or the first call, so that a process
may fork before. A name is imported when it is first used: gRPC, protobuf and Arrow's functions take a third of a
second, and many a process needs a `TopicPartition` only.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from highwater.client.admin import Admin
    from highwater.client.consumer import Consumer
    from highwater.client.consumer_record import ConsumerRecord
    from highwater.client.delivery import BatchMetadata, Delivery, RecordMetadata, TableDelivery, TableMetadata
    from highwater.client.descriptions import (
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
    from highwater.client.exceptions import (
        BufferExhaustedError,
        ClientClosedError,
        CorruptRecordError,
        DeliveryTimeoutError,
        HighwaterError,
        InvalidRequestError,
        InvalidTimestampError,
        LeaderNotAvailableError,
        NetworkError,
        OffsetOutOfRangeError,
        RecordTooLargeError,
        RequestTimedOutError,
        RetriableError,
        SequenceBrokenError,
        TopicAlreadyExistsError,
        UnknownTopicError,
    )
    from highwater.client.producer import Producer
    from highwater.client.replica_verification import DamagedRange, PartitionVerification, ReplicaVerification
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
    "BatchMetadata",
    "BrokerDescription",
    "BufferExhaustedError",
    "ClientClosedError",
    "ClusterDescription",
    "ConfigValue",
    "Consumer",
    "ConsumerRecord",
    "CorruptRecordError",
    "DamagedRange",
    "Delivery",
    "DeliveryTimeoutError",
    "HighwaterError",
    "InvalidRequestError",
    "InvalidTimestampError",
    "LeaderNotAvailableError",
    "LogDirDescription",
    "LogDirReplica",
    "NetworkError",
    "NewTopic",
    "OffsetAndTimestamp",
    "OffsetOutOfRangeError",
    "PartitionDescription",
    "PartitionVerification",
    "Producer",
    "RecordMetadata",
    "RecordTooLargeError",
    "ReplicaVerification",
    "RequestTimedOutError",
    "RetriableError",
    "SequenceBrokenError",
    "TableDelivery",
    "TableMetadata",
    "TopicAlreadyExistsError",
    "TopicDescription",
    "TopicPartition",
    "TopicResult",
    "UnknownTopicError",
]

_NAMES = {  # of each module
    "admin": "Admin",
    "consumer": "Consumer",
    "consumer_record": "ConsumerRecord",
    "delivery": "BatchMetadata Delivery RecordMetadata TableDelivery TableMetadata",
    "descriptions": (
        "BrokerDescription ClusterDescription ConfigValue LogDirDescription LogDirReplica NewTopic "
        "PartitionDescription TopicDescription TopicResult"
    ),
    "exceptions": (
        "BufferExhaustedError ClientClosedError CorruptRecordError DeliveryTimeoutError HighwaterError "
        "InvalidRequestError InvalidTimestampError LeaderNotAvailableError NetworkError OffsetOutOfRangeError "
        "RecordTooLargeError RequestTimedOutError RetriableError SequenceBrokenError TopicAlreadyExistsError "
        "UnknownTopicError"
    ),
    "producer": "Producer",
    "replica_verification": "DamagedRange PartitionVerification ReplicaVerification",
    "topic_partition": "EARLIEST_TIMESTAMP LATEST_TIMESTAMP MAX_TIMESTAMP OffsetAndTimestamp TopicPartition",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
