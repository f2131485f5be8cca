"""The cluster's state in etcd: topics, partition states, brokers, ids, as they are read, watched and written.

A controller's writes compare its term, so that a deposed one writes nothing. May import `schema/` and `store/`.
"""
