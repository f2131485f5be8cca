"""Logs in which scrubbing has found damage: out of the ISR, cut, and copied anew from the leader (RULES 7.6).

What is damaged lies below the high watermark, so it is dropped only when this replica counts for nothing any more:

1. Where the ISR can spare it, the broker stops leading or following the partition, and registers anew. So no fetch that
   is still under way can bring it back into the ISR: a joining compares the broker epoch of the fetches (RULES 2.3).
2. Asked to take the partition up again, it answers that the log is damaged. The controller elects another leader, if it
   led, and takes it out of the ISR and `elr` (RULES 7.3: it enters none).
3. Told so, it reads the state once more: what etcd shows under the new broker epoch stays as it is, as nobody can add
   a replica that does not fetch. Then it has log-storage drop the damaged segment and all behind it, and follows.

Where nobody else leads, the others are too few by now, or it does not come about in `PATIENCE_MS`, the replica goes on
as it is and tries again later: a damaged replica is better than none. That holds where it counts for nothing, too:
while nobody leads there is nobody to copy from, and an election by log may have to do with what it has (RULES 7.4).
The controller hears that it is damaged with the answers to instructions, and lets a sound member of the ISR lead.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from logging import ERROR, WARNING

from highwater.errors import ErrorCode
from highwater.log_storage_client.client import LogStorageClient
from highwater.log_storage_client.values import StorageError
from highwater.metadata.schema.models import NO_LEADER, PartitionState
from highwater.metadata.store.etcd_errors import StoreError
from highwater.model.damaged_replicas import fewest_sound
from highwater.model.partition import PartitionKey
from highwater.replica_manager.replicas.hosted_partition import HostedPartition
from highwater.replica_manager.replicas.metadata_cache import MetadataCache
from highwater.replica_manager.storage.inquiry import Inquiry
from highwater.rpc.partition_keys import from_key
from highwater.supervision import TaskSupervisor
from highwater.telemetry.log import get_logger, pairs
from highwater.telemetry.summed_log import SummedLog

partition_lines = SummedLog(get_logger("replica_manager.damaged_logs"))

PATIENCE_MS = 15_000
RETRY_MS = 60_000
REPORT_GAP_MS = 5_000  # between two reports: with each the controller asks for all that the broker hosts
_NOT_YET = StorageError(
    ErrorCode.LOG_STORAGE_ERROR,
    "the log is damaged: it is mended when this replica is neither in the ISR nor in elr",
)


class DamagedLogs:
    """`leave` stops what the partition does here; `register_anew` ends the registration and makes another. `read_state`
    is a linearizable read of the state in etcd, None where there is none; it raises `StoreError`. `dropped` is called
    when log-storage has dropped the damage of a log: how many are damaged is to be told anew. `report` has the
    controller ask which are."""

    def __init__(
        self,
        broker_id: int,
        storage: LogStorageClient,
        hosted: Mapping[PartitionKey, HostedPartition],
        metadata: MetadataCache,
        *,
        leave: Callable[[HostedPartition], None],
        register_anew: Callable[[], None],
        read_state: Callable[[str, int], Awaitable[PartitionState | None]],
        broker_epoch: Callable[[], int | None],
        dropped: Callable[[], None],
        report: Callable[[], None],
        now_ms: Callable[[], int],
        supervisor: TaskSupervisor | None = None,
    ) -> None:
        self._broker_id = broker_id
        self._storage = storage
        self._hosted = hosted
        self._metadata = metadata
        self._leave = leave
        self._register_anew = register_anew
        self._read_state = read_state
        self._broker_epoch = broker_epoch
        self._dropped = dropped
        self._report = report
        self._now_ms = now_ms
        self._due_ms: dict[PartitionKey, int] = {}  # damaged: when it may be tried to mend it
        self._leaving_since_ms: dict[PartitionKey, int] = {}
        self._left_under: dict[PartitionKey, int | None] = {}  # the broker epoch that may have fetched it
        self._last_left_under: int | None = None
        self._dropping: set[PartitionKey] = set()
        self._reported: set[PartitionKey] = set()  # of the damaged, those that are led here
        self._report_due = False
        self._report_from_ms = now_ms()
        self._inquiry = Inquiry("damaged", self._ask, self.found, supervisor)

    def __contains__(self, key: PartitionKey) -> bool:
        """Tells whether the replica is on its way out of the ISR: it neither leads nor follows meanwhile."""
        return key in self._leaving_since_ms

    def __len__(self) -> int:
        return len(self._due_ms)

    def is_damaged(self, key: PartitionKey) -> bool:
        """Tells whether the log is known to be damaged, be it on its way out of the ISR or kept as it is."""
        return key in self._due_ms

    def restarted(self) -> None:
        """Another incarnation of log-storage: it has forgotten what it had found."""
        self._due_ms.clear()
        self._leaving_since_ms.clear()
        self._left_under.clear()
        self._reported.clear()
        self._inquiry.outdated()

    def count_changed(self, count: int) -> None:
        """The number of damaged logs is another one than before: which they are is asked for."""
        self._inquiry.begin()

    async def stop(self) -> None:
        await self._inquiry.stop()

    async def _ask(self) -> set[PartitionKey]:
        described = await self._storage.describe_logs()
        return {from_key(log.partition) for log in described.logs if log.damaged}

    def found(self, damaged: set[PartitionKey]) -> None:
        """These are all that are damaged now."""
        mended = self._due_ms.keys() - damaged
        for key in mended:
            del self._due_ms[key]
        self._reported -= mended
        # From any answer since the controller may know of them. It asks again by itself for those that leave the ISR.
        self._report_due |= bool(mended - self._leaving_since_ms.keys())
        for key in damaged - self._due_ms.keys():
            partition_lines.note(ERROR, "a log is damaged", pairs(partition=key))
            self._due_ms[key] = self._now_ms()

    def look(self) -> Iterator[None]:
        """Goes through what is due, to its end every second or so, a step for each damaged log: others may have their
        turn between two. The broker registers once, at the end, for all that have left; not where it has done so since
        the last of them left."""
        now_ms = self._now_ms()
        for key, since_ms in list(self._leaving_since_ms.items()):
            if now_ms - since_ms >= PATIENCE_MS and key not in self._dropping:
                self._give_up(key)
        for key in list(self._due_ms):
            self._look_at(key)
            yield
        if self._last_left_under is not None and self._last_left_under == self._broker_epoch():
            self._register_anew()
        if self._report_due and now_ms >= self._report_from_ms:
            self._report_due, self._report_from_ms = False, now_ms + REPORT_GAP_MS
            self._report()

    def _look_at(self, key: PartitionKey) -> None:
        now_ms, hosted, due_ms = self._now_ms(), self._hosted.get(key), self._due_ms.get(key)
        if hosted is None or due_ms is None or key in self._leaving_since_ms:
            return
        if now_ms < due_ms and key in self._reported:
            return
        state = self._known_state(hosted)
        if state is None or state.leader == NO_LEADER:
            return  # it would be given up at once, and to register anew costs the broker its leaderships
        if now_ms >= due_ms and self._can_spare(hosted, state):
            partition_lines.note(WARNING, "a damaged log leaves the ISR", pairs(partition=key))
            self._leaving_since_ms[key] = now_ms
            self._left_under[key] = self._last_left_under = self._broker_epoch()
            self._leave(hosted)
        elif key not in self._reported and state.leader == self._broker_id and self._others(state) > 0:
            self._reported.add(key)  # another member of the ISR could lead in its place: the controller decides
            self._report_due = True

    def _give_up(self, key: PartitionKey) -> None:
        partition_lines.note(WARNING, "a damaged log cannot be mended now", pairs(partition=key))
        del self._leaving_since_ms[key], self._left_under[key]
        if key in self._due_ms:  # its log may have been deleted meanwhile, or begin later
            self._due_ms[key] = self._now_ms() + RETRY_MS

    def _can_spare(self, hosted: HostedPartition, state: PartitionState) -> bool:
        """Tells whether enough others are in the ISR, as far as is known here: the leader or the controller decides."""
        partition = hosted.partition
        return self._others(state) >= max(1, fewest_sound(partition.min_insync_replicas, partition.replicas))

    def _known_state(self, hosted: HostedPartition) -> PartitionState | None:
        """The newest."""
        topic = self._metadata.by_id(hosted.key.topic_id)
        cached = None if topic is None else topic.partitions.get(hosted.key.partition)
        committed = hosted.partition.committed
        if committed is None or (cached is not None and cached.revision > committed.revision):
            return None if cached is None else cached.state
        return committed.state

    def _others(self, state: PartitionState) -> int:
        """The number of registered members of the ISR beside this one."""
        return sum(each != self._broker_id and each in self._metadata.brokers for each in state.isr)

    async def mend(self, topic: str, key: PartitionKey, state: PartitionState, fewest: int) -> StorageError | None:
        """On an instruction with this state, and a configuration by which `fewest` have to be left. None: the log may
        be taken up, as it is mended, or as nobody else may lead or the others are too few. Raises
        `StorageUnavailableError`."""
        leaving_since_ms, broker_epoch = self._leaving_since_ms.get(key), self._broker_epoch()
        if leaving_since_ms is None:
            return (
                None  # since it was to be mended it was given up, or log-storage started again and knows of no damage
            )
        if broker_epoch in (None, self._left_under.get(key)):
            return _NOT_YET  # also where it says that this replica leads: of a leader that has left that is over
        if state.leader in (self._broker_id, NO_LEADER) or not self._is_spared(state, fewest):
            self._give_up(key)
            return None
        if self._counts(state):
            return _NOT_YET
        self._dropping.add(key)
        try:
            # The instruction's may be older than a joining under the broker epoch before.
            committed = await self._read_state(topic, key.partition)
            if committed is None or committed.leader == NO_LEADER or self._counts(committed):
                return _NOT_YET
            if (leaving_since_ms, broker_epoch) != (self._leaving_since_ms.get(key), self._broker_epoch()):
                return _NOT_YET  # it may have been taken up meanwhile, and be in the ISR by now
            error = await self._storage.drop_damaged(key, committed.leader_epoch)
        except StoreError as failure:
            return StorageError(ErrorCode.LOG_STORAGE_ERROR, f"the log is damaged, and etcd does not answer: {failure}")
        finally:
            self._dropping.discard(key)
        if error.code is not ErrorCode.NONE:
            return error
        partition_lines.note(WARNING, "a damaged log was cut, to be copied anew", pairs(partition=key))
        self._leaving_since_ms.pop(key, None)
        self._left_under.pop(key, None)
        self._due_ms.pop(key, None)
        self._reported.discard(key)
        self._inquiry.outdated()
        self._dropped()
        return None

    def _is_spared(self, state: PartitionState, fewest: int) -> bool:
        """Tells whether the controller takes it out: not where it has taken another damaged replica out before it. As
        long as this one waited in the ISR, copying nothing, nothing would be committed."""
        left = {*state.isr, *state.elr} - {self._broker_id}
        return not self._counts(state) or len(left) >= fewest

    def _counts(self, state: PartitionState) -> bool:
        """Tells whether the replica leads, or is in the ISR or in `elr`: its log may not be cut then (RULES 7.6)."""
        return self._broker_id in (state.leader, *state.isr, *state.elr)
