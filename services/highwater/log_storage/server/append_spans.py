"""The spans of the traced parts of one append request."""

from __future__ import annotations

from highwater.log_storage.log_manager.hosted_log import HostedLog
from highwater.log_storage.server.fences import LEADER
from highwater.rpc.errors import from_proto
from highwater.telemetry.tracing import MAX_PARENTS, Span, Tracer
from highwater.v1 import log_storage_pb2


class AppendSpans:
    """`append` for each trace and partition, until it is answered for; below it `flush`, where the disk is waited
    for."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._spans: list[tuple[Span, log_storage_pb2.AppendResult]] = []
        self._flushes: list[Span] = []

    def begin(
        self,
        partition: log_storage_pb2.AppendPartition,
        result: log_storage_pb2.AppendResult,
        hosted: HostedLog | None,
        role: int,
    ) -> None:
        """`result` is what will be answered."""
        for traceparent in partition.traceparents[:MAX_PARENTS]:
            span = self._tracer.go_on(
                "append",
                traceparent,
                topic="" if hosted is None else hosted.topic,
                partition=partition.partition.partition,
                role="leader" if role == LEADER else "follower",
                bytes=len(partition.records),
            )
            if span is not None:
                self._spans.append((span, result))

    def written(self, *, syncs: bool) -> None:
        """All of the request is written; the disk is waited for, or not."""
        if syncs:
            self._flushes = [span.child("flush") for span, _ in self._spans]
        else:
            self._end()

    def synced(self) -> None:
        for flush in self._flushes:
            flush.end()
        self._end()

    def _end(self) -> None:
        for span, result in self._spans:
            error = from_proto(result.error)
            span.end(error=error.name if error else "", base_offset=result.base_offset)
