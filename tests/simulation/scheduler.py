"""Virtual time, and processes whose code runs in it. One `random.Random` decides everything, so a seed is a run.

Shells are written as coroutines. They wait on `Future` and `Process.sleep` only; nothing here knows of asyncio.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from heapq import heappop, heappush
from random import Random
from typing import Any


class Scheduler:
    """Events in the order of their virtual time (ms), those of one instant in the order of their making."""

    __slots__ = ("_heap", "_made", "now_ms", "random", "steps")

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now_ms = 0
        self.steps = 0
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._made = 0

    def after(self, delay_ms: int, run: Callable[..., None], *args: Any) -> None:
        self._made += 1
        heappush(self._heap, (self.now_ms + delay_ms, self._made, run, args))

    def step(self) -> bool:
        """Runs the next event. False: there is none."""
        if not self._heap:
            return False
        self.now_ms, _, run, args = heappop(self._heap)
        self.steps += 1
        run(*args)
        return True


class Future:
    """A value that comes later, once. The first `set` counts."""

    __slots__ = ("_value", "_waiting", "is_done")

    def __init__(self) -> None:
        self.is_done = False
        self._value: Any = None
        self._waiting: list[Callable[[Any], None]] = []

    def set(self, value: Any = None) -> None:
        if self.is_done:
            return
        self.is_done = True
        self._value = value
        waiting, self._waiting = self._waiting, []
        for resume in waiting:
            resume(value)

    def then(self, resume: Callable[[Any], None]) -> None:
        if self.is_done:
            resume(self._value)
        else:
            self._waiting.append(resume)

    # As `asyncio.Future`, for production code that looks at one.

    def done(self) -> bool:
        return self.is_done

    def cancelled(self) -> bool:
        return False

    def result(self) -> Any:
        return self._value

    def __await__(self) -> Generator[Future, Any, Any]:
        if self.is_done:
            return self._value
        return (yield self)


class Process:
    """Something that can be killed, paused and resumed. What was scheduled for it runs only while it lives; while it is
    paused it piles up, and runs in order when it is resumed. A restart is another object."""

    def __init__(self, scheduler: Scheduler, place: int, name: str) -> None:
        self.scheduler = scheduler
        self.place = place
        self.name = name
        self.alive = True
        self.paused = False
        self.ended = Future()  # when it is killed
        self._backlog: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()

    @property
    def now_ms(self) -> int:
        return self.scheduler.now_ms

    def after(self, delay_ms: int, run: Callable[..., Any], *args: Any) -> None:
        self.scheduler.after(delay_ms, self.run, run, *args)

    def run(self, run: Callable[..., Any], *args: Any) -> None:
        if not self.alive:
            return
        if self.paused or self._backlog:
            self._backlog.append((run, args))
        else:
            run(*args)

    def sleep(self, delay_ms: int) -> Future:
        future = Future()
        self.after(delay_ms, future.set)
        return future

    def spawn(self, work: Coroutine[Future, Any, Any]) -> Future:
        """Runs it until it ends; the future has what it returned."""
        ended = Future()
        self._resume(work, ended, None)
        return ended

    def _resume(self, work: Coroutine[Future, Any, Any], ended: Future, value: Any) -> None:
        if not self.alive:
            return
        try:
            awaited = work.send(value)
        except StopIteration as stop:
            ended.set(stop.value)
            return
        awaited.then(partial(self._resume, work, ended))

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        self.scheduler.after(0, self._catch_up)

    def _catch_up(self) -> None:
        """Some of what has piled up; what comes meanwhile goes behind it."""
        for _ in range(8):
            if self.paused or not self.alive or not self._backlog:
                return
            run, args = self._backlog[0]
            run(*args)
            if self._backlog:
                self._backlog.popleft()
        self.scheduler.after(1, self._catch_up)

    def kill(self) -> None:
        if self.alive:
            self.alive = False
            self._backlog.clear()
            self.ended.set()
