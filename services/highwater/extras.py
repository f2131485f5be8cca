"""The extras of the distribution: what installing it without any leaves out, and the sentence that says how to get it.

server     the four services
cli        the command line
pipelines  the jobs on Spark, where Spark itself is there already
spark      the same, with Spark
local      a whole cluster on one machine: server, cli and an etcd
avro       `valueFormat avro`
otel       traces, and metrics by OpenTelemetry's protocol
kube       `highwater kube`, for whoever runs Highwater on Kubernetes
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from highwater.errors import UserError

# What pip knows this project by. PyPI's `highwater` is another one.
DISTRIBUTION = "highwater-log"


class MissingExtraError(UserError):
    """A package that an extra brings is not installed."""


def how_to_install(extra: str) -> str:
    """The command that adds an extra to what is installed already."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


@contextmanager
def needing(extra: str, what: str) -> Iterator[None]:
    """Wraps imports of what the distribution without extras does not bring. Raises `MissingExtraError` where a package
    is missing; a missing module of Highwater itself is a bug and stays a `ModuleNotFoundError`.

    Args:
        extra: one of the extras above.
        what: what cannot be done without it, the sentence's subject.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "highwater").partition(".")[0]
        if package == "highwater":
            raise
        raise MissingExtraError(f"{what} needs {package}, which is not installed: {how_to_install(extra)}") from None
