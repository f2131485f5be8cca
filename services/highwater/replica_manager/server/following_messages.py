"""The message that tells the broker's fetcher what to follow."""

from __future__ import annotations

from highwater.model.partition import PartitionKey
from highwater.replica_manager.replicas.following import Followed, Following
from highwater.rpc.partition_keys import to_key
from highwater.v1 import replica_control_pb2


def to_following(broker_id: int, following: Following) -> replica_control_pb2.Following:
    return replica_control_pb2.Following(
        broker_id=broker_id,
        broker_epoch=following.broker_epoch,
        log_storage_incarnation=following.log_storage_incarnation,
        partitions=[_followed(key, followed) for key, followed in following.partitions.items()],
        changes=following.changes,
        removed=map(to_key, following.removed),
        throttled_bytes_per_second=int(following.throttle_rate or 0),
    )


def _followed(key: PartitionKey, followed: Followed) -> replica_control_pb2.FollowedPartition:
    return replica_control_pb2.FollowedPartition(
        topic=followed.topic,
        partition=to_key(key),
        leader=followed.leader,
        leader_address=followed.leader_address,
        leader_broker_epoch=followed.leader_broker_epoch,
        leader_epoch=followed.leader_epoch,
        unclean_epoch=followed.unclean_epoch,
        throttled=followed.throttled,
    )
