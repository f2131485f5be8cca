"""Sends a signal to the processes of this pod that run some modules, in their order; prints how many there were.

Arguments: the signal's number; seconds after which SIGCONT follows, 0 for none; modules. The pod's containers have to
share their processes.
"""

from __future__ import annotations

import glob
import os
import signal
import sys
import time
from contextlib import suppress


def main(arguments: list[str]) -> None:
    number, seconds = int(arguments[0]), float(arguments[1])
    modules = [module.encode() for module in arguments[2:]]
    found = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(path, "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue  # it has just ended
        if words[1:2] == [b"-m"] and words[2] in modules:
            found.append((modules.index(words[2]), int(path.split("/")[2])))
    print(len(found), flush=True)
    for _, pid in sorted(found):
        os.kill(pid, number)
    if seconds:
        time.sleep(seconds)
        for _, pid in found:
            with suppress(ProcessLookupError):  # its probe may have ended it
                os.kill(pid, signal.SIGCONT)


if __name__ == "__main__":
    main(sys.argv[1:])
