"""Creating and deleting topics in steps, each one a guarded transaction that may be repeated: a new controller
finishes what it finds half-done (RULES 9.1, 9.2)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from highwater.metadata.schema.cluster_view import marked_topic_id, versioned_topic
from highwater.metadata.schema.controller_term import ControllerTerm
from highwater.metadata.schema.keys import Keys, TopicKey
from highwater.metadata.schema.models import PartitionState, TopicAssignment, VersionedTopic, config_to_json
from highwater.metadata.schema.reading import CorruptMetadataError, readable
from highwater.metadata.state.cluster_id import cluster_id_of
from highwater.metadata.state.partition_states import StateWrite, StateWriteResult, state_result
from highwater.metadata.store.batches import BATCH_WRITES, ConditionalWrite, write_in_batches
from highwater.metadata.store.etcd_errors import ControllerDeposed, GuardFailed
from highwater.metadata.store.store import Store
from highwater.metadata.store.transactions import (
    Compare,
    Delete,
    DeletePrefix,
    Get,
    Operation,
    Put,
    TxnResult,
    absent,
    created_at,
    modified_at,
    value_is,
)
from highwater.model.topic_name import is_legal_topic_name


class TopicExistsError(Exception):
    """A topic of this name, with another id, exists."""


class TopicMarkedForDeletionError(Exception):
    """A topic of this name is still being deleted: try again later."""


@dataclass(frozen=True, slots=True)
class TopicsRead:
    """A linearizable read of which topics there are, enough to decide on strays (RULES 9.3)."""

    cluster_id: str  # "" where the cluster has none: then nothing may be concluded
    topics: dict[bytes, VersionedTopic]  # by topic id
    marked: frozenset[bytes]  # topic ids that are being deleted
    revision: int
    unreadable: tuple[str, ...] = ()  # keys of topics: of what is not among `topics`, nothing may be concluded


async def read_topics(store: Store, keys: Keys) -> TopicsRead:
    entries, revision = await store.get_many((keys.cluster_id,))
    topics = await store.get_prefix(keys.topics, revision=revision)
    markers = await store.get_prefix(keys.delete_topics, revision=revision)
    found: dict[bytes, VersionedTopic] = {}
    unreadable = []
    for entry in topics.entries:
        if not isinstance(keys.parse(entry.key), TopicKey):
            continue
        try:
            topic = readable(entry, versioned_topic)
        except CorruptMetadataError:
            unreadable.append(entry.key)
        else:
            found[topic.assignment.topic_id] = topic
    marked = []
    for entry in markers.entries:
        with contextlib.suppress(CorruptMetadataError):
            marked.append(readable(entry, marked_topic_id))
    return TopicsRead(
        cluster_id_of(entries.get(keys.cluster_id)),
        found,
        frozenset(marked),
        revision,
        tuple(unreadable),
    )


async def read_absent_topics(
    store: Store, keys: Keys, names: Iterable[str], *, timeout_s: float | None = None
) -> frozenset[str]:
    """Those of the names that no topic has, or one that is being deleted, by a linearizable read (RULES 9.5)."""
    wanted = list(names)
    legal = [name for name in wanted if is_legal_topic_name(name)]
    wanted_keys = (key for name in legal for key in (keys.topic(name), keys.delete_topic(name)))
    entries, _ = await store.get_many(wanted_keys, timeout_s=timeout_s)
    there = {name for name in legal if keys.topic(name) in entries and keys.delete_topic(name) not in entries}
    return frozenset(wanted) - there


# Creating: the topic, then its states.


async def create_topic(
    store: Store, keys: Keys, term: ControllerTerm, assignment: TopicAssignment, config: Mapping[str, str]
) -> VersionedTopic:
    """Puts the topic's key and configuration if there is none of its name and none is being deleted.

    With the same topic id it may be repeated after `OutcomeUnknown`. Raises `TopicExistsError`,
    `TopicMarkedForDeletionError`, `ControllerDeposed`, `Unavailable`, `OutcomeUnknown`.
    """
    key, marker = keys.topic(assignment.topic), keys.delete_topic(assignment.topic)
    result = await _guarded(
        store,
        keys,
        term,
        (absent(key), absent(marker)),
        (Put(key, assignment.to_json()), Put(keys.topic_config(assignment.topic), config_to_json(config))),
        (Get(key), Get(marker)),
    )
    if result.succeeded:
        return VersionedTopic(assignment, result.revision, result.revision)
    found, marked = result.entries
    if marked is not None:
        raise TopicMarkedForDeletionError(f"topic {assignment.topic} is being deleted: try again when that is done")
    assert found is not None, "the transaction was refused for no reason"
    try:
        existing = readable(found, versioned_topic)
    except CorruptMetadataError as error:
        raise TopicExistsError(f"topic {assignment.topic} exists, and {error}") from None
    if existing.assignment.topic_id != assignment.topic_id:
        raise TopicExistsError(f"topic {assignment.topic} exists")
    return existing


async def create_states(
    store: Store, keys: Keys, term: ControllerTerm, topic: VersionedTopic, states: Mapping[int, PartitionState]
) -> list[StateWriteResult]:
    """Puts the states, by partition, that do not exist yet, as long as it is still this very topic and not marked for
    deletion: a write that comes after the states were removed would pass its state on to the next topic of the name.
    One result for each in the order given; a state that exists is REFUSED and comes with the result. Raises
    `ControllerDeposed`."""
    name = topic.assignment.topic
    writes = [
        ConditionalWrite(
            (absent(key), created_at(keys.topic(name), topic.create_revision), absent(keys.delete_topic(name))),
            (Put(key, state.to_json()),),
        )
        for partition, state in states.items()
        for key in (keys.state(name, partition),)
    ]
    try:
        results = await write_in_batches(store, writes, guards=(term.guard(keys),))
    except GuardFailed as error:
        raise ControllerDeposed(str(error)) from error
    return [state_result(result) for result in results]


async def change_assignment(
    store: Store,
    keys: Keys,
    term: ControllerTerm,
    current: VersionedTopic,
    assignment: TopicAssignment,
    states: Sequence[StateWrite] = (),
) -> VersionedTopic | None:
    """Writes a new assignment together with the states of the partitions whose replicas it changes (RULES 2.2); added
    partitions get theirs by `create_states`. None: the topic or one of the states was written meanwhile, or the topic
    is being deleted (its replicas were told to stop by the assignment as it was).

    Raises `ValueError` above 120 states: change that many at a time. Else as `create_topic`.
    """
    if len(states) > BATCH_WRITES:
        raise ValueError(f"an assignment changes at most {BATCH_WRITES} partitions at a time, not {len(states)}")
    if assignment.topic_id != current.assignment.topic_id:
        raise ValueError(f"topic {assignment.topic}: an assignment cannot change the topic id")
    key = keys.topic(assignment.topic)
    compares = [modified_at(key, current.revision), absent(keys.delete_topic(assignment.topic))]
    puts: list[Operation] = [Put(key, assignment.to_json())]
    for write in states:
        state_key = keys.state(write.topic, write.partition)
        compares.append(modified_at(state_key, write.compare_revision))
        puts.append(Put(state_key, write.state.to_json()))
    result = await _guarded(store, keys, term, compares, puts)
    return VersionedTopic(assignment, current.create_revision, result.revision) if result.succeeded else None


# Deleting: the marker, the replicas (by the brokers), the states, then the rest.


async def mark_for_deletion(store: Store, keys: Keys, term: ControllerTerm, topic: VersionedTopic) -> bool:
    """Puts the deletion marker. False: this very topic does not exist any more. Repeating it is harmless."""
    assignment = topic.assignment
    marker = keys.delete_topic(assignment.topic)
    result = await _guarded(
        store,
        keys,
        term,
        (created_at(keys.topic(assignment.topic), topic.create_revision),),
        (Put(marker, assignment.topic_id.hex().encode()),),
    )
    return result.succeeded


async def delete_states(store: Store, keys: Keys, term: ControllerTerm, topic: str, topic_id: bytes) -> bool:
    """Deletes all states of a topic marked for deletion. False: it is not marked (any more)."""
    marked = value_is(keys.delete_topic(topic), topic_id.hex().encode())
    result = await _guarded(store, keys, term, (marked,), (DeletePrefix(keys.partitions(topic)),))
    return result.succeeded


async def finish_deletion(store: Store, keys: Keys, term: ControllerTerm, topic: str, topic_id: bytes) -> bool:
    """Deletes topic, configuration and marker together, the last step. False: the topic is not marked (any more)."""
    marker = keys.delete_topic(topic)
    result = await _guarded(
        store,
        keys,
        term,
        (value_is(marker, topic_id.hex().encode()),),
        (Delete(keys.topic(topic)), Delete(keys.topic_config(topic)), Delete(marker)),
    )
    return result.succeeded


async def _guarded(
    store: Store,
    keys: Keys,
    term: ControllerTerm,
    compares: Sequence[Compare],
    then: Sequence[Operation],
    otherwise: Sequence[Get] = (),
) -> TxnResult:
    guard = term.guard(keys)
    result = await store.txn((guard, *compares), then, (*otherwise, Get(guard.key)))
    if result.succeeded:
        return result
    *entries, controller = result.entries
    if not guard.holds(controller):
        raise ControllerDeposed(f"controller epoch {term.controller_epoch} has ended")
    return TxnResult(False, result.revision, tuple(entries))
