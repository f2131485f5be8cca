"""Requests without protobuf: produce, fetch, offsets, delete records, log directories, the controller's instructions.

May import `membership/`, `replicas/` and what those may import.
"""
