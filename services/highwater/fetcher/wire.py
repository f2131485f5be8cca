"""Protobuf messages to and from the fetcher's values. They go no further inward than this."""

from __future__ import annotations

from highwater.errors import ErrorCode
from highwater.fetcher.follower.actions import (
    DivergingEpoch,
    FetchAnswer,
    FetchedRecords,
    FetchPosition,
    Followed,
)
from highwater.fetcher.follower.following import FollowedPartition, Following, LeaderEndpoint, Registration
from highwater.model.partition import PartitionKey
from highwater.records import CorruptBatchError, iter_batches
from highwater.rpc.errors import from_proto
from highwater.rpc.partition_keys import from_key, to_key
from highwater.v1 import broker_pb2, replica_control_pb2


def from_following(message: replica_control_pb2.Following) -> Following:
    """A partition without a leader to fetch from is not followed: in a whole it is left out, of changes removed."""
    partitions, removed = {}, list(map(from_key, message.removed))
    for each in message.partitions:
        key = from_key(each.partition)
        if each.leader < 0 or not each.leader_address:
            removed.append(key)
            continue
        partitions[key] = FollowedPartition(
            each.topic,
            LeaderEndpoint(each.leader_address, each.leader_broker_epoch),
            Followed(each.leader, each.leader_epoch, each.unclean_epoch, message.log_storage_incarnation),
            each.throttled,
        )
    return Following(
        message.broker_id,
        Registration(message.broker_epoch, message.log_storage_incarnation),
        partitions,
        message.changes,
        tuple(removed) if message.changes else (),
        message.throttled_bytes_per_second or None,
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
