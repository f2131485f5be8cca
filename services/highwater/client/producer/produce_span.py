"""The spans of a produce request, which begin its trace, or go on with the application's."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic, time_ns

from highwater.client.exceptions import HighwaterError
from highwater.client.producer.accumulator import PartitionAccumulator
from highwater.client.producer.partition_queue import ProducerBatch
from highwater.rpc.errors import error_names
from highwater.telemetry.application_span import Parent, parent_of_all
from highwater.telemetry.tracing import Kind, Tracer
from highwater.v1 import broker_pb2


def produce_span(
    tracer: Tracer,
    message: broker_pb2.ProduceRequest,
    batches: Sequence[tuple[PartitionAccumulator, ProducerBatch]],
) -> ProduceSpan | None:
    """None: the request is not traced."""
    parent = parent_of_all(batch.delivery.parent for _, batch in batches)
    return ProduceSpan(tracer, message, batches, parent) if tracer.samples(parent) else None


class ProduceSpan:
    """`send`, from when the first record of the batches was taken in; below it `gather`, which ends when the request is
    made, and `request`, of which the broker is told, until its answer."""

    __slots__ = ("_request", "_send")

    def __init__(
        self,
        tracer: Tracer,
        message: broker_pb2.ProduceRequest,
        batches: Sequence[tuple[PartitionAccumulator, ProducerBatch]],
        parent: Parent | None,
    ) -> None:
        now_ns = time_ns()
        waited_ms = monotonic() * 1000 - min(batch.created_ms for _, batch in batches)
        begun_ns = now_ns - int(1e6 * max(waited_ms, 0))
        queue = batches[0][0].queue
        self._send = tracer.begin(
            "send",
            parent=parent,
            start_ns=begun_ns,
            topic=queue.topic,  # and partition: the first of them
            partition=queue.partition,
            partitions=len(batches),
            records=sum(batch.records for _, batch in batches),
            attempt=max(batch.attempts for _, batch in batches),
            acks=message.acks,
        )
        self._send.child("gather", start_ns=begun_ns).end(end_ns=now_ns)
        self._request = self._send.child("request", start_ns=now_ns, kind=Kind.CLIENT)
        message.traceparent = self._request.traceparent

    def end(self, answer: broker_pb2.ProduceResponse | HighwaterError) -> None:
        error = str(answer) if isinstance(answer, HighwaterError) else error_names(answer)
        self._request.end(error=error)
        self._send.end(error=error, end_ns=self._request.end_ns)
