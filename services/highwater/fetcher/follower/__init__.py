"""One followed partition: what to fetch, append and truncate, and the order in which partitions are fetched.

Pure: no grpc, no asyncio, no clock; the time is an argument. Imports nothing else of the fetcher. `actions` holds the
values that go in and come out, `follower` is the entrance.
"""
