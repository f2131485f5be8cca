"""The `Error` of one partition, in a sentence that names the partition and what this broker knows of its leader."""

from __future__ import annotations

import re

from highwater.errors import ErrorCode
from highwater.metadata.schema.models import NO_LEADER
from highwater.model.partition import PartitionKey
from highwater.rpc.errors import to_proto
from highwater.v1 import common_pb2

# The directories of an absolute path: a slash that begins a word, and all up to the last one.
_PLACE = re.compile(r"(?<![^\s'\"(\[:=,])/(?:[^\s'\"/:,]+/)*")

NOT_KNOWN = (NO_LEADER, -1)


def partition_error(
    key: PartitionKey, code: ErrorCode, message: str = "", leader: tuple[int, int] = NOT_KNOWN
) -> common_pb2.Error:
    """`message` where there is one, without the places of files. `leader`: its id and the leader epoch, as this broker
    knows them."""
    if not message and code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
        message = _not_leader(key, *leader)
    elif not message and code is ErrorCode.UNKNOWN_TOPIC_ID:
        message = unknown_topic_id(key.topic_id)
    return to_proto(code, without_places(message))


def without_places(message: str) -> str:
    """The sentence with the names of files alone: where they stand is in the log of the broker's log-storage."""
    return _PLACE.sub("", message) if "/" in message else message


def unknown_topic_id(topic_id: bytes) -> str:
    """The sentence for UNKNOWN_TOPIC_ID."""
    return (
        f"this broker knows no topic of id {topic_id.hex() or 'nothing'}, which was deleted or is new: "
        "ask for Metadata, and take the id that it names"
    )


def _not_leader(key: PartitionKey, leader: int, leader_epoch: int) -> str:
    known = f"it last heard of broker {leader}, under leader epoch {leader_epoch}"
    return (
        f"this broker does not lead partition {key.partition} of topic id {key.topic_id.hex()}, "
        f"{'and knows of no leader' if leader == NO_LEADER else known}: ask for Metadata, and try the leader"
    )
