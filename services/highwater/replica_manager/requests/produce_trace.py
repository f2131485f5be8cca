"""The spans of one produce request."""

from __future__ import annotations

from collections.abc import Sequence

from highwater.errors import ErrorCode
from highwater.model.partition import PartitionKey
from highwater.replica_manager.replicas.traced_batches import TracedBatches
from highwater.telemetry.tracing import MAX_PARENTS, Span


class ProduceTrace:
    """`produce`, and below it, each from the end of the one before: `check` (admission, and what is in the batches),
    `append` (log-storage's, of all partitions) and `replicate` (the wait for followers, of `acks=all`). Log-storage's
    spans come below `append`, followers' below `produce`, of the first `MAX_PARENTS` partitions."""

    def __init__(self, span: Span, traced: TracedBatches, *, waits: bool) -> None:
        self._span = span
        self._traced = traced
        self._waits = waits
        self._step = span.child("check", start_ns=span.start_ns)
        self._appending: Sequence[str] = ()
        self._handed_over = 0
        self._unanswered = 1  # partitions, and one more until all are handed over
        self._batches: list[tuple[PartitionKey, int]] = []

    def appends(self) -> None:
        """All of it is checked, and goes to log-storage."""
        self._next("append")
        self._appending = (self._step.traceparent,)

    def handed_over(self) -> Sequence[str]:
        """A partition is handed over: what its append carries."""
        self._handed_over += 1
        self._unanswered += 1
        return self._appending if self._handed_over <= MAX_PARENTS else ()

    def answered(self) -> None:
        """Log-storage has answered for a partition; or, once, all of them have been handed over."""
        self._unanswered -= 1
        if self._unanswered == 0 and self._waits:
            self._next("replicate")
        elif self._unanswered == 0:
            self._step.end()

    def appended(self, key: PartitionKey, base_offset: int) -> None:
        """A partition's records are written; before followers are woken for them."""
        if len(self._batches) < MAX_PARENTS:
            self._batches.append((key, base_offset))
            self._traced.add(key, base_offset, self._span.traceparent)

    def responded(self, errors: Sequence[ErrorCode]) -> None:
        """It is answered: with these errors, of partitions."""
        if not self._step.end_ns:
            self._step.end()
        if self._waits:  # else followers get them later than that
            for key, base_offset in self._batches:
                self._traced.remove(key, base_offset)
        failed = sorted({error.name for error in errors if error is not ErrorCode.NONE})
        self._span.end(error=", ".join(failed))

    def _next(self, name: str) -> None:
        self._step.end()
        self._step = self._span.child(name, start_ns=self._step.end_ns)
