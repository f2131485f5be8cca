"""Sends a signal to the processes of this pod that run some modules, in their order; prints how many there were.

Arguments: the signal's number, modules. The pod's containers have to share their processes.
"""

from __future__ import annotations

import glob
import os
import sys


def main(arguments: list[str]) -> None:
    number, modules = int(arguments[0]), [module.encode() for module in arguments[1:]]
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


if __name__ == "__main__":
    main(sys.argv[1:])
