"""Forks of a process that uses gRPC. `highwater` imports this before anything that imports gRPC.

gRPC's own handlers of a fork (on, unless the environment says otherwise when gRPC is imported) work in a process that
calls it from one thread and is quiet. In any other they start gRPC's threads in the child, whose descriptors are closed
before it runs its program: it dies, or complains. Highwater turns them off:

- a child that runs another program (`subprocess` with `preexec_fn`, PySpark's JVM) never meets gRPC;
- a child that goes on in Python inherits gRPC's memory without its threads and may hold none of its locks: calls into
  gRPC would wait for ever. What would free gRPC's objects there is kept from doing so, and clients refuse to start;
- unless gRPC had ended before the fork, as it does when the last client was stopped: then the child starts its own.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
import warnings
import weakref
from typing import Protocol

_SWITCH = "GRPC_ENABLE_FORK_SUPPORT"
_OFF = ("0", "f", "false", "n", "no")
# What gRPC's threads are called, cut to 15 bytes by the kernel.
_THREADS = ("event_engine", "grpc_", "lifeguard")
_TASKS = "/proc/self/task"
# How long a fork waits for gRPC to end after the last client was stopped; it takes some 10 ms.
_END_TIMEOUT_S = 2.0
_END_POLL_S = 0.002

_HANDLERS_ON_SENTENCE = (
    "this process forks while gRPC runs with its own handlers of a fork, which may kill the child: import highwater "
    f"before grpc, or set {_SWITCH}=false in the environment"
)


class Inheritable(Protocol):
    def inherited(self) -> None: ...


class _Forking:
    """State of this process."""

    def __init__(self) -> None:
        # gRPC reads the switch when it is imported, and never again.
        self.grpc_was_imported = "grpc._cython.cygrpc" in sys.modules
        self.handlers_on = (
            os.environ.get(_SWITCH, "true" if self.grpc_was_imported else "false").strip().lower() not in _OFF
        )
        self.opened: dict[int, weakref.ref[object]] = {}
        self.to_tell: weakref.WeakSet[Inheritable] = weakref.WeakSet()
        self.may_be_ending = False
        self.ran_at_fork = False
        # The process that ran gRPC when this one, or one between the two, was forked from it; 0: there is none.
        self.inherited_from = 0


_forking = _Forking()
# Also in the environment of children: what they fork is none of gRPC's business either.
os.environ.setdefault(_SWITCH, "false")


def opened(holder: object) -> None:
    """Counts the holder of a channel, until `closed` or until it is gone. Everything that it reaches survives in forked
    children: freeing a channel or a call there could wait for ever."""
    key = id(holder)
    _forking.opened[key] = weakref.ref(holder, lambda _: _ended(key))


def closed(holder: object) -> None:
    _ended(id(holder))


def tell_in_children(client: Inheritable) -> None:
    """Has its `inherited` called in every child that is forked while gRPC runs."""
    _forking.to_tell.add(client)


def refusal() -> str | None:
    """A sentence that says why this process cannot use gRPC, and what to do; None where it can."""
    if not _forking.inherited_from:
        return None
    return (
        f"gRPC was running in process {_forking.inherited_from} when this one was forked from it, and does not survive "
        "a fork: make the first client after the fork (stop those made earlier), or start this process with "
        "multiprocessing's spawn or forkserver method"
    )


def _ended(key: int) -> None:
    _forking.opened.pop(key, None)
    _forking.may_be_ending = True


def _grpc_runs() -> bool:
    """Also somebody else's, where the kernel tells."""
    if _forking.opened:
        return True
    try:
        tasks = os.listdir(_TASKS)
    except OSError:
        return _forking.may_be_ending  # not Linux: whether it has ended cannot be told
    for task in tasks:
        # A thread may end meanwhile.
        with contextlib.suppress(OSError), open(f"{_TASKS}/{task}/comm") as name:
            if name.read().startswith(_THREADS):
                return True
    return False


def _before_fork() -> None:
    runs = _grpc_runs()
    if runs and not _forking.opened and _forking.may_be_ending and os.path.isdir(_TASKS):
        _forking.may_be_ending = False  # waited for once: it may be somebody else's that goes on
        gc.collect()  # channels end when they are freed
        deadline = time.monotonic() + _END_TIMEOUT_S
        while runs and time.monotonic() < deadline:
            time.sleep(_END_POLL_S)
            runs = _grpc_runs()
    if runs and _forking.handlers_on:
        _forking.handlers_on = False  # said once
        warnings.warn(_HANDLERS_ON_SENTENCE, RuntimeWarning, stacklevel=2)
    _forking.ran_at_fork = runs


def _after_fork_in_child() -> None:
    if not _forking.ran_at_fork and not _forking.opened:
        return
    _forking.inherited_from = _forking.inherited_from or os.getppid()
    # A circle that is frozen is never freed, not even at the interpreter's end.
    circle: list[object] = [holder() for holder in list(_forking.opened.values())]
    circle.append(circle)
    gc.freeze()
    for client in list(_forking.to_tell):
        client.inherited()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
