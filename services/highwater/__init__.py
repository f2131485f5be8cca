"""Highwater: a replicated commit log for Python and Spark people on Kubernetes."""

__version__ = "0.1.0"
