"""Fetch responses before they are messages: their parts, what is read for each, and the budget of bytes of them all.

May import `replicas/` and what that may import.
"""
