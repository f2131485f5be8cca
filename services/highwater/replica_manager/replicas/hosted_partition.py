"""A replica that this broker hosts: the pure partition, and beside it what only the server has: the append pipeline,
the tail cache, and those who wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from highwater.errors import ErrorCode
from highwater.log_storage_client.values import AppendAnswer
from highwater.model.partition import PartitionKey
from highwater.records import STAMP_BYTES, BatchHeader, stamp
from highwater.replica_manager.partition.actions import FAR_MS, Action, FenceAnswer
from highwater.replica_manager.partition.answers import produce_outcome
from highwater.replica_manager.partition.partition import Partition
from highwater.replica_manager.partition.tail_cache import TailBatch, TailCache
from highwater.replica_manager.partition.topic_config import TopicConfig
from highwater.replica_manager.replicas.data_wait import DataWait
from highwater.replica_manager.replicas.purgatory import Purgatory, WaitingProduce
from highwater.replica_manager.replicas.topic_traffic import Traffic
from highwater.replica_manager.storage.append_pipeline import AppendPipeline
from highwater.rpc.embedding import Piece

_ENOUGH_BYTES = 1 << 62

Perform = Callable[["HostedPartition", Sequence[Action]], None]


class HostedPartition:
    def __init__(
        self,
        key: PartitionKey,
        topic: str,
        partition: Partition,
        config: TopicConfig,
        tail: TailCache,
        purgatory: Purgatory,
        *,
        now_ms: Callable[[], int],
        perform: Perform,
        traffic: Traffic,
    ) -> None:
        self.key = key
        self.traffic = traffic  # its topic's
        self.topic = topic
        self.partition = partition
        self.config = config
        self.topic_config: Mapping[str, str] = {}  # the topic's own keys, of which `config` was made
        # The topic's keys as the log has them, and the incarnation of log-storage that does: another one knows none.
        self.log_config: tuple[str, Mapping[str, str]] | None = None
        self.pipeline: AppendPipeline | None = None  # while this broker leads
        self.fencing: asyncio.Future[FenceAnswer] | None = None  # the fence asked for last
        self.log_start_waits: set[DataWait] = set()  # DeleteRecords (RULES 5.8)
        self.due_ms = FAR_MS  # when it is ticked; kept by `DuePartitions`
        self._tail = tail
        self._purgatory = purgatory
        self._now_ms = now_ms
        self._perform = perform

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
        as_sent = answer.log_append_time_ms < 0 and answer.log.log_end_offset == answer.base_offset + sum(
            header.last_offset_delta + 1 for _, header in batches
        )
        if as_sent:
            self._tail.append(
                leader_epoch, answer.incarnation, tail_batches(leader_epoch, answer.base_offset, records, batches)
            )
        else:
            self._tail.pass_over(leader_epoch, answer.incarnation, answer.log.log_end_offset)
        self._log_grew(leader_epoch, answer, len(records))

    def log_ended(self, leader_epoch: int, answer: AppendAnswer) -> None:
        """log-storage has answered an append of this leadership, whatever the answer. Where the log ends further on
        than the partition knows, an earlier append of unknown outcome has landed after the fence (RULES 3.4)."""
        leadership = self.partition.leadership
        if leadership is None or answer.log.log_end_offset <= leadership.log_end_offset:
            return
        self._tail.pass_over(leader_epoch, answer.incarnation, answer.log.log_end_offset)
        self._log_grew(leader_epoch, answer, _ENOUGH_BYTES)

    def _log_grew(self, leader_epoch: int, answer: AppendAnswer, size_bytes: int) -> None:
        actions = self.partition.appended(
            leader_epoch,
            answer.incarnation,
            answer.log.log_end_offset,
            answer.log.log_start_offset,
            self._now_ms(),
        )
        self._perform(self, actions)
        self.wake_followers(answer.log.log_end_offset, size_bytes)

    def wake_followers(self, log_end_offset: int, size_bytes: int) -> None:
        """The log grew by about so many bytes, to `log_end_offset`."""
        for wait in self._purgatory.replicas.grown(self.key, log_end_offset, size_bytes):
            wait.wake()
        for session in self._purgatory.sessions.of(self.key):
            session.grown(self.key, log_end_offset, size_bytes)

    def await_commit(
        self,
        leader_epoch: int,
        end_offset: int,
        deadline_ms: int,
        done: Callable[[ErrorCode], None],
        *,
        bounded: bool = True,
    ) -> None:
        """`done` is called once the high watermark has reached `end_offset` under `leader_epoch`, or cannot any more
        (RULES 5.3, 5.4), or the time is up; at once where that is known already. Not `bounded`: of the broker itself,
        which has few; what clients' produces have filled keeps nobody else out."""
        outcome = produce_outcome(self.partition, leader_epoch, end_offset)
        if outcome is not None:
            done(outcome)
            return
        produce = WaitingProduce(leader_epoch, end_offset, done)
        if self._purgatory.produces.add(self.key, end_offset, deadline_ms, produce, bounded=bounded) is None:
            done(ErrorCode.OVERLOADED)  # appended, but nobody can wait for it: its retry will be a duplicate

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
        for produce in self._purgatory.produces.interrupted(self.key):
            produce.done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.wake_all()

    def high_watermark_advanced(self, offset: int) -> None:
        for produce in self._purgatory.produces.reached(self.key, offset):
            outcome = produce_outcome(self.partition, produce.leader_epoch, produce.end_offset)
            assert outcome is not None, (self.key, produce, offset)
            produce.done(outcome)
        # By how many bytes is not known: each that waits looks again.
        for wait in self._purgatory.consumers.grown(self.key, offset, _ENOUGH_BYTES):
            wait.wake()
        for session in self._purgatory.sessions.of(self.key):
            session.high_watermark_advanced(self.key, offset)

    def wake_all(self) -> None:
        for wait in (
            *self._purgatory.replicas.interrupted(self.key),
            *self._purgatory.consumers.interrupted(self.key),
            *self.log_start_waits,
        ):
            wait.wake()
        self.tell_sessions()

    def tell_sessions(self) -> None:
        """The partition is led here from now on, or no more."""
        for session in self._purgatory.sessions.of(self.key):
            session.changed(self.key)

    def log_start_raised(self) -> None:
        """Followers are told at once, that they may follow it."""
        for wait in self._purgatory.replicas.interrupted(self.key):
            wait.end()
        for session in self._purgatory.sessions.of(self.key):
            session.log_start_raised(self.key)
        for wait in self.log_start_waits:
            wait.wake()

    def is_cached(self, offset: int) -> bool:
        """Tells whether `cached` from there has an answer."""
        return self._tail.covers(offset)

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
