"""The consumer: records one by one, in lists, or as Arrow tables."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from time import monotonic
from typing import Any, Literal, Self

import pyarrow as pa

from highwater.client.cluster.bootstrap import DEFAULT_BOOTSTRAP
from highwater.client.cluster.cluster import Cluster
from highwater.client.cluster.offset_lookup import lookup_offsets
from highwater.client.cluster.tls import client_certificates
from highwater.client.cluster.tls_options import FilePath, SecurityProtocol
from highwater.client.cluster.token import client_token
from highwater.client.cluster.tracing import Tracing, tracing_of
from highwater.client.consumer.arguments import (
    Partition,
    offsets_to_commit,
    reset_timestamp_of,
    topic_names,
)
from highwater.client.consumer.consumer_record import TABLE_SCHEMA, TABLE_SCHEMA_WITH_HEADERS, ConsumerRecord
from highwater.client.consumer.corrupt_batches import CorruptBatches, OnCorrupt, PassedOver
from highwater.client.consumer.fetch_buffer import FetchBuffer
from highwater.client.consumer.fetch_session import FetcherSettings
from highwater.client.consumer.fetcher import Fetcher
from highwater.client.consumer.group_assignment import GroupAssignment, GroupSettings, RebalanceCallback
from highwater.client.consumer.options import check_options
from highwater.client.consumer.reader import Reader
from highwater.client.consumer.record_run import RecordRun
from highwater.client.consumer.seeking import Seeking
from highwater.client.exceptions import (
    ClientClosedError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    RequestTimedOutError,
)
from highwater.client.membership.words import Subscription
from highwater.client.topic_partition import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    OffsetAndTimestamp,
    TopicPartition,
)
from highwater.rpc.process import forking

_MAX_ROWS = 1 << 62
_LOOK_S = 0.5  # how often a wait for a position looks whether it is still worth it


class Consumer:
    """Reads partitions, each in its order: those that `assign` or `subscribe` say, or its share of a group.

        async with Consumer("events", bootstrap="127.0.0.1:9092", auto_offset_reset="earliest") as consumer:
            async for record in consumer:
                ...

    Args:
        topics: subscribed to at `start`.
        bootstrap: `host:port` or `unix:/path`, one or several (a list, or separated by commas).
        auto_offset_reset: where a partition without a position begins, and where one goes whose position is no longer
            in the log: `earliest`, `latest`, `error` (raise `OffsetOutOfRangeError`), or a timestamp in ms.
        fetch_min_bytes, fetch_max_wait_ms: a broker answers when it has so much, or after so long.
        fetch_max_bytes: of one answer, and of all that is buffered here, beside what paused partitions have.
        max_partition_fetch_bytes: of one partition in one answer; twice that may be buffered.
        max_poll_records: the default of `poll`.
        check_crcs: off only where speed matters more than finding bytes that were damaged on the way.
        on_corrupt: a batch that cannot be read raises `CorruptRecordError` (`error`), or is passed over whole (`skip`):
            a warning in the log has its offsets, and `passed_over` counts. A batch whose header cannot be trusted
            raises with `skip`, too, as nobody knows where the next one begins.
        include_headers: tables get a `headers` column; records always have their headers.
        max_block_ms: how long `start` may wait for a broker.
        tracing: where the spans of a share of its fetches go; None: as the environment says, or nowhere.
        group: the consumers of a group share the partitions of what they subscribe to, and what they have committed is
            where they begin. `auto_offset_reset` counts where nothing was committed. The other options below are of a
            group alone. Shares change, and callbacks are called, inside of polls.
        instance_id: makes a static member: one that is stopped and is back within the group's session timeout, under
            the same instance id, has the partitions that it had.
        assignor: `uniform` or `range`; None: the group's.
        pattern: a regular expression for whole names of topics, beside `topics`; topics that are made later, too.
        client_rack: where this consumer stands; partitions with a replica there are preferred.
        enable_auto_commit, auto_commit_interval_ms: a poll says that what was handed out before it is done, and commits
            that where the last commit is so long ago; so does giving a partition up, and `stop`. Off: see `commit`.
        max_poll_interval_ms: a member that does not poll for so long leaves, and the next poll raises
            `MaxPollIntervalExceededError`. Also how long `on_revoked` may take.
        on_assigned, on_revoked, on_lost: called with the partitions that were added; that are given up, when it
            returns; that are others' already. They may be coroutine functions, and commit and seek; but not poll, or
            stop it.
        security_protocol, ssl_ca_file, ssl_certificate_file, ssl_key_file: `SSL` for brokers that speak TLS, and files
            in PEM; None: what the environment says (`HIGHWATER_SECURITY_PROTOCOL`, `HIGHWATER_SSL_CA_FILE`, ...).
    """

    def __init__(
        self,
        *topics: str,
        bootstrap: str | Sequence[str] = DEFAULT_BOOTSTRAP,
        client_id: str = "highwater-consumer",
        auto_offset_reset: Literal["earliest", "latest", "error"] | int = "latest",
        fetch_min_bytes: int = 1,
        fetch_max_wait_ms: int = 500,
        fetch_max_bytes: int = 50 * 1024 * 1024,
        max_partition_fetch_bytes: int = 1024 * 1024,
        max_poll_records: int = 500,
        check_crcs: bool = True,
        on_corrupt: OnCorrupt = "error",
        include_headers: bool = False,
        max_block_ms: float = 60_000,
        request_timeout_ms: float = 30_000,
        retry_backoff_ms: float = 50,
        retry_backoff_max_ms: float = 1000,
        metadata_max_age_ms: float = 300_000,
        tracing: Tracing | None = None,
        group: str | None = None,
        instance_id: str | None = None,
        assignor: Literal["uniform", "range"] | None = None,
        pattern: str | None = None,
        client_rack: str | None = None,
        enable_auto_commit: bool = True,
        auto_commit_interval_ms: float = 5000,
        max_poll_interval_ms: int = 300_000,
        on_assigned: RebalanceCallback | None = None,
        on_revoked: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
        security_protocol: SecurityProtocol | None = None,
        ssl_ca_file: FilePath | None = None,
        ssl_certificate_file: FilePath | None = None,
        ssl_key_file: FilePath | None = None,
        token: str | None = None,
        token_file: FilePath | None = None,
    ) -> None:
        certificates, shown = client_certificates(locals()), client_token(locals())
        check_options(locals())
        self.client_id = client_id
        self._topics = topic_names(topics)
        self._max_poll_records = max_poll_records
        self._check_crcs = check_crcs
        self._corrupt = self._corrupt_batches(on_corrupt)
        self._include_headers = include_headers
        self._reset_timestamp = reset_timestamp_of(auto_offset_reset)
        self._cluster = Cluster(
            bootstrap,
            client_id=client_id,
            request_timeout_ms=request_timeout_ms,
            max_age_ms=metadata_max_age_ms,
            max_block_ms=max_block_ms,
            on_change=self._metadata_changed,
            certificates=certificates,
            token=shown,
            tracing=tracing_of(tracing),
        )
        settings = FetcherSettings(
            client_id=client_id,
            min_bytes=fetch_min_bytes,
            max_wait_ms=fetch_max_wait_ms,
            max_bytes=fetch_max_bytes,
            max_partition_bytes=max_partition_fetch_bytes,
            request_timeout_ms=request_timeout_ms,
            backoff_ms=retry_backoff_ms,
            backoff_max_ms=retry_backoff_max_ms,
            reset_timestamp=self._reset_timestamp,
        )
        self._changed = asyncio.Event()
        self._subscribed: dict[str, int] = {}  # topic -> how many of its partitions were assigned
        self._fetcher = Fetcher(self._cluster, settings, self._changed.set, self._was_reset)
        self._group: GroupAssignment | None = None
        if group is not None:
            self._group = GroupAssignment(
                self._cluster,
                self._fetcher,
                GroupSettings(
                    group,
                    instance_id or "",
                    enable_auto_commit,
                    auto_commit_interval_ms,
                    max_poll_interval_ms,
                    on_assigned,
                    on_revoked,
                    on_lost,
                ),
                Subscription(
                    self._topics, pattern or "", assignor or "", max_poll_interval_ms, client_rack or "", client_id
                ),
                reset_timestamp=self._reset_timestamp,
                new_buffer=self._empty_buffer,
                on_change=self._changed.set,
            )
        self._reader = Reader(
            self._fetcher,
            self._group,
            self._changed,
            check_running=self._check_running,
            is_running=lambda: self._running,
        )
        self._running = False
        self._stopped = False

    # Life

    async def start(self) -> Self:
        """Connects and subscribes. Raises `NetworkError` where no broker answers within `max_block_ms`, and
        `UnknownTopicError`; it may then be called again. With a group it joins, and topics that do not exist are waited
        for: the first partitions come with a poll."""
        if self._stopped:
            raise ClientClosedError("this consumer was stopped; make another")
        if not self._running:
            self._running = True
            self._cluster.track(self._topics)  # known with the first answer, not with the next one
            try:
                await self._cluster.start()
                if self._topics and self._group is None:
                    await self.subscribe(self._topics)
                self._cluster.track(partition.topic for partition in self._fetcher.buffers)
            except BaseException:
                self._running = False
                await self._cluster.close()
                raise
            self._fetcher.start()
            if self._group is not None:
                self._group.start()
        return self

    async def stop(self) -> None:
        """Ends it. A member of a group first gives up its partitions, as if it had to, and leaves."""
        await self._stop(commit=True)

    async def _stop(self, *, commit: bool) -> None:
        """`commit`: what was handed out last is done."""
        if not self._running or forking.refusal() is not None:
            return
        if self._group is not None:
            self._group.check_no_callback("stop")
        try:
            if self._group is not None:
                await self._group.close(commit=commit)
        finally:
            self._running = False
            self._stopped = True
            await self._fetcher.close()
            await self._cluster.close()
            self._changed.set()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *exception: object) -> None:
        # After an exception nobody knows what of the last records is done: they are read again.
        await self._stop(commit=exception[0] is None)

    def _metadata_changed(self) -> None:
        for topic, known in self._subscribed.items():
            info = self._cluster.metadata.topic(topic)
            if info is not None and len(info.partitions) > known:
                self._add_partitions(topic, len(info.partitions))
        self._fetcher.metadata_changed()

    def _add_partitions(self, topic: str, total: int) -> None:
        """Adds partitions to a subscription. They begin with their first record, whatever `auto_offset_reset` says:
        nothing in them is older than the subscription, and what came before they were noticed would be passed over
        otherwise."""
        added = [TopicPartition(topic, index) for index in range(self._subscribed[topic], total)]
        self._subscribed[topic] = total
        self._fetcher.add(self._new_buffer(partition, EARLIEST_TIMESTAMP) for partition in added)

    def _check_running(self) -> None:
        self._cluster.check_process()
        if not self._running:
            state = "was stopped" if self._stopped else "is not started: await start(), or use `async with`"
            raise ClientClosedError(f"the consumer {state}")

    # What is read

    def assign(self, partitions: Iterable[Partition]) -> None:
        """Reads these partitions and no others. Those that were assigned before keep their positions."""
        if self._group is not None:
            raise InvalidRequestError("partitions of a group are shared out by its coordinator: subscribe, or no group")
        self._subscribed = {}
        wanted = list(dict.fromkeys(TopicPartition(*partition) for partition in partitions))
        self._cluster.track(partition.topic for partition in wanted)
        kept = self._fetcher.buffers
        reset = self._reset_timestamp
        self._fetcher.assign([kept.get(partition) or self._new_buffer(partition, reset) for partition in wanted])

    async def subscribe(self, topics: Iterable[str] = (), pattern: str | None = None) -> None:
        """`assign` of all partitions of these topics, and of those that are added later: they are noticed within
        `metadata_max_age_ms` and read from their first record. Raises `UnknownTopicError`.

        A member of a group subscribes to these topics, and those that `pattern` matches, instead of what it did before;
        the coordinator then says what its share is."""
        self._check_running()
        topics = topic_names(topics)
        if self._group is not None:
            self._group.subscribe(topics, pattern or "")
            return
        if pattern is not None:
            raise InvalidRequestError("a pattern is resolved by the coordinator of a group: Consumer(..., group=...)")
        infos = [await self._cluster.topic(topic, self._cluster.request_timeout_s) for topic in topics]
        self.assign(TopicPartition(info.topic, index) for info in infos for index in range(len(info.partitions)))
        self._subscribed = {info.topic: len(info.partitions) for info in infos}

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self._fetcher.buffers)

    def pause(self, *partitions: Partition) -> None:
        """Hands out and fetches nothing of these until `resume`; what is buffered stays."""
        for buffer in self._buffers(partitions):
            buffer.pause()

    def resume(self, *partitions: Partition) -> None:
        for buffer in self._buffers(partitions):
            buffer.resume()
        self._changed.set()
        self._fetcher.wake()

    def _new_buffer(self, partition: TopicPartition, reset_timestamp: int | None) -> FetchBuffer:
        buffer = self._empty_buffer(partition)
        if reset_timestamp is not None:
            buffer.reset(reset_timestamp)
        else:
            where = f"{partition.topic}-{partition.partition}"
            buffer.fail(OffsetOutOfRangeError(f"{where} has no position and auto_offset_reset is error; seek first"))
        return buffer

    def _was_reset(self, partition: TopicPartition) -> None:
        if self._group is not None:
            self._group.touched(partition)

    def _empty_buffer(self, partition: TopicPartition) -> FetchBuffer:
        return FetchBuffer(partition, self._fetcher.changed, check_crcs=self._check_crcs, corrupt=self._corrupt)

    def _corrupt_batches(self, on_corrupt: OnCorrupt) -> CorruptBatches:
        return CorruptBatches(on_corrupt)

    @property
    def passed_over(self) -> PassedOver:
        """Batches that could not be read since the start, and their offsets: with `on_corrupt="skip"`."""
        return self._corrupt.passed_over

    def _buffers(self, partitions: Iterable[Partition]) -> list[FetchBuffer]:
        """Buffers of these partitions; none named: of all."""
        named = [TopicPartition(*partition) for partition in partitions]
        for partition in named:
            if partition not in self._fetcher.buffers:
                raise InvalidRequestError(f"{partition.topic}-{partition.partition} is not assigned to this consumer")
        return [self._fetcher.buffers[partition] for partition in named or self._fetcher.buffers]

    # Positions

    def seek(self, partition: Partition, offset: int) -> None:
        """The next record handed out of this partition is the one at `offset`, or the first after it."""
        if offset < 0:
            raise InvalidRequestError(f"offset {offset} is negative; use seek_to_beginning or seek_to_end")
        (buffer,) = self._buffers([partition])
        buffer.seek(offset)
        self._reader.touched(buffer)
        self._fetcher.wake()

    def seek_to_beginning(self, *partitions: Partition) -> Seeking:
        """Goes to the first record there is; none named: all assigned partitions. As with `seek`, what is handed out
        from now on comes from there; await the result to know that the positions have been looked up."""
        return self._seek_all(partitions, EARLIEST_TIMESTAMP)

    def seek_to_end(self, *partitions: Partition) -> Seeking:
        """Goes to what comes next, the high watermark as it is when the partition's leader is asked; none named: all
        assigned partitions. What is sent before that is passed over: await the result to know that it is behind."""
        return self._seek_all(partitions, LATEST_TIMESTAMP)

    def _seek_all(self, partitions: Sequence[Partition], timestamp: int) -> Seeking:
        self._check_running()
        buffers = self._buffers(partitions)
        for buffer in buffers:
            buffer.reset(timestamp)
            self._reader.touched(buffer)
        self._fetcher.wake()
        return Seeking(self._looked_up, [(buffer, buffer.generation) for buffer in buffers])

    async def _looked_up(self, seeking: Sequence[tuple[FetchBuffer, int]]) -> None:
        """Waits until each has a position, or was sent elsewhere meanwhile."""
        deadline = monotonic() + self._cluster.request_timeout_s
        for buffer, generation in seeking:
            # Found is a seek, one generation later.
            while buffer.position is None and buffer.generation == generation:
                self._check_running()
                if buffer.error is not None:
                    raise buffer.error
                if monotonic() > deadline:
                    where = f"{buffer.partition.topic}-{buffer.partition.partition}"
                    raise RequestTimedOutError(
                        f"the position of {where} could not be looked up in {self._cluster.request_timeout_s:g} s: has "
                        "it a leader? The seek is still being tried"
                    )
                await self._reader.changed(min(_LOOK_S, self._cluster.request_timeout_s))

    async def position(self, partition: Partition) -> int:
        """Offset of the next record; waits where it is still being looked up. Raises what `poll` would raise."""
        while True:
            self._check_running()
            (buffer,) = self._buffers([partition])  # a group may have taken it away, or given it anew
            if (position := buffer.position) is not None:
                return position
            if buffer.error is not None:
                raise buffer.error
            await self._reader.changed(self._cluster.request_timeout_s)

    async def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after each time; None: there is none. The partitions need not be assigned."""
        wanted = {TopicPartition(*partition): timestamp for partition, timestamp in timestamps_ms.items()}
        found = await self._lookup(wanted)
        return {partition: answer if answer.offset >= 0 else None for partition, answer in found.items()}

    async def beginning_offsets(self, partitions: Iterable[Partition]) -> dict[TopicPartition, int]:
        """Offsets of the first record there is. The partitions need not be assigned."""
        found = await self._lookup({TopicPartition(*partition): EARLIEST_TIMESTAMP for partition in partitions})
        return {partition: answer.offset for partition, answer in found.items()}

    async def end_offsets(self, partitions: Iterable[Partition]) -> dict[TopicPartition, int]:
        """The high watermarks: of the record that comes next. The partitions need not be assigned."""
        found = await self._lookup({TopicPartition(*partition): LATEST_TIMESTAMP for partition in partitions})
        return {partition: answer.offset for partition, answer in found.items()}

    async def lag(self) -> dict[TopicPartition, int]:
        """Asks how far each assigned partition is behind its high watermark, in offsets: that is more than its records
        where compaction has left gaps, or transactions their markers. Those whose position is still being looked up are
        not in it."""
        positions = {one: buffer.position for one, buffer in self._fetcher.buffers.items()}
        known = {one: position for one, position in positions.items() if position is not None}
        ends = await self.end_offsets(known)
        return {one: max(0, ends[one] - position) for one, position in known.items()}

    def metrics(self) -> dict[str, float]:
        """Statistics since the start, and means and maxima of the last 30 to 60 seconds, under Kafka's names: see
        docs/metrics.md. Times are in ms, sizes in bytes; lags are as the brokers have told of high watermarks."""
        return self._fetcher.statistics.metrics(list(self._fetcher.buffers.values()))

    # Commits

    async def commit(self, done: Mapping[Partition, int] | pa.Table | pa.RecordBatch | Any = None) -> None:
        """Keeps how far the group has read; what is kept is where the next owner of a partition begins. Retries for
        `request_timeout_ms`.

        Args:
            done: None: all that was handed out. A table (or what else has `__arrow_c_stream__`) with the columns topic,
                partition and offset, as `poll_table` gives it: what stands in it is done, and what stands before it in
                its partitions. Or by partition the offset of the next record to be read.

        Raises:
            CommitFailedError: partitions are other members' by now; what could be kept was.
            HighwaterError: the coordinator refuses it, or stayed out of reach: it may or may not have been kept.
        """
        self._check_running()
        if self._group is None:
            raise InvalidRequestError("offsets are committed for a group: Consumer(..., group=...)")
        await self._group.commit(None if done is None else offsets_to_commit(done))

    async def _lookup(self, timestamps: dict[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp]:
        self._check_running()
        return await lookup_offsets(self._cluster, timestamps, self._cluster.request_timeout_s)

    # Reading

    async def poll(self, timeout_ms: float = 1000, max_records: int | None = None) -> list[ConsumerRecord]:
        """Hands out the records at hand, up to `max_records`, each partition's in order. Empty after `timeout_ms`.

        Raises:
            OffsetOutOfRangeError: the position is not in the log, and `auto_offset_reset` is `error`.
            CorruptRecordError: what stands at the position is damaged, and `on_corrupt` is `error`; names topic,
                partition and offsets.
            HighwaterError: the brokers refused the fetch. All three come again until a `seek`.
        """
        return await self._reader.records(self._limit(max_records, self._max_poll_records), timeout_ms)

    async def poll_batches(self, timeout_ms: float = 1000, max_records: int | None = None) -> list[pa.RecordBatch]:
        """All that is buffered, up to `max_records`: one Arrow batch for each batch of the log, without copying.

        Columns topic: string, partition: int32, offset: int64, timestamp: timestamp[ms, UTC], key, value: binary
        [, headers: list<struct<key: string, value: binary>>]. Empty after `timeout_ms`. Raises as `poll`.
        """
        limit = self._limit(max_records, _MAX_ROWS)
        return await self._reader.batches(limit, timeout_ms, include_headers=self._include_headers)

    async def poll_table(self, timeout_ms: float = 1000, max_records: int | None = None) -> pa.Table:
        """`poll_batches` as one table; without rows after `timeout_ms`."""
        schema = TABLE_SCHEMA_WITH_HEADERS if self._include_headers else TABLE_SCHEMA
        return pa.Table.from_batches(await self.poll_batches(timeout_ms, max_records), schema)

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """Records for ever, until the consumer is stopped. Leaving the loop loses none: the position stands behind the
        last record that was given, and a commit keeps that one and those before it."""
        while self._running and (run := await self.next_run()) is not None:
            for record in run:
                yield record

    async def next_run(self) -> RecordRun | None:
        """The next records of one partition, to be given one by one: each is handed out when it is taken. None: the
        consumer was stopped meanwhile. Raises as `poll`."""
        return await self._reader.run()

    @property
    def is_stopped(self) -> bool:
        return self._stopped

    @staticmethod
    def _limit(max_records: int | None, default: int) -> int:
        if max_records is None:
            return default
        if max_records < 1:
            raise InvalidRequestError(f"max_records is {max_records}; at least one is to be asked for")
        return max_records
