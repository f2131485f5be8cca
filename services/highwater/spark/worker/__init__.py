"""The Python processes that Spark runs tasks in: which Python they are started with, and how they are prepared.

Imports no other room.
"""
