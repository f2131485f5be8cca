"""Traces of single requests. Spans are made by hand, and of sampled requests alone: of any other no object is made.

Who begins a trace decides whether it is sampled, once: a client of the SDK, or the application that uses it, where that
is in a span of its own (`application_span`). A request that is sampled carries a `traceparent` (W3C Trace Context), any
other carries nothing; who gets one makes spans below it. What a process does not know about a trace costs it one look
at an empty field.
"""

from __future__ import annotations

import random
import re
import time
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

from highwater.telemetry.application_span import Parent

DEFAULT_SAMPLE_RATIO = 0.01
MAX_PARENTS = 16
"""Of traces that go on with one partition of a message: more are left out, as who asks may name many."""

# Version 00 is what is written; of a later one the beginning means the same, and more may follow.
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_MAX_LENGTH = 256
_SAMPLED = 1


class Kind(IntEnum):
    """The sides of a span, as OTLP numbers them."""

    INTERNAL = 1
    SERVER = 2
    CLIENT = 3


Value = str | int | float | bool


class Exporter(Protocol):
    """The place that ended spans go to. `take` does not wait, and may drop."""

    def take(self, span: Span) -> None: ...
    def close(self) -> None: ...


@dataclass(slots=True, eq=False)
class Span:
    """A piece of work within a trace, from `start_ns` until `end` is called, once. Times are ns since 1970."""

    name: str
    kind: Kind
    trace_id: bytes  # 16 bytes
    parent_id: bytes  # 8 bytes; empty: it begins the trace
    start_ns: int
    exporter: Exporter
    attributes: dict[str, Value] = field(default_factory=dict)
    span_id: bytes = field(default_factory=lambda: _random_id(8))
    end_ns: int = 0
    error: str = ""  # empty: it went well

    @property
    def traceparent(self) -> str:
        """The text that a request hands on, so that other processes' spans come below this one."""
        return f"00-{self.trace_id.hex()}-{self.span_id.hex()}-{_SAMPLED:02x}"

    def child(self, name: str, *, start_ns: int = 0, kind: Kind = Kind.INTERNAL, **attributes: Value) -> Span:
        """A span below this one. `start_ns` 0: from now on."""
        return Span(
            name, kind, self.trace_id, self.span_id, start_ns or time.time_ns(), self.exporter, dict(attributes)
        )

    def end(self, *, end_ns: int = 0, error: str = "", **attributes: Value) -> None:
        """`end_ns` 0: now."""
        self.end_ns = end_ns or time.time_ns()
        self.error = error
        self.attributes |= attributes
        self.exporter.take(self)


class Tracer:
    """The spans of one process, or of one client. Where tracing is off there is none."""

    def __init__(self, exporter: Exporter, sample_ratio: float = DEFAULT_SAMPLE_RATIO) -> None:
        self._exporter = exporter
        self._sample_ratio = sample_ratio

    def samples(self, parent: Parent | None = None) -> bool:
        """Decides whether the request that begins now is traced: as its parent is, where it has one."""
        return random.random() < self._sample_ratio if parent is None else parent.sampled

    def begin(self, name: str, *, parent: Parent | None = None, start_ns: int = 0, **attributes: Value) -> Span:
        """The first span of a trace, or of what is below `parent`. `start_ns` 0: from now on."""
        trace_id, parent_id = (_random_id(16), b"") if parent is None else (parent.trace_id, parent.span_id)
        start_ns = start_ns or time.time_ns()
        return Span(name, Kind.CLIENT, trace_id, parent_id, start_ns, self._exporter, dict(attributes))

    def go_on(
        self, name: str, traceparent: str, *, start_ns: int = 0, kind: Kind = Kind.SERVER, **attributes: Value
    ) -> Span | None:
        """A span below the one that a message names. None: it names none that is sampled."""
        parent = parse_traceparent(traceparent)
        if parent is None:
            return None
        trace_id, parent_id = parent
        return Span(name, kind, trace_id, parent_id, start_ns or time.time_ns(), self._exporter, dict(attributes))

    def close(self) -> None:
        """Exports what is left, within a few seconds. Blocks."""
        self._exporter.close()


under_way: ContextVar[Span | None] = ContextVar("under_way", default=None)
"""The span of the request that this task works for, for calls far below it; None: it is not traced."""


def parse_traceparent(text: str) -> tuple[bytes, bytes] | None:
    """Trace id and span id; None: it is not one, or not sampled."""
    if len(text) > _MAX_LENGTH or (found := _TRACEPARENT.fullmatch(text)) is None:
        return None
    trace_id, span_id, flags = found.groups()
    if not int(flags, 16) & _SAMPLED or (text.startswith("00") and len(text) != 55):
        return None
    return bytes.fromhex(trace_id), bytes.fromhex(span_id)


def _random_id(size: int) -> bytes:
    return (random.getrandbits(8 * size) or 1).to_bytes(size, "big")
