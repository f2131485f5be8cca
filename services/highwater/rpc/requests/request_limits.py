"""Limits of what one request may name: checked before anything is done for it, so that it costs its sender more than
the server. Pure.

Each stands in its field's comment in the contracts, and in docs/limits.md.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar, cast

from google.protobuf.message import Message

from highwater.errors import ErrorCode
from highwater.rpc.errors import to_proto
from highwater.v1 import broker_pb2, controller_pb2, group_pb2

# What is made of a partition takes ten times as much memory as its part of the request.
MAX_FETCH_PARTITIONS = 100_000
MAX_WHOLE_FETCH = 2_000
"""Partitions of a Fetch that is not of an incremental session: each is looked at and answered in one turn."""
MAX_PARTITIONS = 10_000
MAX_PRODUCED = 2_000
"""Partitions of a Produce, each with records and an answer of its own."""
MAX_LOOKED_UP = 2_000
"""Partitions of a ListOffsets or an OffsetForLeaderEpoch, each with a look-up of its own."""
MAX_DELETED = 1_000
"""Partitions of a DeleteRecords: as many of one caller may wait for their replicas at a broker."""
MAX_METADATA_TOPICS = 50_000
MAX_TOPICS = 1_000
MAX_CONFIG_KEYS = 100
MAX_ACLS_AT_ONCE = 1_000
MAX_PAYLOADS = 16
MAX_GROUPS = 1_000
MAX_GROUP_STATES = 16
MAX_OFFSETS = 5_000

LIMITS: Mapping[type[Message], Mapping[str, int]] = {
    broker_pb2.ProduceRequest: {"partitions": MAX_PRODUCED},
    broker_pb2.FetchRequest: {
        "partitions": MAX_FETCH_PARTITIONS,
        "accepts": MAX_PAYLOADS,
        "forgotten": MAX_FETCH_PARTITIONS,
    },
    broker_pb2.ListOffsetsRequest: {"partitions": MAX_LOOKED_UP},
    broker_pb2.OffsetForLeaderEpochRequest: {"partitions": MAX_LOOKED_UP},
    broker_pb2.DeleteRecordsRequest: {"partitions": MAX_DELETED},
    broker_pb2.MetadataRequest: {"topics": MAX_METADATA_TOPICS, "topic_ids": MAX_METADATA_TOPICS},
    broker_pb2.DescribeLogDirsRequest: {"partitions": MAX_PARTITIONS},
    broker_pb2.AlterReplicaLogDirsRequest: {"moves": MAX_PARTITIONS},
    controller_pb2.CreateTopicsRequest: {"topics": MAX_TOPICS},
    controller_pb2.NewTopic: {"config": MAX_CONFIG_KEYS, "assignment": MAX_PARTITIONS},
    controller_pb2.DeleteTopicsRequest: {"topics": MAX_TOPICS},
    controller_pb2.CreatePartitionsRequest: {"topics": MAX_TOPICS},
    controller_pb2.NewPartitions: {"assignment": MAX_PARTITIONS},
    controller_pb2.AlterConfigsRequest: {"set": MAX_CONFIG_KEYS, "unset": MAX_CONFIG_KEYS},
    controller_pb2.DescribeConfigsRequest: {"resources": MAX_TOPICS},
    controller_pb2.ElectLeadersRequest: {"partitions": MAX_PARTITIONS},
    controller_pb2.ReassignPartitionsRequest: {"reassignments": MAX_PARTITIONS},
    controller_pb2.CreateAclsRequest: {"acls": MAX_ACLS_AT_ONCE},
    controller_pb2.DeleteAclsRequest: {"filters": MAX_ACLS_AT_ONCE},
    group_pb2.FindCoordinatorRequest: {"groups": MAX_GROUPS},
    group_pb2.CommitOffsetsRequest: {"offsets": MAX_OFFSETS},
    group_pb2.FetchOffsetsRequest: {"partitions": MAX_OFFSETS},
    group_pb2.ListGroupsRequest: {"states": MAX_GROUP_STATES},
    group_pb2.DescribeGroupsRequest: {"groups": MAX_GROUPS},
    group_pb2.DeleteGroupsRequest: {"groups": MAX_GROUPS},
    group_pb2.DeleteOffsetsRequest: {"partitions": MAX_OFFSETS},
    group_pb2.AlterOffsetsRequest: {"offsets": MAX_OFFSETS},
}


def too_large(request: Message) -> str:
    """The sentence that refuses a request which names too much; empty: it does not."""
    if refusal := _too_many(request):
        return refusal
    if isinstance(request, controller_pb2.CreateTopicsRequest | controller_pb2.CreatePartitionsRequest):
        return next((refusal for each in request.topics if (refusal := _too_many(each))), "") or _too_many_partitions(
            request
        )
    return ""


def _too_many(message: Message) -> str:
    for field, most in LIMITS.get(type(message), {}).items():
        count = len(getattr(message, field))
        if count > most:
            return f"a request with {count} {field}: {most} are the most, send several"
    return ""


def _too_many_partitions(request: controller_pb2.CreateTopicsRequest | controller_pb2.CreatePartitionsRequest) -> str:
    """Of all topics together. One alone is refused by its own limit, with its own error."""
    if isinstance(request, controller_pb2.CreateTopicsRequest):
        counts = [max(topic.partitions, len(topic.assignment), 1) for topic in request.topics]
    else:
        counts = [max(topic.total, 1) for topic in request.topics]
    if len(counts) == 1 or sum(counts) <= MAX_PARTITIONS:
        return ""
    return f"a request for {sum(counts)} partitions: {MAX_PARTITIONS} are the most, send several"


_Method = TypeVar("_Method", bound=Callable[..., Awaitable[Any]])


def limited(response: Callable[..., Any]) -> Callable[[_Method], _Method]:
    """Answers a request that names too much with INVALID_REQUEST, in place of the method of a servicer."""

    def of(method: _Method) -> _Method:
        @functools.wraps(method)
        async def checked(self: Any, request: Any, context: Any) -> Any:
            if refusal := too_large(request):
                return response(error=to_proto(ErrorCode.INVALID_REQUEST, refusal))
            return await method(self, request, context)

        return cast(_Method, checked)

    return of
