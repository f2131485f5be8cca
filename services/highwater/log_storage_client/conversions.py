"""Between log-storage's messages and values; an Append message is put together around the batches in it."""

from __future__ import annotations

from collections.abc import Sequence

from highwater.log_storage_client.values import Append, AppendAnswer, FencedLog, NewLog, StorageError, TruncatedLog
from highwater.model.fence_role import Role
from highwater.model.leader_epochs import EpochEntry
from highwater.model.log_state import LogState
from highwater.rpc.embedding import Piece, embed
from highwater.rpc.errors import from_proto
from highwater.rpc.partition_keys import to_key
from highwater.v1 import common_pb2, log_storage_pb2

_PARTITIONS_FIELD = 3  # AppendRequest.partitions
_RECORDS_FIELD = 4  # AppendPartition.records

ROLES = {Role.LEADER: log_storage_pb2.ROLE_LEADER, Role.FOLLOWER: log_storage_pb2.ROLE_FOLLOWER}


def append_request(correlation_id: int, role: Role, appends: Sequence[Append]) -> list[Piece]:
    """A serialised `AppendRequest`, in pieces."""
    head = log_storage_pb2.AppendRequest(correlation_id=correlation_id, role=ROLES[role])
    out: list[Piece] = [head.SerializeToString()]
    for append in appends:
        small = log_storage_pb2.AppendPartition(
            partition=to_key(append.key),
            leader_epoch=append.leader_epoch,
            expected_offset=append.expected_offset,
            leader_high_watermark=append.leader_high_watermark,
            leader_log_start_offset=append.leader_log_start_offset,
        )
        if append.traceparents:
            small.traceparents.extend(append.traceparents)
        embed(out, _PARTITIONS_FIELD, small.SerializeToString(), _RECORDS_FIELD, (append.records,))
    return out


def append_answer(result: log_storage_pb2.AppendResult, incarnation: str) -> AppendAnswer:
    error, log = result.error, result.log
    return AppendAnswer(
        from_proto(error),
        error.message,
        result.base_offset,
        result.last_offset,
        result.duplicate,
        result.log_append_time_ms,
        log_state(log),
        incarnation,
        log.offline,
    )


def create_request(log: NewLog) -> log_storage_pb2.CreateLogRequest:
    return log_storage_pb2.CreateLogRequest(
        topic=log.topic,
        partition=to_key(log.key),
        config=log.config,
        newer_than_incarnation=log.newer_than_incarnation,
    )


def fenced_log(result: log_storage_pb2.FenceResult, incarnation: str) -> FencedLog:
    return FencedLog(
        storage_error(result.error),
        log_state(result.log),
        tuple(EpochEntry(entry.leader_epoch, entry.start_offset) for entry in result.epochs),
        incarnation,
        result.log.offline,
    )


def truncated_log(response: log_storage_pb2.TruncateResponse) -> TruncatedLog:
    return TruncatedLog(storage_error(response.error), log_state(response.log), response.incarnation)


def log_state(log: log_storage_pb2.LogState) -> LogState:
    return LogState(log.log_end_offset, log.last_epoch, log.log_start_offset, log.high_watermark)


def storage_error(error: common_pb2.Error) -> StorageError:
    return StorageError(from_proto(error), error.message)
