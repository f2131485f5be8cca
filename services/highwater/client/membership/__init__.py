"""Membership of a consumer group as the member decides on it: its state, what happens to it, what is to be done.

Decisions, without I/O and clock. Imports nothing of the other rooms.
"""
