"""`python -m highwater.kube.etcd_member`: an init container that decides how one etcd member starts, and writes etcd's
`--config-file`. Ends with 0 once the file is written; with 1 and one sentence on stderr where it cannot decide, to be
started again.

SIGTERM and SIGINT end it at once, with another status than 0, or etcd would be started. Whatever it was doing, the next
run finds its way from what is on the volume and in the cluster.
"""

from __future__ import annotations

import importlib
import os
import signal
from types import FrameType


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)


if __name__ == "__main__":
    for _number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(_number, _end)
    importlib.import_module("highwater.kube.etcd_member.start").main()
