"""The way of a record from the leader to `poll`: positions, the fetcher, the batches that wait to be handed out.

May import `cluster/`, `membership/`, `groups/`, `exceptions`, `notebook` and `topic_partition`.
"""
