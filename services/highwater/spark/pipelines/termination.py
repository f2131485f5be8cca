"""SIGTERM, as Kubernetes sends it before it kills: what is begun is brought to its end, and nothing else begun. A
second one ends the process at once.

Only commands heed it: the signals of a program that calls a pipeline's `run` are that program's.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, current_thread, main_thread
from typing import Any

import typer

STATUS = 128 + signal.SIGTERM  # as a shell says it
_asked = Event()


@contextmanager
def heeded() -> Iterator[None]:
    """From here on the first SIGTERM is noted, and ends nothing by itself."""
    if current_thread() is not main_thread():  # Python gives signals to the main thread only
        yield
        return
    before = signal.signal(signal.SIGTERM, _note)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        _asked.clear()


def _note(*_: Any) -> None:
    if _asked.is_set():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
    _asked.set()


def asked(within_s: float = 0.0) -> bool:
    """Whether SIGTERM has come, or comes in this time."""
    return _asked.wait(within_s)


def unfinished() -> typer.Exit:
    """Raise it where work that has an end was stopped before: what runs it as a job has to run it again."""
    return typer.Exit(STATUS)
