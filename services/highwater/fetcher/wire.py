"""Protobuf messages to and from the fetcher's values. They go no further inward than this."""

from __future__ import annotations

from collections.abc import Sequence

from highwater.errors import ErrorCode
from highwater.fetcher.follower.actions import (
    Append,
    DivergingEpoch,
    FenceAnswer,
    FetchAnswer,
    FetchedRecords,
    FetchPosition,
    Followed,
    LogAnswer,
    TruncateFullyAndStartAt,
    TruncateTo,
)
from highwater.fetcher.follower.following import FollowedPartition, Following, LeaderEndpoint
from highwater.log_storage_client.append_request import append_request
from highwater.model.leader_epochs import EpochEntry
from highwater.model.log_state import LogState
from highwater.model.partition import PartitionKey
from highwater.records import CorruptBatchError, iter_batches
from highwater.rpc.errors import from_proto
from highwater.v1 import broker_pb2, common_pb2, log_storage_pb2, replica_control_pb2


def to_key(key: PartitionKey) -> common_pb2.PartitionKey:
    return common_pb2.PartitionKey(topic_id=key.topic_id, partition=key.partition)


def from_key(key: common_pb2.PartitionKey) -> PartitionKey:
    return PartitionKey(key.topic_id, key.partition)


def from_following(message: replica_control_pb2.Following) -> Following:
    """A partition without a leader to fetch from is left out."""
    return Following(
        message.broker_id,
        message.broker_epoch,
        {
            from_key(partition.partition): FollowedPartition(
                partition.topic,
                LeaderEndpoint(partition.leader_address, partition.leader_broker_epoch),
                Followed(
                    partition.leader,
                    partition.leader_epoch,
                    partition.unclean_epoch,
                    message.log_storage_incarnation,
                ),
            )
            for partition in message.partitions
            if partition.leader >= 0 and partition.leader_address
        },
    )


def to_fetch_partition(key: PartitionKey, position: FetchPosition, max_bytes: int) -> broker_pb2.FetchPartition:
    return broker_pb2.FetchPartition(
        partition=to_key(key),
        leader_epoch=position.leader_epoch,
        fetch_offset=position.fetch_offset,
        max_bytes=max_bytes,
        acked_offset=position.acked_offset,
        last_epoch=position.last_epoch,
        log_start_offset=position.log_start_offset,
    )


def from_fetch_result(result: broker_pb2.FetchResult, position: FetchPosition) -> FetchAnswer:
    """Batches that cannot be told apart make it CORRUPT_MESSAGE; their CRCs are log-storage's business."""
    error, message = from_proto(result.error), result.error.message
    fetched = None
    try:
        fetched = _from_records(result.records)
    except CorruptBatchError as corrupt:
        error, message = ErrorCode.CORRUPT_MESSAGE, f"the leader's response at {position.fetch_offset}: {corrupt}"
    diverging = None
    if result.HasField("diverging"):
        diverging = DivergingEpoch(result.diverging.leader_epoch, result.diverging.end_offset)
    return FetchAnswer(
        position,
        result.high_watermark,
        result.log_start_offset,
        result.log_end_offset,
        fetched,
        diverging,
        error,
        message,
    )


def _from_records(records: bytes) -> FetchedRecords | None:
    base_offset, header = -1, None
    for _, header in iter_batches(records):
        base_offset = header.base_offset if base_offset < 0 else base_offset
    if header is None:
        return None
    return FetchedRecords(base_offset, header.next_offset, header.partition_leader_epoch, records)


def to_append_request(correlation_id: int, appends: Sequence[tuple[PartitionKey, Append]]) -> bytes:
    """Serialised."""
    return append_request(
        correlation_id,
        log_storage_pb2.ROLE_FOLLOWER,
        (
            (
                log_storage_pb2.AppendPartition(
                    partition=to_key(key),
                    leader_epoch=append.leader_epoch,
                    expected_offset=append.expected_offset,
                    leader_high_watermark=append.leader_high_watermark,
                    leader_log_start_offset=append.leader_log_start_offset,
                ),
                append.records or b"",
            )
            for key, append in appends
        ),
    )


def to_truncate_to(key: PartitionKey, action: TruncateTo) -> log_storage_pb2.TruncateToRequest:
    return log_storage_pb2.TruncateToRequest(
        partition=to_key(key),
        leader_epoch=action.leader_epoch,
        offset=action.offset,
        unclean_epoch=action.unclean_epoch,
        expected_log_end_offset=action.expected_log_end_offset,
        expected_last_epoch=action.expected_last_epoch,
    )


def to_truncate_fully(
    key: PartitionKey, action: TruncateFullyAndStartAt
) -> log_storage_pb2.TruncateFullyAndStartAtRequest:
    return log_storage_pb2.TruncateFullyAndStartAtRequest(
        partition=to_key(key),
        leader_epoch=action.leader_epoch,
        offset=action.offset,
        unclean_epoch=action.unclean_epoch,
        expected_log_end_offset=action.expected_log_end_offset,
        expected_last_epoch=action.expected_last_epoch,
    )


def from_log_result(
    result: log_storage_pb2.AppendResult | log_storage_pb2.TruncateResponse, incarnation: str, generation: int
) -> LogAnswer:
    error = from_proto(result.error)
    log = _from_log_state(result.log) if error is ErrorCode.NONE else None
    return LogAnswer(generation, incarnation, log, error, result.error.message)


def from_fence_result(result: log_storage_pb2.FenceResult, incarnation: str, generation: int) -> FenceAnswer:
    error = from_proto(result.error)
    return FenceAnswer(
        generation,
        incarnation,
        _from_log_state(result.log) if error is ErrorCode.NONE else None,
        tuple(EpochEntry(entry.leader_epoch, entry.start_offset) for entry in result.epochs),
        error,
        result.error.message,
    )


def _from_log_state(log: log_storage_pb2.LogState) -> LogState:
    return LogState(log.log_end_offset, log.last_epoch, log.log_start_offset, log.high_watermark)
