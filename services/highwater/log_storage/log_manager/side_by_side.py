"""Work that is done side by side until a time is over, as logs are closed before a process ends: what takes the time is
the disk, and one that does not answer must not keep the rest."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from highwater.telemetry.log import get_logger

_log = get_logger("log_storage.side_by_side")


@dataclass(frozen=True, slots=True)
class Outcome:
    well: bool  # whether each was done, and said that it went well
    late: int  # how many were not done in time
    running: bool  # whether some of those go on, in threads that end with the process


def side_by_side(work: Sequence[Callable[[], bool]], threads: int, until_s: float | None) -> Outcome:
    """Runs all of it, `threads` at a time. None is begun after `until_s` (of `time.monotonic`; None: whenever), and
    none is waited for any longer."""
    waiting, results = deque(work), list[bool]()

    def run() -> None:
        while until_s is None or time.monotonic() < until_s:
            try:
                each = waiting.popleft()
            except IndexError:
                return
            try:
                well = each()
            except Exception:
                _log.exception("not done before the end")
                well = False
            results.append(well)

    # Daemons: the process ends although a disk has not answered one of them.
    started = [
        threading.Thread(target=run, name=f"closing-{number}", daemon=True) for number in range(min(threads, len(work)))
    ]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join(None if until_s is None else max(until_s - time.monotonic(), 0))
    running = any(thread.is_alive() for thread in started)
    done = list(results)
    return Outcome(all(done) and len(done) == len(work), len(work) - len(done), running)
