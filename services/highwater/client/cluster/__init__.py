"""The cluster as a client knows it: bootstrap addresses, metadata, connections to brokers, and which offsets there are.

May import `exceptions` and `topic_partition`.
"""
