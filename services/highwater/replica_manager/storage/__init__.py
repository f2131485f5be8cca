"""The way to this broker's log-storage: the append stream and the pipeline of a partition's appends on it, fences, the
other calls, and which logs are offline.

May import `partition/`, whose actions it carries out.
"""
