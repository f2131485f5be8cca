"""The cluster as the controller sees it, and what is to become of it: partitions, replicas, elections, deletions.

Pure: no grpc, no asyncio, no etcd, no clock; the time is an argument. Imports no other room of the controller.
`actions` holds the values that go in and come out, `cluster` is the entrance.
"""
