"""What the SDK raises: one small tree, each error with its wire code.

`RetriableError` marks what may succeed later. The SDK has then already retried until its own deadline, so that a caller
who sees one decides whether to wait longer. Every message says what was wrong, with which value, and what to do.
"""

from __future__ import annotations

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
        """Whether the same call may succeed later."""
        return isinstance(self, RetriableError)


class RetriableError(HighwaterError):
    """The same call may succeed later, perhaps at another broker."""


class ConnectionFailed(RetriableError):
    """No broker could be reached, or a connection broke with requests in flight."""

    code = ErrorCode.NETWORK_EXCEPTION


class RequestTimedOut(RetriableError):
    """A broker did not answer within the request's time."""

    code = ErrorCode.REQUEST_TIMED_OUT


class DeliveryTimeout(RetriableError):
    """A record was not acknowledged within `delivery_timeout_ms`. It may or may not be in the log."""

    code = ErrorCode.REQUEST_TIMED_OUT


class BufferExhausted(RetriableError):
    """`buffer_memory` stayed full for `max_block_ms` (`send`), or is full now (`send_nowait`)."""

    code = ErrorCode.OVERLOADED


class UnknownTopic(RetriableError):
    """The topic or the partition does not exist (or not yet)."""

    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class LeaderNotAvailable(RetriableError):
    """A partition has no leader now."""

    code = ErrorCode.LEADER_NOT_AVAILABLE


class TopicAlreadyExists(HighwaterError):
    code = ErrorCode.TOPIC_ALREADY_EXISTS


class InvalidRequest(HighwaterError):
    """An argument that the cluster or the SDK refuses."""

    code = ErrorCode.INVALID_REQUEST


class RecordTooLarge(HighwaterError):
    """A record above `max_request_size`, or a batch above the topic's `max.message.bytes` that cannot be split."""

    code = ErrorCode.MESSAGE_TOO_LARGE


class OffsetOutOfRange(HighwaterError):
    """The position is outside the log and `auto_offset_reset` is `error`."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE


class CorruptBatch(HighwaterError):
    """A fetched batch is not what its CRC or its header says. Names topic, partition and offset."""

    code = ErrorCode.CORRUPT_MESSAGE


class SequenceBroken(HighwaterError):
    """The broker's state of this producer contradicts what it acknowledged: records acknowledged earlier are gone."""

    code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class ClientClosed(HighwaterError):
    """The client was stopped, or not started yet."""

    code = ErrorCode.INVALID_REQUEST


_BY_CODE: dict[ErrorCode, type[HighwaterError]] = {
    ErrorCode.NETWORK_EXCEPTION: ConnectionFailed,
    ErrorCode.REQUEST_TIMED_OUT: RequestTimedOut,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: UnknownTopic,
    ErrorCode.UNKNOWN_TOPIC_ID: UnknownTopic,
    ErrorCode.LEADER_NOT_AVAILABLE: LeaderNotAvailable,
    ErrorCode.TOPIC_ALREADY_EXISTS: TopicAlreadyExists,
    ErrorCode.INVALID_REQUEST: InvalidRequest,
    ErrorCode.INVALID_TOPIC: InvalidRequest,
    ErrorCode.INVALID_PARTITIONS: InvalidRequest,
    ErrorCode.INVALID_REPLICATION_FACTOR: InvalidRequest,
    ErrorCode.INVALID_CONFIG: InvalidRequest,
    ErrorCode.MESSAGE_TOO_LARGE: RecordTooLarge,
    ErrorCode.OFFSET_OUT_OF_RANGE: OffsetOutOfRange,
    ErrorCode.CORRUPT_MESSAGE: CorruptBatch,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: SequenceBroken,
}


def error_for(code: ErrorCode, message: str) -> HighwaterError:
    """The exception for a wire code: its own class, else `RetriableError` or `HighwaterError` with that code."""
    kind = _BY_CODE.get(code) or (RetriableError if code.retriable else HighwaterError)
    return kind(message or code.name, code)
