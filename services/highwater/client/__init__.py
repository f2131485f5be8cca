"""The SDK: `Producer`, `Consumer` and `Admin` for asyncio; the same names in `highwater.client.blocking` for plain
code.

Importing it starts nothing: channels, threads and event loops come with `start` or the first call, so that a process
may fork before.
"""

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
