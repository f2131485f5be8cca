"""log-storage in memory, over a disk that outlives it: the real fence, epoch cache and producer states.

Where `log_storage/log/log.py` and `log_storage/server/` decide, this decides the same: in which order a fence, the
expected offset and the sequences are checked, what a truncation may drop, what an answer says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from highwater.errors import ErrorCode
from highwater.log_storage.fence import Fence, FenceVerdict, admission, propose
from highwater.log_storage.files import boot_record
from highwater.log_storage.files.boot_record import Boot, BootRecord, Cut
from highwater.log_storage.producers.producer_states import Duplicate, ProducerStates
from highwater.log_storage_client.values import AppendAnswer
from highwater.model.fence_role import Role
from highwater.model.leader_epochs import LeaderEpochCache
from highwater.model.log_state import LogState
from highwater.model.partition import PartitionKey

from .history import History
from .scheduler import Process, Scheduler

Reply = Callable[[Any], None]
SELDOM = 1 << 62  # `flush.messages` by default


class Batch:
    """A batch, with the attributes of a header that the rules look at. `payload` is unlike any other's."""

    __slots__ = (
        "base_offset",
        "base_sequence",
        "data",
        "last_offset",
        "last_offset_delta",
        "last_sequence",
        "leader_epoch",
        "next_offset",
        "original",
        "payload",
        "producer_epoch",
        "producer_id",
        "records",
    )

    def __init__(
        self,
        payload: int,
        records: int,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        base_offset: int = -1,
        leader_epoch: int = -1,
        data: bytes = b"",
        original: bytes = b"",
    ) -> None:
        self.payload = payload
        self.records = records
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self.last_sequence = base_sequence + records - 1 if base_sequence >= 0 else -1
        self.last_offset_delta = records - 1
        self.base_offset = base_offset
        self.last_offset = base_offset + records - 1
        self.next_offset = base_offset + records
        self.leader_epoch = leader_epoch
        self.data = data  # empty where nobody looks at the records
        self.original = original or data  # before it was compacted

    def stamped(self, base_offset: int, leader_epoch: int) -> Batch:
        return Batch(
            self.payload,
            self.records,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            base_offset,
            leader_epoch,
            self.data,
        )

    def compacted(self, data: bytes) -> Batch:
        """With the records that are left; none: the batch is not there any more, but for its place."""
        return Batch(
            self.payload,
            self.records,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.base_offset,
            self.leader_epoch,
            data,
            self.original,
        )

    @property
    def gone(self) -> bool:
        return bool(self.original) and not self.data

    def __len__(self) -> int:
        return 1  # "byte": sizes are counted in batches

    def __repr__(self) -> str:
        return f"<{self.base_offset}+{self.records} e{self.leader_epoch} #{self.payload}>"


class Log:
    """One partition's log. `chain[n]` names the whole of it up to and including batch n (invariant 4)."""

    def __init__(self, key: PartitionKey, topic: str) -> None:
        self.key = key
        self.topic = topic
        self.batches: list[Batch] = []
        self.by_offset: dict[int, Batch] = {}
        self.chain: list[int] = []
        self.log_end_offset = 0
        self.last_epoch = -1
        self.high_watermark = 0
        self.epochs = LeaderEpochCache()
        self.producers = ProducerStates()
        self.flushed = 0  # what is below survives the machine, and a disk that fails
        self.flush_messages = SELDOM  # 1: no append is answered before it is flushed
        self.cleaned_to = 0  # by compaction
        self.cut = Cut.NOTHING  # what a start has to cut off
        self.high_watermark_written = 0  # in the checkpoint
        self.offline = False  # until log-storage is started again (RULES 7.7)
        # What stands at the first of these is not what was written, which a read meets; the log is cut at the second,
        # where it is known to be damaged.
        self.unreadable: int | None = None
        self.damaged_from: int | None = None

    @property
    def is_damaged(self) -> bool:
        return self.unreadable is not None or self.damaged_from is not None

    @property
    def state(self) -> LogState:
        return LogState(self.log_end_offset, self.last_epoch, 0, self.high_watermark)

    def append(self, batch: Batch) -> None:
        if batch.leader_epoch != self.last_epoch:
            self.epochs.assign(batch.leader_epoch, batch.base_offset)
            self.last_epoch = batch.leader_epoch
        self.producers.update(batch, batch.base_offset)
        self.batches.append(batch)
        self.by_offset[batch.base_offset] = batch
        before = self.chain[-1] if self.chain else 0
        self.chain.append(hash((before, batch.base_offset, batch.leader_epoch, batch.payload)))
        self.log_end_offset = batch.next_offset

    def batch_start(self, offset: int) -> int:
        """The base offset of the batch that holds it, or the log end."""
        for batch in reversed(self.batches):
            if batch.next_offset <= offset:
                break
            if batch.base_offset <= offset:
                return batch.base_offset
        return min(offset, self.log_end_offset)

    def drop_from(self, cut: int) -> list[Batch]:
        """Drops the batches at or above it; which they were."""
        dropped = []
        while self.batches and self.batches[-1].base_offset >= cut:
            dropped.append(self.batches.pop())
            del self.by_offset[dropped[-1].base_offset]
            self.chain.pop()
        self.log_end_offset = cut
        self.epochs.truncate_from_end(cut)
        self.last_epoch = self.epochs.last_epoch_below(cut)
        self.high_watermark = min(self.high_watermark, cut)
        self.high_watermark_written = min(self.high_watermark_written, cut)
        self.flushed = min(self.flushed, cut)
        self.cleaned_to = min(self.cleaned_to, cut)
        if self.unreadable is not None and self.unreadable >= cut:
            self.unreadable = None
        if self.damaged_from is not None and self.damaged_from >= cut:
            self.damaged_from = None
        if not self.producers.outlives(cut):
            self.producers.rebuild(self.batches)
        return dropped

    def reopen(self) -> None:
        """As after a start: epochs and producers from the batches, the high watermark from its checkpoint."""
        self.offline = False
        self.damaged_from = None  # what is found is not remembered
        self.epochs = LeaderEpochCache()
        self.producers = ProducerStates()
        self.producers.rebuild(self.batches)
        for batch in self.batches:
            if batch.leader_epoch != self.epochs.latest_epoch:
                self.epochs.assign(batch.leader_epoch, batch.base_offset)
        self.high_watermark = self.high_watermark_written = min(self.high_watermark_written, self.log_end_offset)
        self.cut = Cut.NOTHING

    def lose(self, random: Callable[[], float]) -> bool:
        """Of what was not flushed some prefix is left, whatever the checkpoint says; whether anything is gone."""
        kept = self.flushed + int(random() * (self.log_end_offset - self.flushed + 1))
        cut, written = self.batch_start(kept), self.high_watermark_written
        if cut == self.log_end_offset:
            return False
        self.drop_from(cut)
        self.high_watermark_written = written
        return True


class Disk:
    """What outlives the process, and all but its unflushed part the machine. `flush_messages` is the broker's."""

    def __init__(self, broker_id: int, flush_messages: int = SELDOM) -> None:
        self.broker_id = broker_id
        self.flush_messages = flush_messages
        self.boots = 0  # of the kernel
        self.clean = False  # the mark of a clean stop
        self.record: BootRecord | None = BootRecord(broker_id, self.boot, flush_messages == 1)
        self.failed = (
            False  # the kernel cannot write to it, and drops what it had taken, until log-storage starts again
        )
        self.failed_at = 0  # etcd's revision then: a doubt from before was of an earlier failure (RULES 7.2)
        self.logs: dict[PartitionKey, Log] = {}
        self.names: dict[tuple[str, int], PartitionKey] = {}
        self.fences: dict[PartitionKey, Fence] = {}
        self.tail_lost = False  # in truth: something may be gone that the broker has not got back yet

    @property
    def boot(self) -> Boot:
        return Boot(str(self.boots), "disk")

    def lose_tail(self, random: Callable[[], float]) -> None:
        """The machine stopped."""
        self.tail_lost = True
        self.boots += 1
        for log in self.logs.values():
            log.lose(random)

    def fail(self, remembers: bool, revision: int) -> None:
        """An operation ended with EIO. `remembers`: the disk can still take so much. `revision`: etcd's."""
        self.failed = self.tail_lost = True
        self.failed_at = revision
        for log in self.logs.values():
            log.offline = True
        if remembers and self.record is not None:
            self.record = replace(self.record, tail_lost=True)

    def drop_pages(self, random: Callable[[], float], *, remembered: bool) -> None:
        """What the failed disk has not taken is gone, as the next start finds. Where nobody remembers that it failed,
        it is a page in the midst of a log, so that recovery has something to see."""
        self.failed = False
        for log in self.logs.values():
            if log.lose(random) and not remembered:
                log.cut = Cut.MORE


class LogStorage(Process):
    """The process. Methods that begin with `on_` are its calls; each is carried out at once."""

    def __init__(self, scheduler: Scheduler, disk: Disk, history: History, incarnation: str) -> None:
        super().__init__(scheduler, disk.broker_id, f"log-storage {disk.broker_id}")
        self.disk = disk
        self.incarnation = incarnation
        self._history = history
        self.tail_lost = False  # as this start finds it (RULES 7.2)
        self._may_claim = disk.flush_messages == 1
        self._recover()

    def _recover(self) -> None:
        """As `LogDir` and `recovery.py`."""
        disk = self.disk
        self.tail_lost = boot_record.tail_lost(disk.record, disk.boot, disk.clean)
        page_cache = boot_record.page_cache_intact(disk.record, disk.boot, disk.clean)
        if not self.tail_lost:
            synced = disk.clean or (disk.record is not None and disk.record.flush_every_message)
            disk.record = BootRecord(disk.broker_id, disk.boot, self._may_claim and synced)
        for log in disk.logs.values():
            reason = boot_record.recovery_shows_loss(
                page_cache, log.cut, 0, log.high_watermark_written, log.log_end_offset
            )
            if reason and not disk.clean and not self.tail_lost:
                self.tail_lost = True
                disk.record = BootRecord(disk.broker_id, disk.boot, False, (), tail_lost=True)
            log.reopen()
            log.flush_messages = disk.flush_messages
        disk.clean = False

    def on_describe(self, reply: Reply) -> None:
        logs = [(log.key, log.topic) for log in self.disk.logs.values()]
        reply((self.incarnation, self.tail_lost, logs, self.disk.failed))

    def on_probe(self, reply: Reply) -> None:
        reply(self.incarnation)

    def on_record_boot(self, reply: Reply, incarnation: str) -> None:
        """Of this incarnation alone: another one may have found that more is lost (RULES 7.2)."""
        disk = self.disk
        if not disk.failed and incarnation == self.incarnation:
            for log in disk.logs.values():
                log.flushed = log.log_end_offset
            disk.record = BootRecord(disk.broker_id, disk.boot, self._may_claim)
            disk.tail_lost = self.tail_lost = False
        reply(self.incarnation)

    def on_create(self, reply: Reply, topic: str, key: PartitionKey, flush_messages: int | None) -> None:
        """`flush_messages`: the topic's, None where it has none."""
        disk = self.disk
        flush_messages = disk.flush_messages if flush_messages is None else flush_messages
        if not boot_record.flushes_every_append(flush_messages):
            self._may_claim = False
            if disk.record is not None and not disk.failed:
                disk.record = replace(disk.record, flush_every_message=False)
        if key not in disk.logs:
            if (topic, key.partition) in disk.names:
                reply((ErrorCode.INCONSISTENT_TOPIC_ID, self.incarnation))
                return
            disk.logs[key] = Log(key, topic)
            disk.names[topic, key.partition] = key
            disk.logs[key].offline = disk.failed
        disk.logs[key].flush_messages = flush_messages
        reply((ErrorCode.NONE, self.incarnation))

    def on_delete(self, reply: Reply, key: PartitionKey, leader_epoch: int) -> None:
        """RULES 9.3."""
        disk = self.disk
        fence = disk.fences.get(key)
        error = ErrorCode.NONE
        if key in disk.logs:
            if fence is not None and leader_epoch != -1 and fence.leader_epoch > leader_epoch:
                error = ErrorCode.STALE_FENCE
            else:
                log = disk.logs.pop(key)
                del disk.names[log.topic, key.partition]
                disk.fences.pop(key, None)
                self._history.log_deleted(self.disk.broker_id, key)
        reply((error, self.incarnation))

    def on_fence(
        self, reply: Reply, role: Role, replica_manager_incarnation: str, key: PartitionKey, leader_epoch: int
    ) -> None:
        """(error, log state, epochs, incarnation)."""
        log = self.disk.logs.get(key)
        if log is None or log.offline:
            error = ErrorCode.UNKNOWN_TOPIC_ID if log is None else ErrorCode.LOG_STORAGE_ERROR
            reply((error, None, (), self.incarnation))
            return
        manager = replica_manager_incarnation if role is Role.LEADER else ""
        proposed = Fence(leader_epoch, role, manager, self.incarnation)
        verdict = propose(self.disk.fences.get(key), proposed)
        if verdict is FenceVerdict.REFUSED or (role is Role.LEADER and leader_epoch < log.last_epoch):
            reply((ErrorCode.STALE_FENCE, None, (), self.incarnation))
            return
        if verdict is FenceVerdict.RAISED:
            self.disk.fences[key] = proposed
        if role is Role.LEADER:
            try:
                log.epochs.assign(leader_epoch, log.log_end_offset)
            except ValueError:
                reply((ErrorCode.STALE_FENCE, None, (), self.incarnation))
                return
        else:
            log.epochs.truncate_from_end(log.log_end_offset)
        self._history.fenced(self.disk.broker_id, key, proposed)
        reply((ErrorCode.NONE, log.state, log.epochs.entries, self.incarnation))

    def _admit(self, key: PartitionKey, role: Role, leader_epoch: int) -> ErrorCode:
        log = self.disk.logs.get(key)
        if log is None or log.offline:
            return ErrorCode.UNKNOWN_TOPIC_ID if log is None else ErrorCode.LOG_STORAGE_ERROR
        return admission(self.disk.fences.get(key), role, leader_epoch, self.incarnation)

    def append_as_leader(
        self, key: PartitionKey, leader_epoch: int, expected_offset: int, batch: Batch
    ) -> AppendAnswer:
        error = self._admit(key, Role.LEADER, leader_epoch)
        log = self.disk.logs.get(key)
        if log is None or error is not ErrorCode.NONE:
            return self._appended(error, log)
        if expected_offset != log.log_end_offset:
            return self._appended(ErrorCode.OFFSET_MISMATCH, log)
        verdict = log.producers.check(batch)
        if isinstance(verdict, Duplicate):
            return self._appended(ErrorCode.NONE, log, verdict.base_offset, verdict.last_offset, duplicate=True)
        if verdict is not ErrorCode.NONE:
            return self._appended(verdict, log)
        stamped = batch.stamped(log.log_end_offset, leader_epoch)
        log.append(stamped)
        self._sync(log)
        self._history.appended(self.disk.broker_id, log, leader_epoch)
        return self._appended(ErrorCode.NONE, log, stamped.base_offset, stamped.last_offset)

    def _appended(
        self, error: ErrorCode, log: Log | None, base: int = -1, last: int = -1, *, duplicate: bool = False
    ) -> AppendAnswer:
        state = LogState(-1, -1, -1, -1) if log is None else log.state
        offline = log is not None and log.offline
        state = LogState(state.log_end_offset, state.last_epoch, 0, state.high_watermark)
        return AppendAnswer(error, "", base, last, duplicate, -1, state, self.incarnation, offline)

    def append_as_follower(
        self,
        key: PartitionKey,
        leader_epoch: int,
        expected_offset: int,
        batches: tuple[Batch, ...],
        high_watermark: int,
    ) -> tuple[ErrorCode, LogState | None, str]:
        error = self._admit(key, Role.FOLLOWER, leader_epoch)
        log = self.disk.logs.get(key)
        if log is None or error is not ErrorCode.NONE:
            return error, None, self.incarnation
        if expected_offset != log.log_end_offset:
            return ErrorCode.OFFSET_MISMATCH, log.state, self.incarnation
        end, epoch = log.log_end_offset, max(log.last_epoch, 0)
        for batch in batches:
            if batch.base_offset != end:
                return ErrorCode.OFFSET_MISMATCH, log.state, self.incarnation
            if not epoch <= batch.leader_epoch <= leader_epoch:
                return ErrorCode.CORRUPT_MESSAGE, log.state, self.incarnation
            end, epoch = batch.next_offset, batch.leader_epoch
        for batch in batches:
            log.append(batch)
            self._history.appended(self.disk.broker_id, log, leader_epoch)
        self._sync(log)
        self._raise_high_watermark(log, high_watermark)
        return ErrorCode.NONE, log.state, self.incarnation

    def _sync(self, log: Log) -> None:
        if log.flush_messages == 1:
            log.flushed = log.log_end_offset

    def _raise_high_watermark(self, log: Log, high_watermark: int) -> None:
        raised = max(log.high_watermark, min(high_watermark, log.log_end_offset))  # RULES 4.6
        if raised != log.high_watermark:
            log.high_watermark = raised
            self._history.follower_high_watermark(self.disk.broker_id, log)

    def on_truncate(
        self,
        reply: Reply,
        key: PartitionKey,
        leader_epoch: int,
        offset: int,
        unclean_epoch: int,
        expected: tuple[int, int],
        fully: bool,
    ) -> None:
        """(error, log state, incarnation)."""
        error = self._admit(key, Role.FOLLOWER, leader_epoch)
        log = self.disk.logs.get(key)
        if log is None or error is not ErrorCode.NONE:
            reply((error, None, self.incarnation))
            return
        if (log.log_end_offset, log.last_epoch) != expected:
            reply((ErrorCode.OFFSET_MISMATCH, log.state, self.incarnation))
            return
        cut = offset if fully or offset >= log.log_end_offset else log.batch_start(offset)
        if not fully:
            cut = min(cut, log.log_end_offset)
        if cut < log.high_watermark and unclean_epoch <= log.last_epoch:
            reply((ErrorCode.TRUNCATION_BELOW_HIGH_WATERMARK, log.state, self.incarnation))
            return
        dropped = log.drop_from(0 if fully else cut)
        assert not fully or cut == 0, "no log starts above 0 here"
        self._history.truncated(self.disk.broker_id, log, dropped)
        reply((ErrorCode.NONE, log.state, self.incarnation))

    def on_drop_damaged(self, reply: Reply, key: PartitionKey, leader_epoch: int, broker_epoch: int) -> None:
        """(error, incarnation). RULES 7.6. `broker_epoch` is for the history alone."""
        log = self.disk.logs.get(key)
        fence = self.disk.fences.get(key)
        if log is None or log.offline:
            reply((ErrorCode.UNKNOWN_TOPIC_ID if log is None else ErrorCode.LOG_STORAGE_ERROR, self.incarnation))
            return
        if fence is not None and (fence.leader_epoch, fence.role is Role.LEADER) >= (leader_epoch, True):
            reply((ErrorCode.STALE_FENCE, self.incarnation))
            return
        cut, log.damaged_from = log.damaged_from, None
        if cut is not None and cut < log.log_end_offset:
            dropped = log.drop_from(log.batch_start(cut))
            self._history.damage_dropped(self.disk.broker_id, broker_epoch, log, dropped)
        reply((ErrorCode.NONE, self.incarnation))

    def on_read(
        self, reply: Reply, key: PartitionKey, offset: int, max_offset: int, max_batches: int, whole: bool = True
    ) -> None:
        """(error, batches, incarnation). Those that compaction has dropped are among them where it is `whole`. Damage
        that it meets first is known from then on, and what stands behind it is not read."""
        log = self.disk.logs.get(key)
        if log is None or log.offline:
            reply((ErrorCode.UNKNOWN_TOPIC_ID if log is None else ErrorCode.LOG_STORAGE_ERROR, (), self.incarnation))
            return
        if not 0 <= offset <= log.log_end_offset:
            reply((ErrorCode.OFFSET_OUT_OF_RANGE, (), self.incarnation))
            return
        start = log.batch_start(offset)
        found: list[Batch] = []
        for batch in _from(log.batches, start):
            if batch.base_offset >= max_offset or len(found) == max_batches:
                break
            if batch.base_offset == log.unreadable and not found:
                log.damaged_from = log.unreadable
                reply((ErrorCode.CORRUPT_MESSAGE, (), self.incarnation))
                return
            if batch.base_offset == log.unreadable:
                break
            if whole or not batch.gone:
                found.append(batch)
        reply((ErrorCode.NONE, tuple(found), self.incarnation))

    def on_checkpoint(self, reply: Reply, marks: list[tuple[PartitionKey, int, int]]) -> None:
        for key, leader_epoch, high_watermark in marks:
            if self._admit(key, Role.LEADER, leader_epoch) is ErrorCode.NONE:
                self._raise_high_watermark(self.disk.logs[key], high_watermark)
        self.checkpoint()
        reply(self.incarnation)

    def checkpoint(self) -> None:
        for log in self.disk.logs.values():
            log.high_watermark_written = log.high_watermark

    def flush(self, key: PartitionKey) -> None:
        log = self.disk.logs.get(key)
        if log is not None and not self.disk.failed:
            log.flushed = log.log_end_offset

    def stop_cleanly(self) -> None:
        if self.disk.failed:
            self.kill()
            return
        self.disk.clean = not self.tail_lost and not any(log.offline for log in self.disk.logs.values())
        for log in self.disk.logs.values():
            log.flushed = log.log_end_offset
        self.checkpoint()
        self.kill()


def _from(batches: list[Batch], start: int) -> list[Batch]:
    low = len(batches)
    while low and batches[low - 1].base_offset >= start:
        low -= 1
    return batches[low:]
