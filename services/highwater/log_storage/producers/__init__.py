"""The idempotent producers of a log: their states, and the snapshots that keep these on disk.

May import `files/` and `segment/`.
"""
