"""Requests without protobuf: produce, fetch, offsets, delete records, the controller's instructions.

May import `membership/`, `responses/` and what those may import.
"""
