"""Groups as a client reaches them: the coordinator, a member's stream to it, and committed offsets.

May import `cluster/`, `membership/`, `exceptions` and `topic_partition`.
"""
