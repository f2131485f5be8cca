"""Long-lived tasks that cannot end unnoticed: every process runs its loops through a `TaskSupervisor`.

A task of asyncio that raises dies in silence; whoever depends on it then waits for ever, while the process says that it
is healthy. Here a loop that fails, or ends although nobody asked it to, is logged and counted, and begun anew after a
pause; what cannot be begun anew tells its owner, which ends the process.

So is what ends by a `CancelledError` that nobody asked for: gRPC cancels the calls of a channel that is closed, and an
executor what it does not begin any more; whoever awaits them sees a cancellation of its own (RULES 8.8).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from typing import TYPE_CHECKING, Any, TypeVar

from highwater.telemetry.log import get_logger, pairs

if TYPE_CHECKING:
    from prometheus_client import Counter  # what only names it does not load it: the SDK starts the sooner

_log = get_logger(__name__)

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 30.0
SOUND_AFTER_S = 60.0  # a task that ran this long begins with the first pause again

Work = Callable[[], Awaitable[None]]
Answer = TypeVar("Answer")


class UnaskedCancellationError(Exception):
    """Raised where what a task awaited was cancelled, and not the task: the channel of a call was closed, say."""


def is_cancelled() -> bool:
    """Tells whether the running task was asked to end. Where it was not, a `CancelledError` is that of what it
    awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def uncancelled(work: Awaitable[Answer]) -> Answer:
    """Awaits `work`. Raises `UnaskedCancellationError` where that ends by a cancellation and nobody cancelled the
    running task."""
    try:
        return await work
    except asyncio.CancelledError as cancelled:
        if is_cancelled():
            raise
        raise UnaskedCancellationError("what it awaited was cancelled, as the calls of a closed channel") from cancelled


class TaskGroup(asyncio.TaskGroup):
    """A group that fails, too, where one of its tasks ends by a cancellation that nobody asked for: asyncio's goes on
    without that task, in silence."""

    def create_task(  # type: ignore[override]  # of a coroutine only
        self, coro: Coroutine[Any, Any, Answer], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Answer]:
        """Raises `RuntimeError` where the group is ending; `coro` is closed then."""
        watched = uncancelled(coro)
        try:
            task = super().create_task(watched, name=name, context=context)
        except RuntimeError:
            watched.close()
            coro.close()
            raise
        task.add_done_callback(lambda _: coro.close())  # it may have been cancelled before it began
        return task


class TaskSupervisor:
    """The long-lived tasks of one service. Use it from one event loop; `stop` cancels all of them and waits.

    `failures` counts by task (label `task`). Cancelling a returned task ends it for good.
    """

    def __init__(self, failures: Counter | None = None, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._failures = failures
        self._clock_s = clock_s
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    def run_forever(self, name: str, work: Work, *, expected: tuple[type[Exception], ...] = ()) -> asyncio.Task[None]:
        """Runs `work`; begins it anew where it raises or returns, after 0.1 s, doubled up to 30 s while it goes on.

        `expected` are logged in a line, without a traceback.
        """
        return self._start(name, self._run_forever(name, work, expected))

    def run_every(
        self, name: str, interval_s: float, work: Work, *, expected: tuple[type[Exception], ...] = ()
    ) -> asyncio.Task[None]:
        """Runs `work` again and again, `interval_s` after it has ended; up to 30 s after it has failed."""
        return self._start(name, self._run_every(name, interval_s, work, expected))

    def run_once(
        self, name: str, work: Work, on_failure: Callable[[Exception], None] | None = None
    ) -> asyncio.Task[None]:
        """Runs `work`, which ends by itself. Where it raises, that is logged, counted and told to `on_failure`."""
        return self._start(name, self._run_once(name, work, on_failure))

    async def stop(self) -> None:
        """Cancels every task and waits until all have ended. Tasks that are started from now on do not run."""
        self._stopping = True
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, name: str, running: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(running, name=name)
        if self._stopping:
            task.cancel()
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run_forever(self, name: str, work: Work, expected: tuple[type[Exception], ...]) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            began_s = self._clock_s()
            try:
                await uncancelled(work())
            except Exception as error:
                self._failed(name, error, expected)
            else:
                self._failed(name, None, expected)
            if self._clock_s() - began_s >= SOUND_AFTER_S:
                pause_s = FIRST_PAUSE_S
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _run_every(self, name: str, interval_s: float, work: Work, expected: tuple[type[Exception], ...]) -> None:
        pause_s = interval_s
        while True:
            await asyncio.sleep(pause_s)
            try:
                await uncancelled(work())
            except Exception as error:
                self._failed(name, error, expected)
                pause_s = max(interval_s, min(2 * max(pause_s, FIRST_PAUSE_S), LONGEST_PAUSE_S))
            else:
                pause_s = interval_s

    async def _run_once(self, name: str, work: Work, on_failure: Callable[[Exception], None] | None) -> None:
        try:
            await uncancelled(work())
        except Exception as error:
            self._failed(name, error, ())
            if on_failure is not None:
                on_failure(error)

    def _failed(self, name: str, error: Exception | None, expected: tuple[type[Exception], ...]) -> None:
        if self._failures is not None:
            self._failures.labels(name).inc()
        if error is None:
            _log.error("a task has ended by itself and is begun anew %s", pairs(task=name))
        elif isinstance(error, expected):
            _log.warning("a task failed %s", pairs(task=name, error=error))
        else:
            _log.error("a task failed %s", pairs(task=name), exc_info=error)
