"""What each request does, without protobuf: produce, fetch, offsets, delete records, log directories, and the
controller's instructions.

May import `membership/`, `replicas/` and what those may import.
"""
