"""Administration: topics and their configuration, the cluster, log directories, and whether replicas agree.

May import `cluster/`, `groups/`, `exceptions`, `notebook` and `topic_partition`.
"""
