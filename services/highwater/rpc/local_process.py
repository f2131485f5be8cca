"""What it takes to run programs on this machine: free ports, and children that do not outlive their parent."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Sequence

# Run by a Python of its own, which then becomes the program: the kernel is to kill it when the parent ends, however it
# ends. (Code between fork and exec in this process would not be safe: gRPC's threads may hold any lock.) Linux only;
# elsewhere a killed supervisor leaves its children to be stopped by hand.
_TIED_TO_PARENT = """
import ctypes, os, sys
PR_SET_PDEATHSIG, SIGKILL = 1, 9
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent ended first")
os.execvp(sys.argv[2], sys.argv[2:])
"""


def tied_to_parent(command: Sequence[str]) -> list[str]:
    """The command line by which a child of this process runs `command` and never outlives it. The kernel ties the child
    to the thread that makes it: start it from the main thread."""
    return [sys.executable, "-I", "-S", "-c", _TIED_TO_PARENT, str(os.getpid()), *command]


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Ports that were free a moment ago. Raises `OSError` where `host` is no address of this machine."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((host, 0))
        return [each.getsockname()[1] for each in sockets]
