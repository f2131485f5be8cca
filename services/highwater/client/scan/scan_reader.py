"""One reading of a scan's ranges, from its first record to its last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from highwater.client.exceptions import ClientClosedError
from highwater.client.scan.bounds import OffsetRange
from highwater.client.scan.columns import columns_of_batch, columns_of_header, header_is_enough, joined
from highwater.client.scan.range_consumer import RangeConsumer, TakenBatch
from highwater.client.scan.scan_progress import (
    NoDisplay,
    ProgressCallback,
    ProgressDisplay,
    ScanProgress,
    progress_display,
)


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """A scan whose ends are fixed: all that its readings need."""

    topic: str
    topic_id: bytes
    ranges: Mapping[int, OffsetRange]
    schema: pa.Schema
    timeout_s: float
    fail_on_data_loss: bool
    progress: bool | ProgressCallback


class ScanReader:
    """Holds connections from `start` to `close`. `take` runs on the event loop; `decode` in any thread, so that
    fetching goes on beside it."""

    def __init__(self, plan: ScanPlan, consumer: RangeConsumer) -> None:
        self._plan = plan
        self._consumer = consumer
        self._display: ProgressDisplay = NoDisplay()
        self._closed = False
        self._total = sum(map(len, plan.ranges.values()))
        self._records = 0
        self._bytes = 0

    async def start(self) -> None:
        """Raises `NetworkError` where no broker answers."""
        plan = self._plan
        self._consumer.read(
            plan.topic, plan.topic_id, plan.ranges, timeout_s=plan.timeout_s, fail_on_data_loss=plan.fail_on_data_loss
        )
        await self._consumer.start()
        self._display = progress_display(plan.progress, plan.topic)

    async def take(self) -> list[TakenBatch]:
        """Batches to `decode`; empty: there are no more. Raises as `RangeConsumer.take`, and `ClientClosedError`."""
        if self._closed:
            raise ClientClosedError("the scan was stopped while it was being read")
        return await self._consumer.take()

    def decode(self, taken: Sequence[TakenBatch]) -> Iterator[pa.RecordBatch]:
        """The records of batches, in order. Raises `CorruptRecordError`."""
        yield from joined(found for one in taken if (found := self._columns(one)) is not None)
        self._display.show(ScanProgress(self._records, self._bytes, self._total - self._consumer.left(), self._total))

    def _columns(self, taken: TakenBatch) -> pa.RecordBatch | None:
        """None: the batch cannot be read, and is passed over."""
        header, schema = taken.fetched.header, self._plan.schema
        where = (*taken.buffer.partition, taken.start, taken.until)
        if header_is_enough(header, schema):
            if not taken.buffer.check(taken.fetched):
                return None
            found = columns_of_header(header, schema, *where)
        else:
            batch = taken.buffer.decoded(taken.fetched)
            if batch is None:
                return None
            found = columns_of_batch(batch, schema, *where)
        self._records += found.num_rows
        self._bytes += header.size_bytes
        return found

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._display.close()
            await self._consumer.stop()
