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
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


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
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout_s)
        except BaseException as error:
            of_work = future.done() and not future.cancelled() and future.exception() is error
            future.cancel()
            # The wait gives its lock up and takes it again; whatever interrupts it between the two is followed by the
            # complaint that the lock is not held.
            if isinstance(error, RuntimeError) and error.__context__ is not None and not of_work:
                raise error.__context__ from None
            raise

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
