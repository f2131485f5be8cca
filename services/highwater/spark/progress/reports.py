"""Tasks tell the driver how far they are, where it listens: a datagram a quarter second, and at each twentieth of a
range, to an address that stands in the job's local properties. Nothing waits for it, and nothing fails where it is lost
or nobody listens.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from time import monotonic

import pyarrow as pa
from pyspark import TaskContext

from highwater.spark.offsets.ranges import OffsetRange
from highwater.spark.progress.read_progress import LISTENER_PROPERTY, RangeOfRead, RangeReport, encode_report

REPORT_INTERVAL_S = 0.25
# A task that has read this share of its range since says so before its time: it may stand still from here on, until
# what comes after it takes more.
REPORT_SHARE = 0.05


class Reporter:
    """Sends reports of one task."""

    def __init__(self, listener: str, stage_id: int) -> None:
        """Raises `OSError` or `ValueError` for an address that is none."""
        self._token, _, address = listener.partition("@")
        host, _, port = address.rpartition(":")
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_DGRAM)[0]
        self._address = found[4]
        self._socket = socket.socket(found[0], found[1])
        self._socket.setblocking(False)
        self._stage_id = stage_id

    def report(self, part: RangeOfRead, done: int) -> None:
        with contextlib.suppress(OSError):
            self._socket.sendto(encode_report(self._token, RangeReport(part, self._stage_id, done)), self._address)

    def close(self) -> None:
        self._socket.close()


def reported(batches: Iterator[pa.RecordBatch], one: OffsetRange, part: RangeOfRead) -> Iterator[pa.RecordBatch]:
    """The batches of the range as they are, and reports of them where the driver listens."""
    reporter = _reporter()
    return batches if reporter is None else _reporting(batches, one, part, reporter)


def _reporting(
    batches: Iterator[pa.RecordBatch], one: OffsetRange, part: RangeOfRead, reporter: Reporter
) -> Iterator[pa.RecordBatch]:
    done = said = 0
    next_report = monotonic() + REPORT_INTERVAL_S
    try:
        reporter.report(part, 0)
        for batch in batches:
            yield batch
            done += batch.num_rows
            if (now := monotonic()) >= next_report or done - said >= REPORT_SHARE * one.size:
                next_report, said = now + REPORT_INTERVAL_S, done
                reporter.report(part, done)
        reporter.report(part, one.size)
    finally:
        reporter.close()


def _reporter() -> Reporter | None:
    task = TaskContext.get()
    listener = None if task is None else task.getLocalProperty(LISTENER_PROPERTY)
    if task is None or not listener:
        return None
    try:
        return Reporter(listener, task.stageId())
    except (OSError, ValueError):
        return None
