"""The spans of the traced batches that one fetcher copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from highwater.fetcher.follower.actions import Append
from highwater.fetcher.follower.follower import Follower
from highwater.model.partition import PartitionKey
from highwater.telemetry.tracing import MAX_PARENTS, Span, Tracer


class CopySpans:
    """`copy` for each trace among the batches of a partition, from the leader's response to log-storage's answer. Of a
    partition those of one response are kept until its append: what comes of none is forgotten with the next."""

    def __init__(self, tracer: Tracer, broker_id: int) -> None:
        self._tracer = tracer
        self._broker_id = broker_id
        self._begun: dict[PartitionKey, list[Span]] = {}

    def begin(self, follower: Follower, traceparents: Sequence[str], size_bytes: int) -> None:
        """The leader has returned batches of these traces."""
        spans = (
            self._tracer.go_on(
                "copy",
                traceparent,
                broker=self._broker_id,
                topic=follower.topic,
                partition=follower.key.partition,
                bytes=size_bytes,
            )
            for traceparent in traceparents[:MAX_PARENTS]
        )
        self._begun[follower.key] = [span for span in spans if span is not None]

    def forget(self, key: PartitionKey) -> None:
        """It is not followed any more."""
        self._begun.pop(key, None)

    def appending(
        self, appends: Sequence[tuple[Follower, Append]]
    ) -> tuple[Sequence[tuple[Follower, Append]], Sequence[Span]]:
        """The appends, those of traced batches with their traces; and the spans that end with log-storage's answer."""
        if not self._begun:
            return appends, ()
        told: list[tuple[Follower, Append]] = []
        copied: list[Span] = []
        for follower, append in appends:
            spans = self._begun.pop(follower.key, ()) if append.records is not None else ()
            copied += spans
            traceparents = tuple(span.traceparent for span in spans)
            told.append((follower, replace(append, traceparents=traceparents) if spans else append))
        return told, copied
