"""The end of producers that still hold records when the interpreter exits.

The blocking producers' are sent: each is flushed by an `atexit` handler, when threads that are not daemons have ended
and the event loop's daemon thread still runs, for at most its `delivery_timeout_ms`. The asyncio producers' cannot be
sent, their event loop is gone or somebody else's. What is not acknowledged is told, with how many records it is.

A process of `multiprocessing` that was forked ends without `atexit`; there it is one of its finalizers. A forked child
flushes nothing that its parent has sent.
"""

from __future__ import annotations

import atexit
import os
import sys
import warnings
from dataclasses import dataclass
from logging import ERROR, WARNING
from time import monotonic
from typing import Protocol
from weakref import WeakSet

from highwater.client.cluster.last_word import say
from highwater.telemetry.log import get_logger

_log = get_logger(__name__)

# A flush at exit that takes longer than this says what the process waits for.
QUIET_S = 2.0
# Deliveries that are out of time say so by themselves, a little later: then the reason is known.
GRACE_S = 1.0
# Where the error of a `with` block is raised, not the flush's.
AFTER_ERROR = "when the `with` block of their producer ended with an error"


@dataclass(frozen=True, slots=True)
class Unacknowledged:
    """Records that a producer was given, were not acknowledged, and that nobody was told of."""

    waiting: int = 0  # in the buffer, or sent and not answered
    failed: int = 0  # given up; `reason` says why the first of them
    reason: str = ""

    @property
    def records(self) -> int:
        return self.waiting + self.failed


class FlushedAtExit(Protocol):
    """A blocking producer."""

    @property
    def exit_timeout_s(self) -> float: ...

    def unacknowledged(self) -> Unacknowledged:
        """Counts what is not acknowledged now. Raises an `Exception` where its event loop does not answer."""

    def settle(self, timeout_s: float) -> None:
        """Waits until nothing is in flight. Raises `TimeoutError`."""

    def refuse_more(self) -> None:
        """The last flush begins: what is sent from now on might come too late for it."""


class ToldAtExit(Protocol):
    """An asyncio producer."""

    def tell_unacknowledged(self) -> None: ...


_flushed: dict[FlushedAtExit, None] = {}
_told: WeakSet[ToldAtExit] = WeakSet()
_finalized_by: int | None = None  # the process that has a finalizer of `multiprocessing`


def flush_at_exit(producer: FlushedAtExit) -> None:
    """Flushes it at the exit, unless `forget` comes first."""
    _flushed[producer] = None
    _add_finalizer()


def forget(producer: FlushedAtExit) -> None:
    _flushed.pop(producer, None)


def tell_at_exit(producer: ToldAtExit) -> None:
    """Tells at the exit what it has left, where the producer still exists then."""
    _told.add(producer)


def warn_dropped(left: Unacknowledged, source: object) -> None:
    """A producer that goes away with records in it."""
    message = _message(left, "when their producer was dropped without stop()")
    say(_log, WARNING, "%s", message)
    warnings.warn(message, ResourceWarning, source=source, stacklevel=3)


def log_unacknowledged(left: Unacknowledged, when: str) -> None:
    """Says what is left of a producer that is closed, where there is something and no exception says it."""
    if left.records:
        say(_log, ERROR, "%s", _message(left, when))


def _message(left: Unacknowledged, when: str) -> str:
    noun = "record was" if left.records == 1 else "records were"
    reason = f"; the first failed with: {left.reason}" if left.reason else ""
    return (
        f"{left.records} {noun} not acknowledged {when}, and may be lost{reason}. "
        "Use the producer in a `with` block, or call flush() or stop() and look at what they raise"
    )


def _at_exit() -> None:
    # First of all, for threads that are daemons go on: what is taken in is sent or told.
    for producer in list(_flushed):
        producer.refuse_more()
    _flush_all()
    for told in list(_told):
        told.tell_unacknowledged()


def _flush_all() -> None:
    interrupted = False
    for producer in list(_flushed):
        interrupted = _flush(producer, interrupted)


def _flush(producer: FlushedAtExit, interrupted: bool) -> bool:
    """Flushes one producer, and tells what is left. True: the user has interrupted a wait, this one or an earlier."""
    why = "when the interpreter exited"
    try:
        if not interrupted and producer.unacknowledged().waiting:
            _settle(producer)
    except TimeoutError:
        why += f" and in the {producer.exit_timeout_s:g} s after"
    except KeyboardInterrupt:
        interrupted = True
        why += ": the wait for them was interrupted"
    except Exception:
        say(_log, ERROR, "the records of a producer could not be flushed at exit", exc_info=True)
    try:
        left = producer.unacknowledged()
    except (Exception, KeyboardInterrupt):
        message = "a producer does not say how many of its records were not acknowledged at exit"
        say(_log, ERROR, message, exc_info=True)
    else:
        log_unacknowledged(left, why)
    return interrupted


def _settle(producer: FlushedAtExit) -> None:
    deadline = monotonic() + producer.exit_timeout_s + GRACE_S
    try:
        producer.settle(QUIET_S)
    except TimeoutError:
        if monotonic() >= deadline:
            raise
        say(
            _log,
            WARNING,
            "the interpreter waits for %d records to be acknowledged before it exits, up to %g s",
            producer.unacknowledged().waiting,
            producer.exit_timeout_s,
        )
        producer.settle(max(deadline - monotonic(), 0.0))


def _add_finalizer() -> None:
    """Adds a finalizer in a process of `multiprocessing`, whose module is then there."""
    global _finalized_by  # noqa: PLW0603
    processes, util = sys.modules.get("multiprocessing.process"), sys.modules.get("multiprocessing.util")
    if processes is None or util is None or processes.parent_process() is None or _finalized_by == os.getpid():
        return
    _finalized_by = os.getpid()
    util.Finalize(None, _flush_all, exitpriority=0)


def _after_fork() -> None:
    global _flushed, _told  # noqa: PLW0603
    _flushed = {}
    _told = WeakSet()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork)
