"""The SDK: `Producer`, `Consumer` and `Admin` for asyncio; the same names in `highwater.client.blocking` for plain code.

Importing it starts nothing: channels, threads and event loops come with `start` or the first call, so that a process may
fork before.
"""

from highwater.client.admin import Admin
from highwater.client.consumer import Consumer
from highwater.client.consumer_record import ConsumerRecord
from highwater.client.delivery import BatchMetadata, Delivery, RecordMetadata, TableDelivery, TableMetadata
from highwater.client.descriptions import (
    BrokerDescription,
    ClusterDescription,
    NewTopic,
    PartitionDescription,
    TopicDescription,
    TopicResult,
)
from highwater.client.exceptions import (
    BufferExhausted,
    ClientClosed,
    ConnectionFailed,
    CorruptBatch,
    DeliveryTimeout,
    HighwaterError,
    InvalidRequest,
    LeaderNotAvailable,
    OffsetOutOfRange,
    RecordTooLarge,
    RequestTimedOut,
    RetriableError,
    SequenceBroken,
    TopicAlreadyExists,
    UnknownTopic,
)
from highwater.client.producer import Producer
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
    "BufferExhausted",
    "ClientClosed",
    "ClusterDescription",
    "ConnectionFailed",
    "Consumer",
    "ConsumerRecord",
    "CorruptBatch",
    "Delivery",
    "DeliveryTimeout",
    "HighwaterError",
    "InvalidRequest",
    "LeaderNotAvailable",
    "NewTopic",
    "OffsetAndTimestamp",
    "OffsetOutOfRange",
    "PartitionDescription",
    "Producer",
    "RecordMetadata",
    "RecordTooLarge",
    "RequestTimedOut",
    "RetriableError",
    "SequenceBroken",
    "TableDelivery",
    "TableMetadata",
    "TopicAlreadyExists",
    "TopicDescription",
    "TopicPartition",
    "TopicResult",
    "UnknownTopic",
]
