"""The first thing that a service's process does: it takes SIGTERM and SIGINT, before anything slow is imported (RULES
8.7).

As the first process of a container it would not hear them otherwise: the kernel gives process 1 no signal that it has
not asked for. Imports nothing that takes a while.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from types import FrameType

from highwater.extras import MissingExtraError, needing


def run_program(module: str) -> None:
    """Imports the module and runs its `main`, which takes the signals over (`rpc.server.run_service`). Until then
    either of them ends the process, with status 0: nothing has begun. Where the extra `server` is not installed, says
    so on stderr and ends with status 1."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    quiet_grpc()
    try:
        with needing("server", f"python -m {module.rpartition('.')[0]}"):
            program = importlib.import_module(module)
    except MissingExtraError as error:
        sys.exit(str(error))
    program.main()


def quiet_grpc() -> None:
    """Keeps gRPC, which is not imported yet, from writing a line for each handshake of TLS that fails: whoever reaches
    a port could fill the disk with them. The environment may say otherwise."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(0)  # whatever is being imported may hold back an exception
