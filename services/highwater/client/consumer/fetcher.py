"""Keeps the buffers of a consumer filled: one FetchStream a leader, the next request sent while the last is decoded.

As in the sender, one plain function (`_pass`) looks at everything when something changed. A leader has one request
waiting; a second one is sent only to end a wait for data at once, when another partition has become hungry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import random
from time import monotonic

from highwater.client.cluster.cluster import Cluster
from highwater.client.cluster.connection import Connection
from highwater.client.cluster.metadata import NO_LEADER
from highwater.client.cluster.offset_lookup import lookup_offsets
from highwater.client.consumer.fetch_buffer import FetchBuffer
from highwater.client.exceptions import (
    HighwaterError,
    OffsetOutOfRangeError,
    RetriableError,
    UnknownTopicError,
    error_for,
)
from highwater.client.topic_partition import LATEST_TIMESTAMP, OffsetAndTimestamp, TopicPartition
from highwater.errors import ErrorCode
from highwater.rpc.errors import from_proto
from highwater.supervision import TaskSupervisor
from highwater.telemetry.log import get_logger
from highwater.v1 import broker_pb2, common_pb2

_log = get_logger(__name__)

SWEEP_MS = 250.0
# For one round of looking up positions; then those that have an answer go on and the others are asked again.
LOOKUP_S = 5.0


@dataclass(frozen=True, slots=True)
class FetcherSettings:
    client_id: str
    min_bytes: int
    max_wait_ms: int
    max_bytes: int
    max_partition_bytes: int
    request_timeout_ms: float
    backoff_ms: float
    backoff_max_ms: float
    reset_timestamp: int | None  # where a position outside the log goes; None: an error


@dataclass(frozen=True, slots=True)
class AskedPartition:
    buffer: FetchBuffer
    generation: int
    fetch_offset: int
    leader_epoch: int


@dataclass(eq=False, slots=True)
class Outstanding:
    """A request without its answer. By (topic id, partition)."""

    asked: dict[tuple[bytes, int], AskedPartition] = field(default_factory=dict)

    def covers(self, key: tuple[bytes, int], buffer: FetchBuffer) -> bool:
        asked = self.asked.get(key)
        return asked is not None and asked.generation == buffer.generation and asked.fetch_offset == buffer.fetch_offset

    @property
    def has_data_coming(self) -> bool:
        """Some partition was behind its high watermark: the answer does not wait."""
        return any(item.fetch_offset < item.buffer.high_watermark for item in self.asked.values())


class Fetcher:
    """Owned by one consumer; runs on its event loop. `on_change` is called when there may be something to hand out."""

    def __init__(self, cluster: Cluster, settings: FetcherSettings, on_change: Callable[[], None]) -> None:
        self.buffers: dict[TopicPartition, FetchBuffer] = {}
        self._cluster = cluster
        self._settings = settings
        self._on_change = on_change
        self._outstanding: dict[Connection, list[Outstanding]] = {}
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._tasks = TaskSupervisor()
        self._resetting = False
        self._data_count = 0
        self._running = False

    def start(self) -> None:
        self._running = True
        self.wake()

    async def close(self) -> None:
        self._running = False
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.stop()

    def wake(self) -> None:
        if self._running and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._pass)

    # The pass

    def _pass(self) -> None:
        self._scheduled = False
        if not self._running:
            return
        try:
            self._look_at_all()
        except Exception as error:
            self._fail(error)

    def _look_at_all(self) -> None:
        settings = self._settings
        now_ms = monotonic() * 1000
        self._cluster.fail_overdue((settings.max_wait_ms + settings.request_timeout_ms) / 1000)
        self._cluster.leave_silent_leaders(settings.max_wait_ms / 1000)
        by_leader: dict[Connection, list[tuple[tuple[bytes, int], int, FetchBuffer]]] = {}
        room = settings.max_bytes - sum(buffer.buffered_bytes for buffer in self.buffers.values())
        due_ms = now_ms + SWEEP_MS
        for buffer in self.buffers.values():
            if buffer.reset_timestamp is not None:
                self._start_resets()
            if buffer.retry_at_ms > now_ms:
                due_ms = min(due_ms, buffer.retry_at_ms)
            if room <= 0 or not buffer.fetchable(now_ms, settings.max_partition_bytes):
                continue
            leader = self._cluster.leader(*buffer.partition)
            topic = self._cluster.metadata.topic(buffer.partition.topic)
            if leader is None or topic is None or buffer.topic_id not in (None, topic.topic_id):
                self._cluster.request_refresh()
                continue
            key = (topic.topic_id, buffer.partition.partition)
            by_leader.setdefault(leader[0], []).append((key, leader[1].leader_epoch, buffer))
        for connection, hungry in by_leader.items():
            self._request(connection, hungry)
        self._set_timer(due_ms - now_ms)

    def _set_timer(self, delay_ms: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self.wake)

    def _request(self, connection: Connection, hungry: list[tuple[tuple[bytes, int], int, FetchBuffer]]) -> None:
        outstanding = self._outstanding.setdefault(connection, [])
        if len(outstanding) > 1:
            return
        if outstanding:
            first = outstanding[0]
            if first.has_data_coming or all(first.covers(key, buffer) for key, _, buffer in hungry):
                return
        settings = self._settings
        message = broker_pb2.FetchRequest(
            client_id=settings.client_id,
            consumer=broker_pb2.ConsumerRole(),
            max_wait_ms=settings.max_wait_ms,
            min_bytes=settings.min_bytes,
            max_bytes=settings.max_bytes,
            accepts=[broker_pb2.PAYLOAD_ROWS, broker_pb2.PAYLOAD_COLUMNS],  # no reader of rows only (RULES 10.1)
        )
        request = Outstanding()
        for key, leader_epoch, buffer in sorted(hungry, key=lambda item: item[2].last_data):
            assert buffer.fetch_offset is not None
            request.asked[key] = AskedPartition(buffer, buffer.generation, buffer.fetch_offset, leader_epoch)
            message.partitions.append(
                broker_pb2.FetchPartition(
                    partition=common_pb2.PartitionKey(topic_id=key[0], partition=key[1]),
                    leader_epoch=leader_epoch,
                    fetch_offset=buffer.fetch_offset,
                    max_bytes=settings.max_partition_bytes,
                )
            )
        outstanding.append(request)
        partitions = [asked.buffer.partition for asked in request.asked.values()]
        connection.fetch_stream().send(message, lambda answer: self._on_answer(connection, request, answer), partitions)

    # Answers

    def _on_answer(
        self, connection: Connection, request: Outstanding, response: broker_pb2.FetchResponse | HighwaterError
    ) -> None:
        outstanding = self._outstanding[connection]
        outstanding.remove(request)
        if not outstanding:
            del self._outstanding[connection]
        if not self._running:
            return
        try:
            self._take_answer(request, response)
        except Exception as error:
            self._fail(error)
        self._on_change()
        self.wake()

    def _take_answer(self, request: Outstanding, response: broker_pb2.FetchResponse | HighwaterError) -> None:
        if isinstance(response, HighwaterError):
            self._fail_all(request, response)
        elif (code := from_proto(response.error)) is not ErrorCode.NONE:
            self._fail_all(request, error_for(code, response.error.message))
        else:
            for result in response.results:
                asked = request.asked.get((result.partition.topic_id, result.partition.partition))
                if asked is not None and asked.buffer.wants(asked.generation, asked.fetch_offset):
                    self._on_result(asked, result)

    def _fail_all(self, request: Outstanding, error: HighwaterError) -> None:
        self._cluster.request_refresh()
        for asked in request.asked.values():
            if not asked.buffer.wants(asked.generation, asked.fetch_offset):
                continue
            if isinstance(error, RetriableError):
                self._back_off(asked.buffer)
            else:
                asked.buffer.fail(error)

    def _on_result(self, asked: AskedPartition, result: broker_pb2.FetchResult) -> None:
        buffer = asked.buffer
        code = from_proto(result.error)
        if code is ErrorCode.NONE:
            before = buffer.highest_epoch
            records = result.records  # which copies them
            buffer.accept(records, result.high_watermark, result.log_start_offset)
            if records:
                self._data_count += 1
                buffer.last_data = self._data_count
            if buffer.highest_epoch > max(before, asked.leader_epoch):
                self._learn(buffer, asked, NO_LEADER, buffer.highest_epoch)
            return
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            buffer.busy = True
            self._tasks.run_once("confirm_out_of_range", lambda: self._confirm_out_of_range(asked), self._fail)
            return
        if code.retriable:
            # RULES 5.7: fenced and unknown epochs among them. The position stays.
            if result.leader_epoch > asked.leader_epoch:
                self._learn(buffer, asked, result.leader, result.leader_epoch)
            self._back_off(buffer)
            self._cluster.request_refresh()
            return
        topic, partition = buffer.partition
        message = result.error.message or code.name
        buffer.fail(error_for(code, f"{topic}-{partition} at offset {asked.fetch_offset}: {message}"))

    def _learn(self, buffer: FetchBuffer, asked: AskedPartition, leader: int, leader_epoch: int) -> None:
        """A higher leader epoch exists: nobody under a lower one is believed from now on."""
        topic, partition = buffer.partition
        known = self._cluster.metadata.topic(topic)
        if known is not None:
            self._cluster.metadata.learn_leader(topic, known.topic_id, partition, leader, leader_epoch)

    def _back_off(self, buffer: FetchBuffer) -> None:
        settings = self._settings
        buffer.failures += 1
        delay_ms = min(settings.backoff_ms * 2 ** min(buffer.failures - 1, 16), settings.backoff_max_ms)
        buffer.retry_at_ms = monotonic() * 1000 + delay_ms * (0.8 + 0.4 * random())

    # Positions

    async def _confirm_out_of_range(self, asked: AskedPartition) -> None:
        """A deposed leader with a short log says the same (RULES 5.7): only one that every broker which answers still
        calls the leader, under the same epoch, is believed."""
        buffer = asked.buffer
        await self._cluster.confirm()
        if not buffer.wants(asked.generation, asked.fetch_offset):
            return
        info = self._cluster.metadata.partition(*buffer.partition)
        if info is None or info.leader_epoch != asked.leader_epoch:
            buffer.busy = False
            self._back_off(buffer)
        elif buffer.position != asked.fetch_offset:
            # What is buffered before it is handed out first; then it is asked for again.
            buffer.busy = False
            self._back_off(buffer)
        elif self._settings.reset_timestamp is None:
            topic, partition = buffer.partition
            buffer.busy = False
            buffer.fail(
                OffsetOutOfRangeError(
                    f"{topic}-{partition}: offset {asked.fetch_offset} is outside the log; seek to one that is in it, "
                    "or set auto_offset_reset to earliest or latest"
                )
            )
        else:
            buffer.reset(self._settings.reset_timestamp)
        self._on_change()
        self.wake()

    def _start_resets(self) -> None:
        if not self._resetting:
            self._resetting = True
            self._tasks.run_once("reset_positions", self._reset_positions, self._fail)

    async def _reset_positions(self) -> None:
        """Looks up the position of every buffer that waits for one, until none does."""
        try:
            while wanted := {
                partition: (buffer.generation, buffer.reset_timestamp)
                for partition, buffer in self.buffers.items()
                if buffer.reset_timestamp is not None and buffer.error is None
            }:
                found: dict[TopicPartition, OffsetAndTimestamp] = {}
                error: HighwaterError | None = None
                timestamps = {partition: asked for partition, (_, asked) in wanted.items() if asked is not None}
                try:
                    await lookup_offsets(self._cluster, timestamps, LOOKUP_S, found)
                except HighwaterError as failure:
                    error = failure
                for partition, (generation, _) in wanted.items():
                    buffer = self.buffers.get(partition)
                    if buffer is None or buffer.generation != generation:
                        continue
                    answer = found.get(partition)
                    if answer is None:
                        unknown = self._cluster.metadata.partition(*partition) is None
                        if error is not None and (
                            unknown if isinstance(error, UnknownTopicError) else not isinstance(error, RetriableError)
                        ):
                            buffer.fail(error)
                    elif answer.offset < 0:
                        buffer.reset(LATEST_TIMESTAMP)  # nothing at or after that time: what comes next
                    else:
                        buffer.seek(answer.offset)
                if error is not None:
                    self._cluster.request_refresh()
                    await asyncio.sleep(self._settings.backoff_ms / 1000)
                self._on_change()
                self.wake()
        finally:
            self._resetting = False

    def _fail(self, error: Exception) -> None:
        """Gives up fetching for a bug of ours: `poll` raises it, until a seek."""
        _log.error("the consumer %s has failed", self._settings.client_id, exc_info=error)
        for buffer in self.buffers.values():
            if buffer.error is None:
                buffer.fail(HighwaterError(f"the consumer has failed, by a bug of its own: {error!r}; seek to retry"))
        self._on_change()
        self._set_timer(SWEEP_MS)

    def assign(self, buffers: Iterable[FetchBuffer]) -> None:
        """Replaces all there is. Answers for what is gone find nobody who wants them."""
        for old in self.buffers.values():
            old.generation += 1
        self.buffers = {buffer.partition: buffer for buffer in buffers}
        self.wake()

    def add(self, buffers: Iterable[FetchBuffer]) -> None:
        """Takes up more partitions, beside those there are."""
        self.buffers |= {buffer.partition: buffer for buffer in buffers}
        self.wake()
