"""The limit of a wait for a peer's answers over a stream.

A peer may be gone without a word: its side of a connection has ended, and what would have said so was lost on a link
that flapped. gRPC's own pings find that within seconds (`channel.py`); whoever waits does not depend on them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_LOOKS = 20  # in the time of a limit


async def until_overdue(oldest: Callable[[], object | None], limit_s: float) -> None:
    """Returns once the same request has been the oldest without an answer for `limit_s`; `oldest` tells which, None
    while there is none. A stream that answers slowly, but one request after the other, is not overdue. Time in which
    this process did not run (paused, its loop busy) counts as one look: the answers may lie in its socket.
    """
    waited_for: object | None = None
    looks = 0
    while looks < _LOOKS:
        await asyncio.sleep(limit_s / _LOOKS)
        found = oldest()
        looks = looks + 1 if found is not None and found is waited_for else 0
        waited_for = found
