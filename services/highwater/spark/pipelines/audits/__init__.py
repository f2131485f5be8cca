"""The parts of `audit`: replicas on the brokers' disks, their segments, and the findings, as values and as a table.

May import `files/` and `archives/`.
"""
