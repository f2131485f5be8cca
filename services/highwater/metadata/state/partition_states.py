"""Partition states in etcd: read many at once, written by compare-and-swap alone (RULES 2.2 to 2.6)."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from highwater.metadata.schema.cluster_view import versioned_state, versioned_topic
from highwater.metadata.schema.controller_term import ControllerTerm
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import IsrNotification, PartitionState, TopicAssignment, VersionedState
from highwater.metadata.schema.reading import CorruptMetadataError, readable
from highwater.metadata.store.batches import ConditionalWrite, Outcome, WriteResult, write_in_batches
from highwater.metadata.store.etcd_errors import ControllerDeposed, GuardFailed
from highwater.metadata.store.store import Store
from highwater.metadata.store.transactions import Entry, Operation, Put, created_at, modified_at
from highwater.model.partition import PartitionKey
from highwater.rpc.process.loop_turn import by_turns

__all__ = [
    "IsrChange",
    "IsrWriter",
    "Outcome",
    "StateWrite",
    "StateWriteResult",
    "read_own_states",
    "read_placements",
    "read_states",
    "write_states",
]


@dataclass(frozen=True, slots=True)
class StateWrite:
    """A controller's write of one state. `compare_revision` is the mod revision that the decision was computed from;
    0: the state must not exist yet."""

    topic: str
    partition: int
    state: PartitionState
    compare_revision: int


@dataclass(frozen=True, slots=True)
class IsrChange:
    """A leader's proposal. `joining`: the broker epoch that each broker new to the ISR fetches under (RULES 2.3)."""

    key: PartitionKey
    topic: str
    state: PartitionState
    compare_revision: int
    joining: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StateWriteResult:
    outcome: Outcome
    revision: int = 0  # WRITTEN: the new state revision
    current: VersionedState | None = None  # REFUSED: the state as it stood then; None: there is none
    unreadable: bool = False  # REFUSED: there is one, which nobody can read


async def read_states(
    store: Store, keys: Keys, partitions: Iterable[tuple[str, int]], *, timeout_s: float | None = None
) -> tuple[dict[tuple[str, int], VersionedState], int]:
    """Linearizable read of the states that exist, by (topic, partition), all as of one revision, which comes second.
    Raises `CorruptMetadataError` where one of them cannot be read."""
    by_key = {keys.state(topic, partition): (topic, partition) for topic, partition in partitions}
    entries, revision = await store.get_many(by_key, timeout_s=timeout_s)
    return {by_key[key]: readable(entry, versioned_state) for key, entry in entries.items()}, revision


async def read_own_states(
    store: Store, keys: Keys, topics: Mapping[PartitionKey, str], *, timeout_s: float | None = None
) -> dict[PartitionKey, VersionedState]:
    """The same, by partition, of those whose topics still have these names. A topic that was made anew under the name
    of a deleted one is another (RULES 1.1), and its states begin at leader epoch 0. What cannot be read is left out."""
    wanted: dict[str, None] = {}
    async for key, topic in by_turns(topics.items()):
        wanted |= dict.fromkeys((keys.topic(topic), keys.state(topic, key.partition)))
    entries, _ = await store.get_many(wanted, timeout_s=timeout_s)
    topic_ids = await _topic_ids(entries, {keys.topic(topic) for topic in topics.values()})
    found = {}
    async for key, topic in by_turns(topics.items()):
        state = entries.get(keys.state(topic, key.partition))
        if state is None or topic_ids.get(keys.topic(topic)) != key.topic_id:
            continue
        with contextlib.suppress(CorruptMetadataError):
            found[key] = readable(state, versioned_state)
    return found


async def _topic_ids(entries: Mapping[str, Entry], topics: Collection[str]) -> dict[str, bytes]:
    """Of those keys that are topics' and can be read. An assignment is as long as its topic has partitions: it is
    parsed once, not for each of them."""
    found = {}
    async for name in by_turns(topics):
        entry = entries.get(name)
        if entry is not None:
            with contextlib.suppress(CorruptMetadataError):
                found[name] = readable(entry, versioned_topic).assignment.topic_id
    return found


async def read_placements(
    store: Store, keys: Keys, topic: str, partitions: Sequence[int]
) -> tuple[TopicAssignment, dict[int, VersionedState]] | None:
    """Linearizable read of a topic's assignment, once for all these partitions, and of their states, as of one
    revision: an assignment has leader epochs of its own (RULES 1.3). A state that is not there, or cannot be read, is
    left out. None: there is no such topic. Raises `CorruptMetadataError` where the assignment cannot be read."""
    by_key = {keys.state(topic, partition): partition async for partition in by_turns(partitions)}
    entries, _ = await store.get_many((keys.topic(topic), *by_key))
    assigned = entries.pop(keys.topic(topic), None)
    if assigned is None:
        return None
    assignment = readable(assigned, versioned_topic).assignment
    states = {}
    async for key, entry in by_turns(entries.items()):
        with contextlib.suppress(CorruptMetadataError):
            states[by_key[key]] = readable(entry, versioned_state)
    return assignment, states


async def write_states(
    store: Store, keys: Keys, term: ControllerTerm, writes: Sequence[StateWrite], *, timeout_s: float | None = None
) -> list[StateWriteResult]:
    """A controller's writes; one result for each, in order. Raises `ControllerDeposed`; some may be written then."""
    conditional = [
        ConditionalWrite(
            (modified_at(key, write.compare_revision),),
            (Put(key, write.state.to_json()),),
        )
        for write in writes
        for key in (keys.state(write.topic, write.partition),)
    ]
    try:
        results = await write_in_batches(store, conditional, guards=(term.guard(keys),), timeout_s=timeout_s)
    except GuardFailed as error:
        raise ControllerDeposed(str(error)) from error
    return [state_result(result) for result in results]


class IsrWriter:
    """Writes the ISR changes of the partitions that one broker leads."""

    def __init__(self, store: Store, keys: Keys, broker_id: int) -> None:
        self._store = store
        self._keys = keys
        self._broker_id = broker_id
        self._sequence = itertools.count(1)  # never the same name twice under one broker epoch

    async def write(
        self, changes: Sequence[IsrChange], broker_epoch: int, *, timeout_s: float | None = None
    ) -> list[StateWriteResult]:
        """One result for each change, in order; many changes share a transaction with the notification that names them
        (RULES 2.5). Every transaction also compares this broker's own registration: a broker that is not registered
        under `broker_epoch` any more stops leading (RULES 1.4) and has all its changes REFUSED.
        """
        keys = self._keys
        writes = [
            ConditionalWrite(
                (
                    modified_at(key, change.compare_revision),
                    created_at(keys.broker(self._broker_id), broker_epoch),
                    *(created_at(keys.broker(broker), epoch) for broker, epoch in sorted(change.joining.items())),
                ),
                (Put(key, change.state.to_json()),),
            )
            for change in changes
            for key in (keys.state(change.topic, change.key.partition),)
        ]

        def announce(batch: Sequence[int]) -> Sequence[Operation]:
            partitions = tuple((changes[index].topic, changes[index].key.partition) for index in batch)
            note = IsrNotification(self._broker_id, broker_epoch, next(self._sequence), partitions)
            return (Put(keys.isr_change(note.broker_id, note.broker_epoch, note.sequence), note.to_json()),)

        results = await write_in_batches(self._store, writes, companion=announce, timeout_s=timeout_s)
        return [state_result(result) for result in results]


def state_result(result: WriteResult) -> StateWriteResult:
    """A state that cannot be read is none of the others' business."""
    state = result.current[0] if result.current else None  # the state's own compare comes first
    try:
        current = None if state is None else readable(state, versioned_state)
    except CorruptMetadataError:
        return StateWriteResult(result.outcome, result.revision, unreadable=True)
    return StateWriteResult(result.outcome, result.revision, current)
