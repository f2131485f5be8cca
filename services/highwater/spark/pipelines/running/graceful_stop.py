"""A graceful stop of a streaming query: after SIGTERM the micro-batch that has begun ends, and no other begins."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from typing import TYPE_CHECKING, Any

from highwater.spark.pipelines.command import termination

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery

_POLL_S = 0.3

MicroBatch = Callable[["DataFrame", int], None]


class _StoppedError(Exception):
    """Raised for a micro-batch that would begin after SIGTERM: Spark runs it at the next start."""


class StoppableForeachBatch:
    """A function for `foreachBatch` that begins no micro-batch after SIGTERM."""

    def __init__(self, each: MicroBatch) -> None:
        self._each = each
        self.refused = False

    def __call__(self, frame: DataFrame, batch: int) -> None:
        if termination.asked():
            self.refused = True
            raise _StoppedError
        self._each(frame, batch)


def drain(query: StreamingQuery, batches: StoppableForeachBatch | None) -> None:
    """Waits, after SIGTERM, until the micro-batch that has begun has ended."""
    begun = query.lastProgress
    while query.isActive and query.status["isTriggerActive"]:
        if batches is None and _number(query.lastProgress) > _number(begun):
            return
        Event().wait(_POLL_S)


def _number(progress: Any) -> int:
    return -1 if progress is None else int(progress["batchId"])
