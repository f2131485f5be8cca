"""An Append request of log-storage, put together around the batches in it."""

from __future__ import annotations

from collections.abc import Iterable

from highwater.rpc.embedding import Piece, embed
from highwater.v1 import log_storage_pb2

APPEND_METHOD = "/highwater.v1.LogStorage/Append"

_PARTITIONS_FIELD = 3  # AppendRequest.partitions
_RECORDS_FIELD = 4  # AppendPartition.records


def append_request(
    correlation_id: int,
    role: log_storage_pb2.Role.ValueType,
    partitions: Iterable[tuple[log_storage_pb2.AppendPartition, Piece]],
) -> bytes:
    """A serialised `AppendRequest` of the partitions, each given without its `records` and beside them."""
    head = log_storage_pb2.AppendRequest(correlation_id=correlation_id, role=role)
    out: list[Piece] = [head.SerializeToString()]
    for small, records in partitions:
        embed(out, _PARTITIONS_FIELD, small.SerializeToString(), _RECORDS_FIELD, (records,))
    return b"".join(out)
