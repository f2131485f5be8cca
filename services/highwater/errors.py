"""The closed set of error codes, with Kafka's names, and whether a retry can help; and the error that a user can mend.

The numbers are those of `proto/highwater/v1/common.proto`; a unit test holds the two together. Decisions (the pure
objects) speak of `ErrorCode`; only the servers' edges turn it into a protobuf `Error`.
"""

from __future__ import annotations

from enum import IntEnum


class ErrorCode(IntEnum):
    NONE = 0
    UNKNOWN_SERVER_ERROR = 1
    OFFSET_OUT_OF_RANGE = 2
    CORRUPT_MESSAGE = 3
    UNKNOWN_TOPIC_OR_PARTITION = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    REPLICA_NOT_AVAILABLE = 8
    MESSAGE_TOO_LARGE = 9
    NETWORK_EXCEPTION = 10
    INVALID_TOPIC = 11
    NOT_ENOUGH_REPLICAS = 12
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 13
    INVALID_REQUIRED_ACKS = 14
    TOPIC_ALREADY_EXISTS = 15
    INVALID_PARTITIONS = 16
    INVALID_REPLICATION_FACTOR = 17
    INVALID_CONFIG = 18
    NOT_CONTROLLER = 19
    INVALID_REQUEST = 20
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 21
    OUT_OF_ORDER_SEQUENCE_NUMBER = 22
    DUPLICATE_SEQUENCE_NUMBER = 23
    INVALID_PRODUCER_EPOCH = 24
    UNKNOWN_PRODUCER_ID = 25
    FENCED_LEADER_EPOCH = 26
    UNKNOWN_LEADER_EPOCH = 27
    STALE_CONTROLLER_EPOCH = 28
    STALE_BROKER_EPOCH = 29
    OFFSET_NOT_AVAILABLE = 30
    LOG_STORAGE_ERROR = 31
    UNKNOWN_TOPIC_ID = 32
    INCONSISTENT_TOPIC_ID = 33
    POLICY_VIOLATION = 34
    THROTTLING_QUOTA_EXCEEDED = 35
    INVALID_TIMESTAMP = 36
    INVALID_RECORD = 37
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 38
    ELECTION_NOT_NEEDED = 39
    NO_REASSIGNMENT_IN_PROGRESS = 40
    REASSIGNMENT_IN_PROGRESS = 41
    COORDINATOR_NOT_AVAILABLE = 42
    NOT_COORDINATOR = 43
    UNKNOWN_MEMBER_ID = 44
    ILLEGAL_GENERATION = 45
    REBALANCE_IN_PROGRESS = 46
    INVALID_GROUP_ID = 47
    GROUP_AUTHORIZATION_FAILED = 48
    LISTENER_NOT_FOUND = 49
    STORAGE_FULL = 59
    UNKNOWN_FENCE = 60
    STALE_FENCE = 61
    OFFSET_MISMATCH = 62
    TRUNCATION_BELOW_HIGH_WATERMARK = 63
    REPLICA_NOT_ASSIGNED = 64
    FETCH_SESSION_STALE = 65
    OVERLOADED = 66

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed later, perhaps at another broker."""
        return self in _RETRIABLE


_RETRIABLE = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.LOG_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.STORAGE_FULL,
        ErrorCode.UNKNOWN_FENCE,
        ErrorCode.STALE_FENCE,
        ErrorCode.OFFSET_MISMATCH,
        ErrorCode.FETCH_SESSION_STALE,
        ErrorCode.OVERLOADED,
    }
)


class UserError(Exception):
    """Something the user can mend, told in one sentence: a data directory in use, a bad setting, etcd out of reach."""
