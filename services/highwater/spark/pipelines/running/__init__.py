"""A pipeline's streaming queries from their start to their end: progress, metrics, health and graceful stop.

May import `command/`, `session/` and `files/`.
"""
