"""Errors of the SDK: one small tree, each with its wire code.

`RetriableError` marks what may succeed later. The SDK has then already retried until its own deadline, so that a caller
who sees one decides whether to wait longer. Every message says what was wrong, with which value, and what to do.
"""

from __future__ import annotations

from highwater.client.topic_partition import TopicPartition
from highwater.errors import ErrorCode


class HighwaterError(Exception):
    """The root. `code` is the wire's error code (`UNKNOWN_SERVER_ERROR` where the fault is the client's own)."""

    code: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR

    def __init__(self, message: str, code: ErrorCode | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code

    @property
    def retriable(self) -> bool:
        """True where the same call may succeed later."""
        return isinstance(self, RetriableError)


class RetriableError(HighwaterError):
    """The same call may succeed later, perhaps at another broker."""

    retry_after_s = 0.0
    """As a broker said with it, where a quota is exceeded; 0: at any time."""


class NetworkError(RetriableError):
    """No broker could be reached, or a connection broke with requests in flight."""

    code = ErrorCode.NETWORK_EXCEPTION


class SslAuthenticationError(HighwaterError):
    """TLS with the brokers does not come about: the one end does not speak it, or a certificate is missing or not
    trusted. Raised where a client starts, at once; a client that runs tries again, as after any `NetworkError`."""


class RequestTimedOutError(RetriableError):
    """A broker did not answer within the request's time."""

    code = ErrorCode.REQUEST_TIMED_OUT


class DeliveryTimeoutError(RetriableError):
    """A record was not acknowledged within `delivery_timeout_ms`. It may or may not be in the log."""

    code = ErrorCode.REQUEST_TIMED_OUT


class BufferExhaustedError(RetriableError):
    """`buffer_memory` stayed full for `max_block_ms` (`send`), or is full now (`send_nowait`)."""

    code = ErrorCode.OVERLOADED


class UnknownTopicError(RetriableError):
    """The topic or the partition does not exist (or not yet)."""

    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class LeaderNotAvailableError(RetriableError):
    """A partition has no leader now."""

    code = ErrorCode.LEADER_NOT_AVAILABLE


class TopicAlreadyExistsError(HighwaterError):
    code = ErrorCode.TOPIC_ALREADY_EXISTS


class InvalidRequestError(HighwaterError):
    """An argument that the cluster or the SDK refuses."""

    code = ErrorCode.INVALID_REQUEST


class InvalidTimestampError(InvalidRequestError, ValueError):
    """A record's time is not one, or outside what the topic takes."""

    code = ErrorCode.INVALID_TIMESTAMP


class RecordTooLargeError(HighwaterError):
    """A record above `max_request_size`, or a batch above the topic's `max.message.bytes` that cannot be split."""

    code = ErrorCode.MESSAGE_TOO_LARGE


class OffsetOutOfRangeError(HighwaterError):
    """The position is outside the log and `auto_offset_reset` is `error`."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE


class CorruptRecordError(HighwaterError):
    """A fetched batch is not what its CRC or its header says. Names topic, partition and offset."""

    code = ErrorCode.CORRUPT_MESSAGE


class SequenceBrokenError(HighwaterError):
    """The broker's state of this producer contradicts what it acknowledged: records acknowledged earlier are gone."""

    code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class CommitFailedError(HighwaterError):
    """Offsets were not kept, as other members of the group have the partitions by now; those of other partitions were.
    What was read of them is read again, by their owners."""

    code = ErrorCode.STALE_MEMBER_EPOCH

    def __init__(
        self, message: str, code: ErrorCode | None = None, partitions: frozenset[TopicPartition] = frozenset()
    ) -> None:
        super().__init__(message, code)
        self.partitions = partitions


class MaxPollIntervalExceededError(HighwaterError):
    """Nothing was polled for `max_poll_interval_ms`: the member has left its group. The next poll goes on as a new
    one."""

    code = ErrorCode.UNKNOWN_MEMBER_ID


class AuthenticationError(HighwaterError):
    """A broker does not take the token that the client shows, or takes none."""

    code = ErrorCode.INVALID_REQUEST


class AuthorizationError(HighwaterError):
    """The client may not do that with a topic, a group or the cluster, by the cluster's ACLs."""

    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


class ClientClosedError(HighwaterError):
    """The client was stopped, or not started yet, or the process was forked from one in which gRPC ran."""

    code = ErrorCode.INVALID_REQUEST


_BY_CODE: dict[ErrorCode, type[HighwaterError]] = {
    ErrorCode.NETWORK_EXCEPTION: NetworkError,
    ErrorCode.REQUEST_TIMED_OUT: RequestTimedOutError,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: UnknownTopicError,
    ErrorCode.UNKNOWN_TOPIC_ID: UnknownTopicError,
    ErrorCode.LEADER_NOT_AVAILABLE: LeaderNotAvailableError,
    ErrorCode.TOPIC_ALREADY_EXISTS: TopicAlreadyExistsError,
    ErrorCode.INVALID_REQUEST: InvalidRequestError,
    ErrorCode.INVALID_TOPIC: InvalidRequestError,
    ErrorCode.INVALID_PARTITIONS: InvalidRequestError,
    ErrorCode.INVALID_REPLICATION_FACTOR: InvalidRequestError,
    ErrorCode.INVALID_CONFIG: InvalidRequestError,
    ErrorCode.INVALID_TIMESTAMP: InvalidTimestampError,
    ErrorCode.MESSAGE_TOO_LARGE: RecordTooLargeError,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: AuthorizationError,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: AuthorizationError,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: AuthorizationError,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: AuthorizationError,
    ErrorCode.OFFSET_OUT_OF_RANGE: OffsetOutOfRangeError,
    ErrorCode.CORRUPT_MESSAGE: CorruptRecordError,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: SequenceBrokenError,
}


def error_for(code: ErrorCode, message: str) -> HighwaterError:
    """The exception for a wire code: its own class, else `RetriableError` or `HighwaterError` with that code."""
    kind = _BY_CODE.get(code) or (RetriableError if code.retriable else HighwaterError)
    return kind(message or code.name, code)
