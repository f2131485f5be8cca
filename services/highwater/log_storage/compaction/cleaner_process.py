"""The process that compacts: `python -m highwater.log_storage.compaction.cleaner_process LIMITS`, started by the
log-storage. It has an interpreter and memory of its own, so that appends and reads go on undisturbed.

A job comes as a line on stdin; answers go as lines to stdout: one for each group of segments that is ready, then one
for the pass. The process ends at once when stdin does, also in the middle of a pass: a log-storage that was killed
leaves no process behind that would still write to its directories.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from queue import Queue

from highwater.log_storage.compaction.cleaner_job import (
    Answer,
    CleanJob,
    PassFailed,
    PassLimits,
    PassReport,
    answer_to_json,
)
from highwater.log_storage.compaction.cleaner_pass import Cleaner, CleanerError, DamagedSegmentError
from highwater.log_storage.throttle import Throttle

_NICENESS = 5


def run_pass(
    job: CleanJob, limits: PassLimits, answer: Callable[[Answer], None], moved: Callable[[int], None]
) -> PassReport:
    """The whole pass; `answer` is given each group as soon as it is ready, oldest first. Raises `CleanerError`,
    `OSError`, `ValueError`."""
    cleaner = Cleaner(job, limits, moved=moved)
    cleaned_to = cleaner.build_map()
    for group in cleaner.groups():
        cleaned = cleaner.clean(group)
        if cleaned is not None:
            answer(cleaned)
    counts = cleaner.counts
    return PassReport(
        cleaned_to=cleaned_to,
        keys=cleaner.keys,
        records_read=counts.records_read,
        records_dropped=counts.records_dropped,
        keyless_dropped=counts.keyless_dropped,
        bytes_read=counts.bytes_read,
        bytes_written=counts.bytes_written,
        peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def throttled(bytes_per_second: float) -> Callable[[int], None]:
    """Waits where more has been moved than that."""
    throttle = Throttle(bytes_per_second)

    def moved(size_bytes: int) -> None:
        delay_s = throttle.delay_s(size_bytes, time.monotonic())
        if delay_s > 0:
            time.sleep(delay_s)

    return moved


def main() -> None:
    limits = PassLimits(**json.loads(sys.argv[1]))
    os.nice(_NICENESS)
    jobs: Queue[str] = Queue()
    threading.Thread(target=_read_jobs, args=(jobs,), daemon=True).start()
    moved = throttled(limits.bytes_per_second)
    while True:
        _answer(_outcome(CleanJob.from_json(jobs.get()), limits, moved))


def _outcome(job: CleanJob, limits: PassLimits, moved: Callable[[int], None]) -> PassReport | PassFailed:
    try:
        return run_pass(job, limits, _answer, moved)
    except DamagedSegmentError as error:
        return PassFailed(str(error), True, error.base_offset)
    except (CleanerError, ValueError) as error:
        return PassFailed(str(error), True)
    except (OSError, MemoryError) as error:
        return PassFailed(str(error) or "there is no memory left", False)


def _read_jobs(jobs: Queue[str]) -> None:
    # The log-storage sends a job when the one before it is answered: there is at most one here.
    for line in sys.stdin:
        jobs.put(line)
    os._exit(0)


def _answer(answer: Answer) -> None:
    print(answer_to_json(answer), flush=True)


if __name__ == "__main__":
    main()
