"""SIGTERM, as Kubernetes sends it before it kills: what is begun is brought to its end, and nothing else begun. A
second one ends the process at once.

Only commands heed it: the signals of a program that calls a pipeline's `run` are that program's.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from time import monotonic, sleep
from typing import Any

import typer

STATUS = 128 + signal.SIGTERM  # as a shell says it
_LOOK_S = 0.05
# No event: the main thread may hold its lock when the signal comes.
_received: list[int] = []


@contextmanager
def heeded() -> Iterator[None]:
    """Notes the first SIGTERM while the block runs; it ends nothing by itself."""
    if current_thread() is not main_thread():  # Python gives signals to the main thread only
        yield
        return
    before = signal.signal(signal.SIGTERM, _note)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        _received.clear()


def _note(number: int, _: Any) -> None:
    if _received:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
    _received.append(number)


def asked(within_s: float = 0.0) -> bool:
    """Tells whether SIGTERM has come, or comes in this time."""
    deadline = monotonic() + within_s
    while not _received and (left := deadline - monotonic()) > 0:
        sleep(min(left, _LOOK_S))
    return bool(_received)


def unfinished() -> typer.Exit:
    """The exception for work that was stopped before its end: the exit status tells a job's runner to run it again."""
    return typer.Exit(STATUS)
