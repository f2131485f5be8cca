"""Stops the first process of this process namespace for some seconds, or kills it: `hold SECONDS` or `kill`.

No signal from within a namespace stops or kills its first process, but its tracer may, with the capability SYS_PTRACE.
It goes on by itself when this ends, however it ends.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time

SEIZE, INTERRUPT, EXITKILL = 0x4206, 0x4207, 0x100000
WALL = 0x40000000
FIRST = 1


def trace(request: int, thread: int, data: int) -> None:
    """Raises `OSError`."""
    library = ctypes.CDLL(None, use_errno=True)
    library.ptrace.argtypes = [ctypes.c_long] * 4
    library.ptrace.restype = ctypes.c_long
    if library.ptrace(request, thread, 0, data) == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def threads(process: int) -> set[int]:
    return {int(name) for name in os.listdir(f"/proc/{process}/task")}


def hold(process: int, seconds: float) -> None:
    held: set[int] = set()
    while fresh := threads(process) - held:  # a thread that still ran may have started another one
        for thread in fresh:
            held.add(thread)
            try:
                trace(SEIZE, thread, 0)
                trace(INTERRUPT, thread, 0)
                os.waitpid(thread, WALL)
            except ProcessLookupError:
                continue  # it has just ended
    print(f"held {len(held)} threads of {process}", flush=True)
    time.sleep(seconds)


def main(arguments: list[str]) -> None:
    process = int(os.environ.get("PROCESS", FIRST))
    if process == os.getpid():
        sys.exit("this container does not share the processes of its target: its runtime cannot do that")
    try:
        if arguments[0] == "kill":
            trace(SEIZE, process, EXITKILL)
            print(f"kills {process}", flush=True)
        else:
            hold(process, float(arguments[1]))
    except OSError as error:
        sys.exit(f"process {process} cannot be traced: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
