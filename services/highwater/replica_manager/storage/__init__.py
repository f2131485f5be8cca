"""The way to this broker's log-storage: the appends of what it leads and the pipeline of a partition's, fences, and
which logs are offline. The client of the calls and of the stream below is `highwater.log_storage_client`.

May import `partition/`, whose actions it carries out.
"""
