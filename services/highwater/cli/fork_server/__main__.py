"""The process that forks: `python -m highwater.cli.fork_server`, with a socket as its standard input, whose other end
is `forked_process.ForkServer`.

The first message lists the modules that it imports; it is answered when that is done. A request to start names one of
them, has the command line for whoever looks at processes, and brings the file that output goes to; it is answered with
a process id. A request to reap waits for a process that has ended, which until then keeps its id, and is answered with
its status. The server ends when the socket is closed, and its children never outlive it.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import sys
from typing import Any, NamedTuple

from highwater.cli.fork_server import process_title
from highwater.cli.fork_server.forked_process import LONGEST_MESSAGE, MODULE
from highwater.rpc.process.entry import quiet_grpc, run_program

_PR_SET_PDEATHSIG = 1


class Start(NamedTuple):
    """The program that a child is to become."""

    module: str
    command: list[str]
    """`[python, "-m", "highwater.fetcher", "--set=..."]`"""
    output: int


def main() -> None:
    # Whoever started the supervisor may have ignored it, and children would be gone before they are reaped.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    process_title.show([sys.executable, "-m", MODULE])
    requests = socket.socket(fileno=0)
    prepare(json.loads(requests.recv(LONGEST_MESSAGE) or "[]"))
    requests.send(b"{}")
    start = serve(requests)
    if start is not None:
        _become(start)
        run_program(start.module)


def prepare(modules: list[str]) -> None:
    """All that is expensive, and leaves a process of a single thread: another one's locks would stay held in a fork."""
    quiet_grpc()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # a collection in a child would write to all of it, and the memory be no longer shared


def serve(requests: socket.socket) -> Start | None:
    """Returns in each child; in the server when the socket is closed."""
    server = os.getpid()
    while True:
        message, files, _, _ = socket.recv_fds(requests, LONGEST_MESSAGE, 1)
        if not message:
            return None
        request = json.loads(message)
        answer: dict[str, Any]
        if "reap" in request:
            _, status = os.waitpid(request["reap"], 0)
            answer = {"status": os.waitstatus_to_exitcode(status)}
        else:
            try:
                child = os.fork()
            except OSError as error:  # for want of memory or of processes: those that run go on
                answer = {"errno": error.errno}
            else:
                if not child:
                    _end_with(server)
                    requests.detach()  # `_become` puts another file in its place
                    return Start(request["module"], request["command"], files[0])
                answer = {"pid": child}
            os.close(files[0])
        requests.send(json.dumps(answer).encode())


def _end_with(server: int) -> None:
    """The kernel is to kill this process when the server ends, however it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        os._exit(1)


def _become(start: Start) -> None:
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for source, target in ((nothing, 0), (start.output, 1), (start.output, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(start.output)
    sys.argv = [start.module, *start.command[3:]]
    # By this the program's messages know what was run.
    sys.modules["__main__"].__spec__ = sys.modules[start.command[2]].__spec__
    process_title.show(start.command)


if __name__ == "__main__":
    main()
