"""The descriptors that this process may have, files and connections alike, and how many of them clients may take."""

from __future__ import annotations

import resource

OF_CLIENTS = 0.75
"""The part of all descriptors that clients' connections may take: the rest is for the broker's own."""


def allow_open_files() -> int:
    """Raises what the process may open, by default often 1,024, to the most that it is allowed to; returns that."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def connections_within(open_files: int, listeners: int) -> int:
    """The connections that each of so many listeners of clients may have, so that all of them together leave the
    process some descriptors."""
    return max(1, int(open_files * OF_CLIENTS) // max(1, listeners))


def open_files_allowed() -> int:
    """As it stands now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft
