"""Highwater: a replicated commit log for Python and Spark people on Kubernetes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import highwater.rpc.process.forking  # noqa: F401  before anything imports gRPC

if TYPE_CHECKING:
    from highwater.client.blocking.scan import scan

__all__ = ["__version__", "scan"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name != "scan":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from highwater.client.blocking.scan import scan  # noqa: PLC0415  the services need none of the SDK

    globals()["scan"] = scan
    return scan
