"""The replicas that this broker hosts: `ReplicaManager` carries out what their partitions decide, and keeps what all of
them share: waiting requests, cached metadata, ISR writes, what the fetcher is to follow.

May import `partition/` and `storage/`.
"""
