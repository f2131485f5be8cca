"""Long-lived tasks that cannot end unnoticed: every process runs its loops through a `TaskSupervisor`.

A task of asyncio that raises dies in silence; whoever depends on it then waits for ever, while the process says that it
is healthy. Here a loop that fails, or ends although nobody asked it to, is logged and counted, and begun anew after a
pause; what cannot be begun anew tells its owner, which ends the process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from highwater.telemetry.log import get_logger, pairs

if TYPE_CHECKING:
    from prometheus_client import Counter  # what only names it does not load it: the SDK starts the sooner

_log = get_logger(__name__)

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 30.0
SOUND_AFTER_S = 60.0  # a task that ran this long begins with the first pause again

Work = Callable[[], Awaitable[None]]


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
                await work()
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
                await work()
            except Exception as error:
                self._failed(name, error, expected)
                pause_s = max(interval_s, min(2 * max(pause_s, FIRST_PAUSE_S), LONGEST_PAUSE_S))
            else:
                pause_s = interval_s

    async def _run_once(self, name: str, work: Work, on_failure: Callable[[Exception], None] | None) -> None:
        try:
            await work()
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
