"""An event loop of asyncio in the simulation's virtual time: production coroutines run on it as they are."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context
from typing import Any
from weakref import WeakSet

from ..scheduler import Process


class SimulatedLoop(asyncio.AbstractEventLoop):
    """The loop of one process; what dies with the process is never run."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.error: Exception | None = None  # of a task that its supervisor would begin anew
        self._ready: deque[asyncio.Handle] = deque()
        self._turning = False
        self._tasks: WeakSet[asyncio.Task[Any]] = WeakSet()

    @contextmanager
    def running(self) -> Iterator[None]:
        """What runs within is in this loop."""
        before = asyncio._get_running_loop()
        if before is self:
            yield
            return
        asyncio._set_running_loop(self)
        try:
            yield
        finally:
            asyncio._set_running_loop(before)

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if self.process.alive:
            self._ready.append(handle)
            if not self._turning:
                self._turning = True
                self.process.after(0, self._turn)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(self.time() + delay, callback, args, self, context)
        if self.process.alive:
            self.process.after(max(round(delay * 1000), 1), self._due, handle)
        return handle

    def _due(self, handle: asyncio.Handle) -> None:
        if handle.cancelled():
            return
        turning, self._turning = self._turning, True
        handle._run()
        self._turning = turning
        if not turning:
            self._turning = True
            self._turn()

    def _turn(self) -> None:
        while self._ready and self.process.alive:
            handle = self._ready.popleft()
            if not handle.cancelled():
                handle._run()
        self._turning = False
        if self.error is not None:
            raise self.error

    def time(self) -> float:
        return self.process.now_ms / 1000

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.add(task)
        return task

    def abandon(self) -> None:
        """The process is dead: its tasks end where they are, now and not when memory is looked through."""
        self._ready.clear()
        with self.running():
            for task in list(self._tasks):
                if not task.done():
                    with suppress(RuntimeError, ValueError):  # one goes on although it is closed
                        task.get_coro().close()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """What a callback raises is the run's failure."""
        if "handle" in context and isinstance(context.get("exception"), BaseException):
            raise context["exception"]

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass


class SimulatedPace:
    """As `pacing.Pace`: where others may have their turn, now and then they do."""

    async def breathe(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        if loop.process.scheduler.random.random() < 0.05:
            await asyncio.sleep(0.001)
