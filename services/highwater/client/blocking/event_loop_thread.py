"""The event loop behind the blocking twins: one daemon thread a process, started by the first call.

A fork before that call is safe: there is nothing to inherit. After a fork the child starts its own with its first call;
what the parent had started stays the parent's, see `highwater.rpc.process.forking`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

ResultT = TypeVar("ResultT")


class _Work(Generic[ResultT]):
    """A coroutine on the loop. The thread that waits for it may be interrupted anywhere, and may hold nothing then that
    the loop needs. A `Condition`, such as a `concurrent.futures.Future` has, is entered by a function in Python: an
    interrupt between its taking the lock and the `with` block leaves it locked for ever. A lock has no such moment."""

    def __init__(self, coroutine: Coroutine[Any, Any, ResultT]) -> None:
        self._coroutine = coroutine
        self._task: asyncio.Task[ResultT] | None = None
        self._given_up = False
        self._done = threading.Lock()
        self._done.acquire()

    def wait(self, timeout_s: float | None) -> ResultT:
        """Raises `TimeoutError`."""
        if not self._done.acquire(timeout=-1 if timeout_s is None else max(timeout_s, 0.0)):
            raise TimeoutError
        assert self._task is not None
        try:
            return self._task.result()
        finally:
            del self  # an error's traceback has this frame: what the caller has would wait for the garbage collector

    def begin(self) -> None:
        """On the loop."""
        if self._given_up:
            self._coroutine.close()
        else:
            self._task = asyncio.ensure_future(self._coroutine)
            self._task.add_done_callback(self._ended)

    def give_up(self) -> None:
        """On the loop. The interrupt may have come before the work was handed over: then it is never begun."""
        self._given_up = True
        if self._task is None:
            self._coroutine.close()
        else:
            self._task.cancel()

    def _ended(self, task: asyncio.Task[ResultT]) -> None:
        if not task.cancelled():
            task.exception()  # it is told to whoever waits, or to nobody who has given up
        self._done.release()


class EventLoopThread:
    def __init__(self) -> None:
        self.process_id = os.getpid()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="highwater-client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, ResultT], timeout_s: float | None = None) -> ResultT:
        """Runs a coroutine on the loop and waits. What interrupts the wait, such as a signal's handler that raises,
        cancels it. Raises `TimeoutError` after `timeout_s`."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a blocking client was called from its own event loop; use the async one there")
        handed = _Work(work)
        try:
            self.loop.call_soon_threadsafe(handed.begin)
            return handed.wait(timeout_s)
        except BaseException:
            self.loop.call_soon_threadsafe(handed.give_up)  # nothing, where it has ended
            raise
        finally:
            del handed

    def _run_loop(self) -> None:
        """asyncio lets `SystemExit` and `KeyboardInterrupt` out of the loop, after the task's caller was told: that one
        takes them, the loop is everybody's."""
        while True:
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                return self.loop.run_forever()

    def call_soon(self, work: Callable[[], object]) -> None:
        self.loop.call_soon_threadsafe(work)


_lock = threading.Lock()
_current: EventLoopThread | None = None
_inherited: list[EventLoopThread] = []  # closing the parent's loop would take its descriptors out of the parent's epoll


def event_loop_thread() -> EventLoopThread:
    """The process's thread, started where it is not there yet."""
    global _current  # noqa: PLW0603
    with _lock:
        if _current is None or _current.process_id != os.getpid():
            _current = EventLoopThread()
        return _current


def _after_fork() -> None:
    # The lock may have been held by a thread that does not exist in the child.
    global _lock, _current  # noqa: PLW0603
    _lock = threading.Lock()
    if _current is not None:
        _inherited.append(_current)
    _current = None


os.register_at_fork(after_in_child=_after_fork)
