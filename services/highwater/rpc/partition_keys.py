"""`PartitionKey` to and from its protobuf message."""

from __future__ import annotations

from highwater.model.partition import PartitionKey
from highwater.v1 import common_pb2


def to_key(key: PartitionKey) -> common_pb2.PartitionKey:
    return common_pb2.PartitionKey(topic_id=key.topic_id, partition=key.partition)


def from_key(key: common_pb2.PartitionKey) -> PartitionKey:
    return PartitionKey(key.topic_id, key.partition)
