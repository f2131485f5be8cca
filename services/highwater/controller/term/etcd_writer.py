"""Carries the state machines' writes to etcd, and tells them what became of each (RULES 2.2, 2.4, 2.6)."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from highwater.controller.state_machines.actions import Action, RecordTail, RemoveStates, RemoveTopic, Write, WriteState
from highwater.controller.state_machines.cluster import Cluster
from highwater.controller.term.election_metrics import ElectionMetrics
from highwater.metadata.schema.controller_term import ControllerTerm
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import PartitionState, VersionedState
from highwater.metadata.state.brokers import record_tail
from highwater.metadata.state.partition_states import (
    Outcome,
    StateWrite,
    StateWriteResult,
    read_own_states,
    write_states,
)
from highwater.metadata.state.topics import create_states, delete_states, finish_deletion
from highwater.metadata.store.etcd_errors import StoreError, may_pass
from highwater.metadata.store.store import Store
from highwater.supervision import TaskGroup
from highwater.telemetry.log import get_logger, pairs

_log = get_logger(__name__)

RETRY_PAUSE_S = 0.1
WRITE_TIMEOUT_S = 2.0
AT_ONCE = 480
"""States that are written, and concluded, before others have a turn of the event loop: each is some 15 us of it."""

_Answer = TypeVar("_Answer")


class EtcdWriter:
    """Every write is guarded by the term. `perform` is given what the cluster wants after each outcome. Methods raise
    `ControllerDeposed`, and wait out etcd's troubles, refusals too."""

    def __init__(
        self,
        store: Store,
        keys: Keys,
        term: ControllerTerm,
        cluster: Cluster,
        perform: Callable[[Sequence[Action]], None],
        elections: ElectionMetrics | None = None,
    ) -> None:
        self._store = store
        self._keys = keys
        self._term = term
        self._cluster = cluster
        self._perform = perform
        self._elections = elections
        # Refused by a state in etcd that nobody can read. Nothing else is decided about these partitions.
        self._waiting: dict[tuple[str, int], WriteState] = {}

    def state_told(self, topic: str, partition: int, found: VersionedState | None) -> None:
        """A state that was put right, or deleted, is what a write that waits for that has met."""
        write = self._waiting.pop((topic, partition), None)
        if write is not None:
            self._perform(self._cluster.refused([(write, found)]))

    def all_told(self, states: Mapping[tuple[str, int], VersionedState]) -> None:
        """The same, of all states that can be read. A write whose state is still not among them meets it again."""
        for place in tuple(self._waiting):
            self.state_told(*place, states.get(place))

    async def carry_out(self, writes: Sequence[Write]) -> None:
        """All of them, beside one another."""
        states = [write for write in writes if isinstance(write, WriteState)]
        elections = [write for write in states if write.compare_revision]
        creations: dict[str, list[WriteState]] = defaultdict(list)
        for write in states:
            if not write.compare_revision:
                creations[write.topic].append(write)
        async with TaskGroup() as tasks:
            if elections:
                tasks.create_task(self._write_states(elections))
            for topic, created in creations.items():
                tasks.create_task(self._create_states(topic, created))
            for other in writes:
                match other:
                    case RecordTail():
                        tasks.create_task(self._record_tail(other))
                    case RemoveStates():
                        tasks.create_task(self._remove_states(other))
                    case RemoveTopic():
                        tasks.create_task(self._remove_topic(other))
                    case WriteState():
                        pass  # above

    async def _write_states(self, writes: Sequence[WriteState]) -> None:
        for piece in _pieces(writes):
            decided_s = time.perf_counter()
            known = {write.key: self._known(write) for write in piece}
            wanted = [
                StateWrite(write.topic, write.key.partition, write.state, write.compare_revision) for write in piece
            ]
            results = await write_states(self._store, self._keys, self._term, wanted, timeout_s=WRITE_TIMEOUT_S)
            if self._elections is not None:
                done = zip(piece, results, strict=True)
                written = [(write, known[write.key]) for write, result in done if result.outcome is Outcome.WRITTEN]
                self._elections.written(written, time.perf_counter() - decided_s)
            await self._conclude(piece, results)

    def _known(self, write: WriteState) -> PartitionState | None:
        partition = self._cluster.topics.partition(write.key)
        return None if partition is None or partition.versioned is None else partition.versioned.state

    async def _create_states(self, name: str, writes: Sequence[WriteState]) -> None:
        for piece in _pieces(writes):
            topic = self._cluster.topics.named(name)
            if topic is None or topic.topic_id != writes[0].key.topic_id:
                return  # deleted meanwhile, and nothing waits for these states any more
            states = {write.key.partition: write.state for write in piece}
            results = await create_states(self._store, self._keys, self._term, topic.versioned, states)
            await self._conclude(piece, results)

    async def _conclude(self, writes: Sequence[WriteState], results: Sequence[StateWriteResult]) -> None:
        written: dict[int, list[WriteState]] = defaultdict(list)
        refused: list[tuple[WriteState, VersionedState | None]] = []
        unsettled = []
        for write, result in zip(writes, results, strict=True):
            match result.outcome:
                case Outcome.WRITTEN:
                    written[result.revision].append(write)
                case Outcome.REFUSED if result.unreadable:
                    known = self._cluster.topics.partition(write.key)
                    told = None if known is None else known.versioned
                    if told is not None and told.revision > write.compare_revision:
                        refused.append((write, told))  # the watch was faster than this answer
                    else:
                        self._waiting[write.topic, write.key.partition] = write
                case Outcome.REFUSED:
                    refused.append((write, result.current))
                case Outcome.UNAVAILABLE | Outcome.UNKNOWN:
                    unsettled.append(write)
        for revision, done in written.items():
            self._perform(self._cluster.written(done, revision))
        if refused:
            _log.info("writes lost their race %s", pairs(states=len(refused)))
            self._perform(self._cluster.refused(refused))
        if unsettled:
            await self._settle(unsettled)

    async def _settle(self, writes: Sequence[WriteState]) -> None:
        """RULES 2.4: what a re-read shows; where it is what was compared, the cluster writes again, and one of the two
        wins. A controller that was deposed and does not know it comes here too, since reading asks for no term: by
        then another topic may have the name."""
        _log.warning("etcd did not do some writes, or did not say so: reading them %s", pairs(states=len(writes)))
        await asyncio.sleep(RETRY_PAUSE_S)
        topics = {write.key: write.topic for write in writes}
        found = await self._until_answered(lambda: read_own_states(self._store, self._keys, topics))
        self._perform(self._cluster.refused([(write, found.get(write.key)) for write in writes]))

    async def _record_tail(self, record: RecordTail) -> None:
        await self._until_answered(
            lambda: record_tail(self._store, self._keys, self._term, record.broker_id, record.broker_epoch)
        )
        self._cluster.tail_recorded(record.broker_id, record.broker_epoch)

    async def _remove_states(self, removal: RemoveStates) -> None:
        await self._until_answered(
            lambda: delete_states(self._store, self._keys, self._term, removal.topic, removal.topic_id)
        )
        self._perform(self._cluster.states_removed(removal.topic_id))

    async def _remove_topic(self, removal: RemoveTopic) -> None:
        # The watch tells the cluster, as it tells of creations: so the two never come in the wrong order.
        await self._until_answered(
            lambda: finish_deletion(self._store, self._keys, self._term, removal.topic, removal.topic_id)
        )

    @staticmethod
    async def _until_answered(ask: Callable[[], Awaitable[_Answer]]) -> _Answer:
        """For what may be repeated."""
        while True:
            try:
                return await ask()
            except StoreError as error:
                if not may_pass(error):
                    raise
                _log.warning("etcd does not answer, trying again: %s", error)
                await asyncio.sleep(RETRY_PAUSE_S)


def _pieces(writes: Sequence[WriteState]) -> Iterator[Sequence[WriteState]]:
    return (writes[first : first + AT_ONCE] for first in range(0, len(writes), AT_ONCE))
