"""Bounded reads of a topic: a range of offsets or times as a stream of Arrow batches.

May import `cluster/` and `consumer/`.
"""
