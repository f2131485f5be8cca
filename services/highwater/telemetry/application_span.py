"""The span of OpenTelemetry that the application is in, as the parent of a trace.

The API is looked for among the modules that are loaded and never imported: who does not use it pays one look-up.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import NamedTuple


class Parent(NamedTuple):
    """A span of another library's. `sampled`: its trace is kept, and what is below it is to be."""

    trace_id: bytes  # 16 bytes
    span_id: bytes  # 8 bytes
    sampled: bool


def application_span() -> Parent | None:
    """The current one, of the context that this is called in. None: there is none."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    context = api.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    trace_id, span_id = context.trace_id.to_bytes(16, "big"), context.span_id.to_bytes(8, "big")
    return Parent(trace_id, span_id, context.trace_flags.sampled)


def no_span() -> None:
    """In the place of `application_span` where nothing is traced."""


def parent_of_all(parents: Iterable[Parent | None]) -> Parent | None:
    """The one that a request is below whose records have these: the first that is sampled, else the first."""
    known = [parent for parent in parents if parent is not None]
    return next((parent for parent in known if parent.sampled), known[0] if known else None)
