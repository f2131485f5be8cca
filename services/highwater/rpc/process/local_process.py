"""The means to run programs on this machine: free ports, and children that do not outlive their parent."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import socket
import sys
from collections import deque
from collections.abc import Container, Sequence

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


# Below the ports that Linux, macOS and Windows give to whoever asks for any: what is free here stays free until it is
# bound, unless somebody asks for the very port.
_PORTS = range(10_240, 30_000)
_TRIES = 1_000
# Whoever was given them may not have bound them yet: what a cluster needs is asked for in several calls.
_given: deque[int] = deque(maxlen=1_000)


def free_ports(count: int, host: str = "127.0.0.1", *, besides: Container[int] = ()) -> list[int]:
    """Ports that were free a moment ago, none of which is in `besides` or was lately given to this process. Raises
    `OSError` where `host` is no address of this machine, or nearly every port is taken."""
    with contextlib.ExitStack() as stack:
        found: list[int] = []
        # Not from the shared generator: two processes with the same seed would look at the same ports.
        candidates = random.SystemRandom().sample(_PORTS, _TRIES)
        for port in candidates:
            if len(found) == count:
                break
            if port in besides or port in _given:
                continue
            candidate = stack.enter_context(socket.socket())
            try:
                candidate.bind((host, port))
            except OSError as error:
                if error.errno in (errno.EADDRINUSE, errno.EACCES):
                    continue
                raise
            found.append(port)
        if len(found) < count:
            raise OSError(errno.EADDRINUSE, f"fewer than {count} of {_TRIES} ports of {host} are free")
        _given.extend(found)
        return found
