"""One partition's log: appends, reads, flushes, truncation, retention, and opening it after a clean or unclean stop.

May import `files/`, `segment/` and `producers/`.
"""
