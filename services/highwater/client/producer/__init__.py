"""The way of a record from `send` to the leader and back: accumulators, encoded batches, the partitions' queues, the
sender, deliveries; and what becomes of records that are left at the interpreter's exit.

May import `cluster/`, `exceptions` and `topic_partition`.
"""
