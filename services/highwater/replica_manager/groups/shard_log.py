"""The log of one shard under one leadership: what stands in it is read, what the shard makes is appended, and who waits
for it to be committed is told (RULES 11.2).

Records that come in one turn of the event loop go out as one batch, several batches are in flight, in their order. A
record may rest on any one before it, so a batch that fails fails all behind it: they name the offset that they expect,
and are not sent again at another one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from heapq import heappop, heappush
from typing import TypeAlias

from highwater.errors import ErrorCode
from highwater.groups.records import Record
from highwater.log_storage_client.values import AppendAnswer, StorageUnavailableError
from highwater.records import HEADER_BYTES, iter_batches
from highwater.records import Record as Row
from highwater.replica_manager.groups.pacing import Pace
from highwater.replica_manager.groups.record_batches import decode, encode, size_of
from highwater.replica_manager.partition.actions import FAR_MS
from highwater.replica_manager.partition.answers import ACKS_ALL, produce_admission
from highwater.replica_manager.replicas.hosted_partition import HostedPartition
from highwater.replica_manager.replicas.replica_manager import ReplicaManager
from highwater.replica_manager.storage.append_pipeline import AppendPipeline

READ_BYTES = 256 << 10
BATCH_BYTES = 256 << 10  # a larger single record is a batch of its own
IN_FLIGHT = 8  # batches
MOST_WAITING = 10_000  # answers
MOST_PENDING_BYTES = 16 << 20  # of records that are not committed

FOLLOWED_LOOK_S = 0.01  # between two looks at whether all have fetched since the election: each does so at once

Told: TypeAlias = Callable[[ErrorCode], None]
"""Called once: with NONE when what was waited for is committed, else with the error that the shard ended with."""


class ShardLogError(Exception):
    """The log could not be read. The shard is loaded anew."""


class ShardLog:
    """`failed` is called, once, where a batch was not written or leadership is over; whoever waits is told after it.
    `heard_within_ms`: without a fetch for so long, a replica may lead by now."""

    def __init__(
        self,
        replica_manager: ReplicaManager,
        hosted: HostedPartition,
        pipeline: AppendPipeline,
        failed: Callable[[ErrorCode], None],
        heard_within_ms: int,
    ) -> None:
        self._replica_manager = replica_manager
        self._hosted = hosted
        self._pipeline = pipeline
        self._failed = failed
        self._heard_within_ms = heard_within_ms
        self._end_offset = -1  # where the next batch is to stand
        self._ended: ErrorCode | None = None
        self._committed = 0
        self._waiting: list[tuple[int, int, Told]] = []
        self._waits = 0
        self._pending: deque[Record] = deque()
        self._uncommitted_bytes = 0
        self._in_flight = 0
        self._certain = False  # a batch was written where it was expected
        self._flushing = False

    @property
    def leads(self) -> bool:
        return self._hosted.pipeline is self._pipeline

    @property
    def takes_records(self) -> bool:
        """Tells whether what is handed over now can be committed, as far as can be seen."""
        return self.may_lead and produce_admission(self._hosted.partition, ACKS_ALL) is ErrorCode.NONE

    @property
    def may_lead(self) -> bool:
        """Tells whether nobody else can lead: a sign of life writes nothing, and would count here for a member that the
        next coordinator has not heard (RULES 11.12)."""
        return self.leads and self._replica_manager.lease_confirmed() and self.is_followed

    @property
    def is_followed(self) -> bool:
        """Tells whether nobody else led before `heard_within_ms` ago: a leadership is also moved from a broker whose
        lease goes on, and it may be the last to hear of it (RULES 11.12)."""
        leadership = self._hosted.partition.leadership
        return leadership is not None and leadership.is_followed(self._replica_manager.now_ms(), self._heard_within_ms)

    @property
    def full(self) -> bool:
        return len(self._waiting) >= MOST_WAITING or self._uncommitted_bytes >= MOST_PENDING_BYTES

    # Loading

    async def read(self) -> AsyncGenerator[Sequence[Row], None]:
        """The records in the log, batch by batch, and those of a shard before this one that are under way. Raises
        `ShardLogError`."""
        await self._pipeline.idle()
        offset, end = self._hosted.partition.log_start_offset, self._hosted.partition.log_end_offset
        pace = Pace()
        while offset < end:
            data = await self._read_at(offset, end)
            before = offset
            for header, rows in decode(data):
                if header.transactional:
                    raise ShardLogError("it has transactional records, which this version cannot take")
                if header.last_offset >= offset:
                    yield rows
                    offset = header.last_offset + 1
                await pace.breathe()
            if offset == before:
                raise ShardLogError(f"nothing is to be read at offset {offset}, below its end {end}")
        self._end_offset = end

    async def _read_at(self, offset: int, end: int) -> bytes:
        try:
            answer = await self._replica_manager.storage.read(self._hosted.key, offset, end, READ_BYTES)
        except StorageUnavailableError as error:
            raise ShardLogError(str(error)) from error
        if not self.leads:
            raise ShardLogError("leadership is over")
        if answer.error.code is not ErrorCode.NONE:
            raise ShardLogError(answer.error.message or answer.error.code.name)
        return answer.records

    async def committed(self) -> ErrorCode:
        """Waits until all that was read is committed."""
        future: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def told(error: ErrorCode) -> None:
            if not future.done():
                future.set_result(error)

        self._hosted.await_commit(self._pipeline.leader_epoch, self._end_offset, FAR_MS, told, bounded=False)
        error = await future
        # What this broker knew to be committed when it was elected says nothing: it may have been told so late that
        # the next leader is there.
        while error is ErrorCode.NONE and not self.is_followed:
            await asyncio.sleep(FOLLOWED_LOOK_S)
            if not self.leads:
                error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        return error

    # Appending

    def write(self, records: Sequence[Record]) -> None:
        """Takes the records of one outcome."""
        if not records or self._ended is not None:
            return
        self._uncommitted_bytes += sum(map(size_of, records))
        self._pending.extend(records)
        self._flush_soon()

    def when_committed(self, number: int, told: Told) -> None:
        """Calls `told` when the shard's records up to that number are committed; at once where they are."""
        if self._ended is not None:
            told(self._ended)
        elif number <= self._committed:
            told(ErrorCode.NONE)
        else:
            self._waits += 1
            heappush(self._waiting, (number, self._waits, told))

    def end(self, error: ErrorCode) -> None:
        """Nothing is written any more, and whoever waits is told `error`."""
        if self._ended is not None:
            return
        self._ended = error
        self._pending.clear()
        waiting, self._waiting = self._waiting, []
        self._failed(error)
        for _, _, told in sorted(waiting):
            told(error)

    def _flush_soon(self) -> None:
        if not self._flushing and self._may_send:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """Sends a batch; the next goes in another turn of the event loop: a commit of thousands has several."""
        self._flushing = False
        if not self._may_send:
            return
        records = [self._pending.popleft()]
        size = size_of(records[0])
        most_bytes = min(BATCH_BYTES, self._hosted.config.max_message_bytes - HEADER_BYTES)
        while self._pending and size + size_of(self._pending[0]) <= most_bytes:
            records.append(self._pending.popleft())
            size += size_of(records[-1])
        self._append(records, size)
        self._flush_soon()

    @property
    def _may_send(self) -> bool:
        # The first one goes alone: an append of a broken stream may yet land where it is expected (RULES 3.4).
        most = IN_FLIGHT if self._certain else 1
        return bool(self._pending) and self._in_flight < most and self._ended is None

    def _append(self, records: Sequence[Record], size: int) -> None:
        admission = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self.leads:
            admission = produce_admission(self._hosted.partition, ACKS_ALL)
        if admission is not ErrorCode.NONE:
            self.end(admission)
            return
        data = encode(records)
        if len(data) > self._hosted.config.max_message_bytes:
            self.end(ErrorCode.MESSAGE_TOO_LARGE)
            return
        batches = tuple(iter_batches(data))
        expected, self._end_offset = self._end_offset, self._end_offset + len(records)
        self._in_flight += 1

        def answered(answer: AppendAnswer) -> None:
            self._in_flight -= 1
            if answer.error is not ErrorCode.NONE:
                self.end(answer.error)
                return
            if answer.base_offset == expected:
                self._certain = True
                # Before the partition hears of the append: with a single replica, that commits it.
                self._hosted.await_commit(
                    self._pipeline.leader_epoch,
                    answer.last_offset + 1,
                    FAR_MS,
                    lambda error: self._advanced(len(records), size, error),
                    bounded=False,
                )
            else:
                self.end(ErrorCode.OFFSET_MISMATCH)  # the log has records that this shard has not replayed
            self._hosted.appended(self._pipeline.leader_epoch, answer, data, batches)
            self._flush_soon()

        self._pipeline.append(data, len(records), answered, resend=False)

    def _advanced(self, records: int, size: int, error: ErrorCode) -> None:
        if error is not ErrorCode.NONE:
            self.end(error)
            return
        self._committed += records
        self._uncommitted_bytes -= size
        while self._waiting and self._waiting[0][0] <= self._committed and self._ended is None:
            heappop(self._waiting)[2](ErrorCode.NONE)
