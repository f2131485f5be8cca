"""A bounded read of a topic, as Arrow batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from time import time
from typing import Self
from weakref import WeakSet

import pyarrow as pa

from highwater.client.cluster.bootstrap import DEFAULT_BOOTSTRAP, bootstrap_addresses
from highwater.client.cluster.tls import client_certificates
from highwater.client.cluster.tls_options import FilePath, SecurityProtocol
from highwater.client.cluster.token import client_token
from highwater.client.cluster.token_options import SecurityOptions
from highwater.client.consumer.corrupt_batches import CorruptBatches, OnCorrupt, PassedOver
from highwater.client.exceptions import ClientClosedError
from highwater.client.scan.bounds import OffsetRange, decided, partitions_read, times_asked
from highwater.client.scan.columns import scan_schema
from highwater.client.scan.positions import Positions, WrittenPositions, parse_positions
from highwater.client.scan.range_consumer import RangeConsumer
from highwater.client.scan.scan_progress import ProgressCallback
from highwater.client.scan.scan_reader import ScanPlan, ScanReader
from highwater.client.topic_partition import TopicPartition


class Scan:
    """The records of a topic between two positions. Both are fixed by `start`: every reading gives the same offsets,
    whatever is written meanwhile.

        async with Scan("events", start="-1h", columns=["key", "value"]) as scan:
            async for batch in scan:
                ...

    A scan holds connections only while it is read, and may be read several times. The batches of a partition come in
    its order, those of several as they arrive.

    Args:
        start, end: an offset, `earliest`, `latest`, `latest-1000`, a time before now (`-1h`), an ISO time or a
            `datetime`; or a mapping of partitions to these. `end` is the first that is not read, and never behind the
            end of the log at the time of `start`.
        partitions: those to read; None: those that a mapping names, else all.
        columns: of topic, partition, offset, timestamp, key, value and headers; None: all.
        progress: True shows a bar where `rich` is installed; or a function that gets a `ScanProgress` again and again.
        fail_on_data_loss: False goes on behind offsets that retention has deleted before they were read.
        timeout_ms: how long nothing may come before the read fails.
        fetch_max_bytes: of one answer of a broker, and of all that is buffered here.
        max_partition_fetch_bytes: of one partition in one answer; twice that may be buffered.
        check_crcs: off only where speed matters more than finding bytes that were damaged on the way.
        on_corrupt: a batch that cannot be read raises `CorruptRecordError` (`error`), or is passed over whole (`skip`),
            as the `Consumer` does.
        max_block_ms: how long `start` may wait for a broker.
        security_protocol, ssl_ca_file, ssl_certificate_file, ssl_key_file: `SSL` for brokers that speak TLS, and files
            in PEM; None: what the environment says (`HIGHWATER_SECURITY_PROTOCOL`, `HIGHWATER_SSL_CA_FILE`, ...).
    """

    def __init__(
        self,
        topic: str,
        *,
        start: WrittenPositions = "earliest",
        end: WrittenPositions = "latest",
        partitions: Iterable[int] | None = None,
        columns: Sequence[str] | None = None,
        bootstrap: str | Sequence[str] = DEFAULT_BOOTSTRAP,
        progress: bool | ProgressCallback = False,
        fail_on_data_loss: bool = True,
        timeout_ms: float = 60_000,
        client_id: str = "highwater-scan",
        fetch_max_bytes: int = 32 * 1024 * 1024,
        max_partition_fetch_bytes: int = 4 * 1024 * 1024,
        check_crcs: bool = True,
        on_corrupt: OnCorrupt = "error",
        max_block_ms: float = 60_000,
        request_timeout_ms: float = 30_000,
        security_protocol: SecurityProtocol | None = None,
        ssl_ca_file: FilePath | None = None,
        ssl_certificate_file: FilePath | None = None,
        ssl_key_file: FilePath | None = None,
        token: str | None = None,
        token_file: FilePath | None = None,
    ) -> None:
        self._security = SecurityOptions(
            security_protocol=security_protocol,
            ssl_ca_file=ssl_ca_file,
            ssl_certificate_file=ssl_certificate_file,
            ssl_key_file=ssl_key_file,
            token=token,
            token_file=token_file,
        )
        # What is wrong with them is said here.
        client_certificates(self._security)
        client_token(self._security)
        self.schema: pa.Schema = scan_schema(columns)
        self._topic = topic
        self._start = parse_positions("start", start)
        self._end = parse_positions("end", end)
        self._partitions = None if partitions is None else tuple(partitions)
        self._bootstrap = bootstrap_addresses(bootstrap)
        self._progress = progress
        self._fail_on_data_loss = fail_on_data_loss
        self._timeout_ms = timeout_ms
        self._client_id = client_id
        self._fetch_max_bytes = fetch_max_bytes
        self._max_partition_fetch_bytes = max_partition_fetch_bytes
        self._check_crcs = check_crcs
        self._corrupt = CorruptBatches(on_corrupt)
        self._max_block_ms = max_block_ms
        self._request_timeout_ms = request_timeout_ms
        self._plan: ScanPlan | None = None
        self._stopped = False
        self._readers: WeakSet[ScanReader] = WeakSet()

    # Life

    async def start(self) -> Self:
        """Fixes what is read. Does nothing the second time.

        Raises:
            UnknownTopicError: there is no such topic, or partition.
            InvalidRequestError: `start`, `end` and `partitions` name different ones.
            OffsetOutOfRangeError: an offset to start at is no longer in the log, and `fail_on_data_loss`.
            NetworkError: no broker answers within `max_block_ms`. It may then be called again.
        """
        self._check_not_stopped()
        if self._plan is None:
            consumer = self._consumer()
            try:
                await consumer.start()
                self._plan = await self._planned(consumer)
            finally:
                await consumer.stop()
        return self

    async def stop(self) -> None:
        """Ends the readings that are under way: they raise `ClientClosedError`."""
        self._stopped = True
        for reader in list(self._readers):
            await reader.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()

    async def _planned(self, consumer: RangeConsumer) -> ScanPlan:
        now_ms = int(time() * 1000)
        info = await consumer.topic(self._topic)
        read = partitions_read(self._topic, len(info.partitions), self._partitions, self._start, self._end)
        logs = await consumer.log_ends(TopicPartition(self._topic, partition) for partition in read)
        found = [await self._offsets_of_times(consumer, each, read, now_ms) for each in (self._start, self._end)]
        ranges = decided(
            self._topic,
            read,
            logs,
            (self._start, found[0]),
            (self._end, found[1]),
            fail_on_data_loss=self._fail_on_data_loss,
        )
        return ScanPlan(
            self._topic,
            info.topic_id,
            ranges,
            self.schema,
            self._timeout_ms / 1000,
            self._fail_on_data_loss,
            self._progress,
        )

    async def _offsets_of_times(
        self, consumer: RangeConsumer, positions: Positions, read: Iterable[int], now_ms: int
    ) -> dict[int, int | None]:
        asked = times_asked(positions, read, now_ms)
        if not asked:
            return {}
        found = await consumer.offsets_for_times(
            {TopicPartition(self._topic, partition): time_ms for partition, time_ms in asked.items()}
        )
        return {one.partition: None if each is None else each.offset for one, each in found.items()}

    def _consumer(self) -> RangeConsumer:
        return RangeConsumer(
            self._bootstrap,
            client_id=self._client_id,
            fetch_max_bytes=self._fetch_max_bytes,
            max_partition_fetch_bytes=self._max_partition_fetch_bytes,
            check_crcs=self._check_crcs,
            corrupt=self._corrupt,
            max_block_ms=self._max_block_ms,
            request_timeout_ms=self._request_timeout_ms,
            **self._security,
        )

    def _check_not_stopped(self) -> None:
        if self._stopped:
            raise ClientClosedError("this scan was stopped; make another")

    # Reading

    @property
    def ranges(self) -> Mapping[TopicPartition, OffsetRange]:
        """The offsets that are read of each partition. Raises `ClientClosedError` before `start`."""
        return {TopicPartition(self._topic, partition): each for partition, each in self._fixed().ranges.items()}

    @property
    def passed_over(self) -> PassedOver:
        """Batches that no reading could read, and their offsets: with `on_corrupt="skip"`."""
        return self._corrupt.passed_over

    def reader(self) -> ScanReader:
        """A reading that has not begun. Whoever asks for one closes it."""
        self._check_not_stopped()
        reader = ScanReader(self._fixed(), self._consumer())
        self._readers.add(reader)
        return reader

    async def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        """One reading, as batches of `schema`. Leaving the loop early: `aclose` the iterator, or `stop`, to give its
        connections back at once.

        Raises:
            OffsetOutOfRangeError: retention has deleted some of it before it was read, and `fail_on_data_loss`.
            UnknownTopicError: the topic was deleted, or made anew.
            LeaderNotAvailableError, RequestTimedOutError: nothing has come for `timeout_ms`.
            CorruptRecordError: a batch is damaged, and `on_corrupt` is `error`; names topic, partition and offsets.
        """
        reader = self.reader()
        try:
            await reader.start()
            while taken := await reader.take():
                for batch in reader.decode(taken):
                    yield batch
                    await asyncio.sleep(0)  # fetching goes on beside a caller that only reads
        finally:
            await reader.close()

    async def to_table(self) -> pa.Table:
        """All of it as one table, in memory."""
        return pa.Table.from_batches([batch async for batch in self], self.schema)

    def _fixed(self) -> ScanPlan:
        if self._plan is None:
            raise ClientClosedError("the scan is not started: await start(), or use `async with`")
        return self._plan
