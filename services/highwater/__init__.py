"""Highwater: a replicated commit log for Python and Spark people on Kubernetes."""

import highwater.rpc.forking  # noqa: F401  before anything imports gRPC

__version__ = "0.1.0"
