"""What a task does to the Python process that Spark runs it in."""

from __future__ import annotations

import gc
import os

_frozen: int | None = None  # the process for which it was done


def spare_imports_from_collections() -> None:
    """Spark's workers collect garbage after each task, and look at every object of every imported module for it: 10 to
    20 ms of each task. What is there now stays for the life of the process anyway. Does it once a process."""
    global _frozen  # noqa: PLW0603
    if _frozen != os.getpid():
        _frozen = os.getpid()
        gc.freeze()
