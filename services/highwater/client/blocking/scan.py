"""The blocking scan: a bounded read of a topic that Polars, DuckDB, pandas and pyarrow take as it is."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from inspect import signature
from typing import Unpack

import pyarrow as pa

from highwater.client.blocking.client import BlockingClient, with_the_signature_of
from highwater.client.blocking.event_loop_thread import event_loop_thread
from highwater.client.blocking.options import ScanOptions
from highwater.client.cluster.bootstrap import DEFAULT_BOOTSTRAP
from highwater.client.consumer.corrupt_batches import PassedOver
from highwater.client.scan import scan as async_scan
from highwater.client.scan.bounds import OffsetRange
from highwater.client.scan.scan_reader import ScanReader
from highwater.client.topic_partition import TopicPartition


@with_the_signature_of(async_scan.Scan)
class Scan(BlockingClient[async_scan.Scan]):
    """See `highwater.client.Scan`. A source of Arrow's C stream; iterate it for batches. Each reading begins anew, and
    one that is dropped half way gives its connections back by itself."""

    def __init__(
        self, topic: str, *, bootstrap: str | Sequence[str] = DEFAULT_BOOTSTRAP, **options: Unpack[ScanOptions]
    ) -> None:
        super().__init__(async_scan.Scan(topic, bootstrap=bootstrap, **options))

    @property
    def schema(self) -> pa.Schema:
        return self._client.schema

    @property
    def ranges(self) -> Mapping[TopicPartition, OffsetRange]:
        """The offsets that are read of each partition."""
        self._ensure_started()
        return self._client.ranges

    @property
    def passed_over(self) -> PassedOver:
        """Batches that no reading could read, and their offsets: with `on_corrupt="skip"`."""
        return self._client.passed_over

    def close(self) -> None:
        """Ends the readings that are under way; the same as `stop`."""
        self.stop()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """One reading. Raises as that of `highwater.client.Scan`."""
        self._ensure_started()
        reader, loop = self._client.reader(), event_loop_thread()
        process_id = os.getpid()
        try:
            loop.run(reader.start())
            while taken := loop.run(reader.take()):
                yield from reader.decode(taken)  # in this thread: the event loop goes on fetching
        except GeneratorExit:
            if process_id == os.getpid():
                _abandon(reader)
            raise
        except BaseException:
            loop.run(reader.close())
            raise
        loop.run(reader.close())

    def to_reader(self) -> pa.RecordBatchReader:
        """One reading, as pyarrow's reader."""
        return pa.RecordBatchReader.from_batches(self.schema, iter(self))

    def to_table(self) -> pa.Table:
        """All of it as one table, in memory."""
        return pa.Table.from_batches(self, self.schema)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """One reading, which begins when the stream is asked for its first batch."""
        return self.to_reader().__arrow_c_stream__(requested_schema)


def _abandon(reader: ScanReader) -> None:
    """Closes a reading that nobody wants any more, without waiting: whoever drops it may be the garbage collector, on
    any thread, the event loop's own among them, or the end of the interpreter, which has stopped that thread."""
    if not sys.is_finalizing():
        asyncio.run_coroutine_threadsafe(reader.close(), event_loop_thread().loop)


def scan(topic: str, *, bootstrap: str | Sequence[str] = DEFAULT_BOOTSTRAP, **options: Unpack[ScanOptions]) -> Scan:
    """Begins a bounded read: where it starts and ends is fixed when this returns.

        polars.DataFrame(highwater.scan("events", start="-1h", columns=["key", "value"]))

    Takes and raises what `highwater.client.Scan` and its `start` do.
    """
    return Scan(topic, bootstrap=bootstrap, **options).start()


scan.__signature__ = signature(async_scan.Scan)  # type: ignore[attr-defined]
