"""One partition's log: appends, reads, flushes, truncation and retention.

May import `files/`, `segment/` and `producers/`.
"""
