"""A client's tracing: by its option `tracing`, else as the environment says."""

from __future__ import annotations

from highwater.client.exceptions import InvalidRequestError
from highwater.telemetry.otlp.collector import Tracing, tracing_from_environment

__all__ = ["Tracing", "tracing_of"]


def tracing_of(given: Tracing | None) -> Tracing | None:
    """None: it is off. Raises `InvalidRequestError` for a variable of the environment that says nothing useful."""
    if given is not None:
        return given
    try:
        return tracing_from_environment()
    except ValueError as error:
        raise InvalidRequestError(str(error)) from None
