"""Decisions about one partition: what it is instructed to be, its leadership, ISR, followers and tail cache.

Pure: no grpc, no asyncio, no etcd, no clock; the time is an argument. Imports no other room of the replica-manager.
`actions` holds the values that go in and come out, `partition` is the entrance.
"""
