"""Settings of the Python process that Spark runs a task in."""

from __future__ import annotations

import gc
import os

from highwater.rpc.process.malloc import keep_freed_memory

_prepared: int | None = None  # the process for which it was done


def prepare_worker() -> None:
    """Prepares this process for tasks, once.

    Spark's workers collect garbage after each task, and look at every object of every imported module for it: 10 to
    20 ms of each task. What is there now stays for the life of the process anyway.

    They move megabytes at a time, and the C library gives each one back: a tenth of what a write of 10 million rows
    cost Spark and Python was pages that came back.
    """
    global _prepared  # noqa: PLW0603
    if _prepared != os.getpid():
        _prepared = os.getpid()
        gc.freeze()
        keep_freed_memory()
