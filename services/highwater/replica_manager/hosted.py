"""A replica that this broker hosts: the pure partition, and beside it what only the server has: the append pipeline,
the tail cache, and those who wait."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Mapping, Sequence

from highwater.errors import ErrorCode
from highwater.metadata.models import PartitionKey
from highwater.records import STAMP_BYTES, BatchHeader, stamp
from highwater.replica_manager.actions import Action, FenceAnswer
from highwater.replica_manager.append_pipeline import AppendPipeline
from highwater.replica_manager.append_stream import AppendAnswer
from highwater.replica_manager.partition import Partition
from highwater.replica_manager.tail_cache import TailBatch, TailCache
from highwater.replica_manager.topic_config import TopicConfig
from highwater.replica_manager.wire import Piece

Perform = Callable[["HostedPartition", Sequence[Action]], None]


class DataWait:
    """One request that waits for data, woken directly by the partitions that it is registered with."""

    __slots__ = ("_future", "_woken", "ended")

    def __init__(self) -> None:
        self._future: asyncio.Future[None] | None = None
        self._woken = False
        self.ended = False

    def wake(self) -> None:
        """Something moved: look again."""
        self._woken = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def end(self) -> None:
        """Answer now, with whatever there is: a newer request of the stream has come (RULES 4.1)."""
        self.ended = True
        self.wake()

    async def wait(self, timeout_s: float) -> None:
        """Until woken (also since the last wait), ended or out of time."""
        if not (self._woken or self.ended or timeout_s <= 0):
            loop = asyncio.get_running_loop()
            self._future = loop.create_future()
            timer = loop.call_later(timeout_s, self.wake)
            try:
                await self._future
            finally:
                timer.cancel()
                self._future = None
        self._woken = False


class HostedPartition:
    def __init__(
        self,
        key: PartitionKey,
        topic: str,
        partition: Partition,
        config: TopicConfig,
        tail: TailCache,
        *,
        now_ms: Callable[[], int],
        perform: Perform,
    ) -> None:
        self.key = key
        self.topic = topic
        self.partition = partition
        self.config = config
        self.raw_config: Mapping[str, str] = {}
        self.pipeline: AppendPipeline | None = None  # while this broker leads
        self.fencing: asyncio.Future[FenceAnswer] | None = None  # the fence asked for last
        self.log_end_waits: set[DataWait] = set()
        self.high_watermark_waits: set[DataWait] = set()
        self.log_start_waits: set[DataWait] = set()  # DeleteRecords (RULES 5.8)
        self._tail = tail
        self._now_ms = now_ms
        self._perform = perform
        # (end offset, order of arrival, leader epoch, callback): produces that wait for the high watermark.
        self._uncommitted: list[tuple[int, int, int, Callable[[ErrorCode], None]]] = []
        self._arrivals = 0

    @property
    def log_tail(self) -> tuple[int, int]:
        """(epoch of the last batch, log end offset) as the last fence answered; -1 before any."""
        if self.fencing is None or not self.fencing.done() or self.fencing.cancelled():
            return (-1, -1)
        answer = self.fencing.result()
        return (answer.last_epoch, answer.log_end_offset) if answer.error is ErrorCode.NONE else (-1, -1)

    # What led partitions do

    def appended(
        self, leader_epoch: int, answer: AppendAnswer, records: bytes, batches: Sequence[tuple[int, BatchHeader]]
    ) -> None:
        """log-storage has answered for `records`: the tail cache takes them (RULES 5.5), then the partition hears of
        it, then the followers that wait."""
        # log-storage has rewritten batches of log append time, CRC and all, and it has skipped those in front that were
        # duplicates: neither is what stands in the log, and the cache begins anew behind it.
        as_sent = answer.log_append_time_ms < 0 and answer.log_end_offset == answer.base_offset + sum(
            header.last_offset_delta + 1 for _, header in batches
        )
        if as_sent:
            self._tail.append(
                leader_epoch, answer.incarnation, tail_batches(leader_epoch, answer.base_offset, records, batches)
            )
        actions = self.partition.appended(
            leader_epoch,
            answer.incarnation,
            answer.log_end_offset,
            answer.log_start_offset,
            self._now_ms(),
        )
        if actions:
            self._perform(self, actions)
        for wait in self.log_end_waits:
            wait.wake()

    def await_commit(self, leader_epoch: int, end_offset: int, done: Callable[[ErrorCode], None]) -> None:
        """`done` is called once the high watermark has reached `end_offset` under `leader_epoch`, or cannot any more
        (RULES 5.3, 5.4); at once where that is known already."""
        outcome = self.partition.produce_outcome(leader_epoch, end_offset)
        if outcome is not None:
            done(outcome)
            return
        self._arrivals += 1
        heapq.heappush(self._uncommitted, (end_offset, self._arrivals, leader_epoch, done))

    # What the partition's actions come down to

    def started(self, pipeline: AppendPipeline, incarnation: str, log_end_offset: int) -> None:
        self.pipeline = pipeline
        self._tail.bind(pipeline.leader_epoch, incarnation, log_end_offset)

    def interrupted(self) -> None:
        """Leadership is over: what waits fails, whatever happens later (RULES 5.4)."""
        self._tail.unbind()
        if self.pipeline is not None:
            pipeline, self.pipeline = self.pipeline, None
            pipeline.close()
        uncommitted, self._uncommitted = self._uncommitted, []
        for _, _, _, done in uncommitted:
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.wake_all()

    def high_watermark_advanced(self, offset: int) -> None:
        waiting = self._uncommitted
        while waiting and waiting[0][0] <= offset:
            end_offset, _, leader_epoch, done = waiting[0]
            outcome = self.partition.produce_outcome(leader_epoch, end_offset)
            if outcome is None:
                break
            heapq.heappop(waiting)
            done(outcome)
        for wait in self.high_watermark_waits:
            wait.wake()

    def wake_all(self) -> None:
        for wait in (*self.log_end_waits, *self.high_watermark_waits, *self.log_start_waits):
            wait.wake()

    def log_start_raised(self) -> None:
        """Followers are told at once, that they may follow it."""
        for wait in self.log_end_waits:
            wait.end()
        for wait in self.log_start_waits:
            wait.wake()

    def cached(self, offset: int, end_offset: int, max_bytes: int) -> Sequence[Piece] | None:
        """Whole batches from the one that holds `offset`, ending at or below `end_offset`; None: ask log-storage."""
        found = self._tail.read(offset, max_bytes, end_offset)
        return None if found is None else found.pieces


def tail_batches(
    leader_epoch: int, base_offset: int, produced: bytes, batches: Sequence[tuple[int, BatchHeader]]
) -> list[TailBatch]:
    """The batches as log-storage has written them: stamped with offset and epoch (RULES 5.5), nothing copied."""
    view = memoryview(produced)
    made = []
    for position, header in batches:
        next_offset = base_offset + header.last_offset_delta + 1
        size = header.size_bytes
        pieces = (stamp(header, base_offset, leader_epoch), view[position + STAMP_BYTES : position + size])
        made.append(TailBatch(base_offset, next_offset, leader_epoch, size, pieces))
        base_offset = next_offset
    return made
