"""The headers of this broker's own batches, of any replica, leader or not: for `highwater replicas verify`."""

from __future__ import annotations

from highwater.errors import ErrorCode
from highwater.log_storage_client.values import StorageUnavailableError
from highwater.replica_manager.replicas.replica_manager import ReplicaManager
from highwater.replica_manager.server.partition_errors import without_places
from highwater.rpc.errors import to_proto
from highwater.rpc.partition_keys import from_key
from highwater.v1 import broker_pb2


async def list_batches(
    replica_manager: ReplicaManager, request: broker_pb2.ListBatchesRequest
) -> broker_pb2.ListBatchesResponse:
    """REPLICA_NOT_AVAILABLE: this broker does not host the partition."""
    key = from_key(request.partition)
    hosted = replica_manager.hosted.get(key)
    if hosted is None:
        message = f"broker {replica_manager.broker_id} has no replica of the partition"
        return broker_pb2.ListBatchesResponse(error=to_proto(ErrorCode.REPLICA_NOT_AVAILABLE, message))
    try:
        found = await replica_manager.storage.list_batches(
            key, request.offset, request.max_batches, check_crcs=request.check_crcs
        )
    except StorageUnavailableError as error:
        return broker_pb2.ListBatchesResponse(error=to_proto(ErrorCode.LOG_STORAGE_ERROR, without_places(str(error))))
    found.error.message = without_places(found.error.message)
    if found.log.offline:
        replica_manager.heard_offline(key, found.incarnation)
    partition = hosted.partition
    leads = partition.leadership is not None
    leader, leader_epoch = replica_manager.leader_of(key)
    return broker_pb2.ListBatchesResponse(
        error=found.error,
        batches=found.batches,
        log_start_offset=partition.log_start_offset if leads else found.log.log_start_offset,
        log_end_offset=found.log.log_end_offset,
        high_watermark=partition.high_watermark if leads else found.log.high_watermark,
        leader=leader,
        leader_epoch=leader_epoch,
    )
