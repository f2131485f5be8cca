"""The first thing that a service's process does: it takes SIGTERM and SIGINT, before anything slow is imported (RULES
8.7).

As the first process of a container it would not hear them otherwise: the kernel gives process 1 no signal that it has
not asked for. Imports nothing but what Python has loaded already.
"""

from __future__ import annotations

import importlib
import os
import signal
from types import FrameType


def run_program(module: str) -> None:
    """Imports the module and runs its `main`, which takes the signals over (`rpc.server.run_service`). Until then
    either of them ends the process, with status 0: nothing has begun."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    importlib.import_module(module).main()


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(0)  # whatever is being imported may hold back an exception
