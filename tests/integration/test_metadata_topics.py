"""Topics made and deleted in steps that may be repeated: RULES 9.1 and 9.2. And the cluster's id, and producer ids."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from etcd_proxy import EtcdProxy

from highwater.metadata.local import LocalEtcd
from highwater.metadata.schema.cluster_view import ClusterSnapshot, decode_snapshot
from highwater.metadata.schema.controller_term import ControllerTerm
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import PartitionState, TopicAssignment
from highwater.metadata.state.cluster_id import ensure_cluster_id
from highwater.metadata.state.partition_states import Outcome, StateWrite
from highwater.metadata.state.producer_ids import ProducerIdAllocator, allocate_block
from highwater.metadata.state.topic_configs import VersionedConfig, read_topic_config, write_topic_config
from highwater.metadata.state.topics import (
    TopicExistsError,
    TopicMarkedForDeletionError,
    change_assignment,
    create_states,
    create_topic,
    delete_states,
    finish_deletion,
    mark_for_deletion,
    read_absent_topics,
    read_topics,
)
from highwater.metadata.store.etcd_errors import ControllerDeposed
from highwater.metadata.store.store import Store
from highwater.metadata.store.transactions import Delete

TOPIC = TopicAssignment("t", b"\1" * 16, ((1, 2), (2, 1)))
NAMESAKE = replace(TOPIC, topic_id=b"\2" * 16)
STATE = PartitionState(1, 0, 9, (1, 2))
CONFIG = {"min.insync.replicas": "2"}


async def view(store: Store, keys: Keys) -> ClusterSnapshot:
    return decode_snapshot(keys, await store.get_prefix(keys.everything))


async def test_creating_a_topic_may_be_taken_up_by_another_controller(
    store: Store, keys: Keys, term: ControllerTerm
) -> None:
    made = await create_topic(store, keys, term, TOPIC, CONFIG)
    assert await create_topic(store, keys, term, TOPIC, CONFIG) == made
    first = await create_states(store, keys, term, made, {0: STATE})
    snapshot = await view(store, keys)
    assert snapshot.topics == {"t": made}
    assert snapshot.topic_configs == {"t": CONFIG}
    results = await create_states(store, keys, term, made, {0: replace(STATE, leader=2), 1: STATE})
    assert [result.outcome for result in results] == [Outcome.REFUSED, Outcome.WRITTEN]
    assert results[0].current is not None
    assert results[0].current.revision == first[0].revision
    assert (await view(store, keys)).states.keys() == {("t", 0), ("t", 1)}


async def test_a_topic_is_absent_until_it_is_made_and_from_when_its_deletion_is_marked(
    store: Store, keys: Keys, term: ControllerTerm
) -> None:
    others = {"other", "../t", "", *(f"other-{number}" for number in range(200))}
    assert await read_absent_topics(store, keys, {"t", *others}) == {"t", *others}
    made = await create_topic(store, keys, term, TOPIC, CONFIG)
    assert await read_absent_topics(store, keys, {"t", *others}) == others
    assert await mark_for_deletion(store, keys, term, made)
    assert await read_absent_topics(store, keys, ["t"]) == {"t"}
    assert await read_absent_topics(store, keys, []) == frozenset()


async def test_a_name_is_taken_until_the_topic_is_gone(store: Store, keys: Keys, term: ControllerTerm) -> None:
    made = await create_topic(store, keys, term, TOPIC, CONFIG)
    await create_states(store, keys, term, made, {0: STATE, 1: STATE})
    with pytest.raises(TopicExistsError, match="topic t exists"):
        await create_topic(store, keys, term, NAMESAKE, {})
    assert not await delete_states(store, keys, term, "t", TOPIC.topic_id)  # not marked
    assert await mark_for_deletion(store, keys, term, made)
    assert await mark_for_deletion(store, keys, term, made)
    with pytest.raises(TopicMarkedForDeletionError, match="try again"):
        await create_topic(store, keys, term, NAMESAKE, {})
    marked = await read_topics(store, keys)
    assert marked.marked == {TOPIC.topic_id}
    assert marked.topics == {TOPIC.topic_id: made}
    assert await delete_states(store, keys, term, "t", TOPIC.topic_id)
    (late,) = await create_states(store, keys, term, made, {0: STATE})  # would pass to the next topic of this name
    assert late.outcome is Outcome.REFUSED
    assert (await view(store, keys)).states == {}
    assert await finish_deletion(store, keys, term, "t", TOPIC.topic_id)
    assert not await finish_deletion(store, keys, term, "t", TOPIC.topic_id)
    gone = await view(store, keys)
    assert (gone.topics, gone.topic_configs, gone.deletions) == ({}, {}, {})
    again = await create_topic(store, keys, term, NAMESAKE, {})
    assert again.create_revision > made.create_revision
    # Of the topic that had the name before, nothing can be made or deleted any more (RULES 1.1).
    assert not await mark_for_deletion(store, keys, term, made)
    assert not await finish_deletion(store, keys, term, "t", TOPIC.topic_id)
    (stale,) = await create_states(store, keys, term, made, {0: STATE})
    assert stale.outcome is Outcome.REFUSED


async def test_a_deposed_controller_neither_creates_nor_deletes(store: Store, keys: Keys, term: ControllerTerm) -> None:
    made = await create_topic(store, keys, term, TOPIC, CONFIG)
    await store.txn((), (Delete(keys.controller),))
    for step in (
        create_topic(store, keys, term, NAMESAKE, {}),
        create_states(store, keys, term, made, {0: STATE}),
        mark_for_deletion(store, keys, term, made),
        delete_states(store, keys, term, "t", TOPIC.topic_id),
        finish_deletion(store, keys, term, "t", TOPIC.topic_id),
        change_assignment(store, keys, term, made, TOPIC),
    ):
        with pytest.raises(ControllerDeposed):
            await step
    assert (await view(store, keys)).topics == {"t": made}


async def test_an_assignment_changes_together_with_the_states_or_not_at_all(
    store: Store, keys: Keys, term: ControllerTerm
) -> None:
    """RULES 2.2: a leader's pending ISR change cannot slip past it."""
    made = await create_topic(store, keys, term, TOPIC, CONFIG)
    (state,) = await create_states(store, keys, term, made, {0: STATE})
    moved = replace(TOPIC, replicas=((3, 2), (2, 1)))
    anew = StateWrite("t", 0, replace(STATE, leader=2, leader_epoch=1, isr=(2,)), state.revision)
    assert await change_assignment(store, keys, term, made, moved, [replace(anew, compare_revision=1)]) is None
    assert (await view(store, keys)).topics == {"t": made}
    changed = await change_assignment(store, keys, term, made, moved, [anew])
    assert changed is not None
    snapshot = await view(store, keys)
    assert snapshot.topics == {"t": changed}
    assert snapshot.states["t", 0].revision == changed.revision
    assert await change_assignment(store, keys, term, made, TOPIC) is None  # computed from the old one
    with pytest.raises(ValueError, match="at most 120"):
        await change_assignment(store, keys, term, changed, moved, [anew] * 121)
    with pytest.raises(ValueError, match="topic id"):
        await change_assignment(store, keys, term, changed, NAMESAKE)


async def test_a_topic_that_is_being_deleted_does_not_grow(store: Store, keys: Keys, term: ControllerTerm) -> None:
    """Its replicas were told to stop by the assignment as it was (RULES 9.2)."""
    made = await create_topic(store, keys, term, TOPIC, CONFIG)
    longer = replace(TOPIC, replicas=(*TOPIC.replicas, (1, 2)))
    assert await mark_for_deletion(store, keys, term, made)
    assert await change_assignment(store, keys, term, made, longer) is None
    assert (await view(store, keys)).topics == {"t": made}


async def test_a_configuration_is_written_over_the_one_that_was_read_and_no_other(
    store: Store, keys: Keys, term: ControllerTerm
) -> None:
    made = await create_topic(store, keys, term, TOPIC, CONFIG)
    read = await read_topic_config(store, keys, "t")
    assert read.config == CONFIG
    changed = {"retention.ms": "1"}
    # Another topic of the name (RULES 1.1).
    assert not await write_topic_config(store, keys, term, "t", made.create_revision - 1, read, changed)
    assert not await write_topic_config(store, keys, term, "t", made.create_revision, VersionedConfig({}, 0), changed)
    assert await write_topic_config(store, keys, term, "t", made.create_revision, read, changed)
    assert not await write_topic_config(store, keys, term, "t", made.create_revision, read, {})
    assert (await view(store, keys)).topic_configs == {"t": changed}
    assert (await read_topic_config(store, keys, "absent")) == VersionedConfig({}, 0)
    assert await mark_for_deletion(store, keys, term, made)
    read = await read_topic_config(store, keys, "t")
    assert not await write_topic_config(store, keys, term, "t", made.create_revision, read, {})
    await store.txn((), (Delete(keys.controller),))
    with pytest.raises(ControllerDeposed):
        await write_topic_config(store, keys, term, "t", made.create_revision, read, {})


async def test_a_cluster_has_one_id(store: Store, keys: Keys) -> None:
    assert await store.get(keys.cluster_id) is None
    assert (await read_topics(store, keys)).cluster_id == ""
    ids = await asyncio.gather(*(ensure_cluster_id(store, keys, f"candidate-{n}") for n in range(4)))
    assert len(set(ids)) == 1
    assert (await read_topics(store, keys)).cluster_id == ids[0]


async def test_no_producer_id_is_given_twice(store: Store, keys: Keys) -> None:
    allocators = [ProducerIdAllocator(store, keys, size=10) for _ in range(4)]
    given = await asyncio.gather(*(allocators[n % 4].next_id() for n in range(100)))
    assert len(set(given)) == 100
    block = await allocate_block(store, keys, 5)
    assert len(block) == 5
    assert block.start - 120 <= min(given) <= max(given) < block.start


async def test_of_ones_own_producer_id_others_cannot_be_told(store: Store, keys: Keys) -> None:
    allocator = ProducerIdAllocator(store, keys)
    given = [await allocator.next_id() for _ in range(50)]
    assert given != sorted(given)
    await store.txn((), (Delete(keys.producer_ids),))
    elsewhere = await allocate_block(store, keys)
    assert not set(elsewhere).intersection(range(min(given) - 1000, max(given) + 1000))
    assert 0 <= elsewhere.start <= 2**52


async def test_a_producer_id_block_of_unknown_outcome_is_given_up(etcd: LocalEtcd, store: Store, keys: Keys) -> None:
    async with EtcdProxy(etcd.address) as proxy, Store([proxy.address], timeout_s=0.3) as proxied:
        first = await allocate_block(proxied, keys)
        allocating = asyncio.create_task(allocate_block(proxied, keys))
        async with proxy.swallowing_answers():
            await asyncio.sleep(0.1)
        block = await allocating
        assert block.start >= first.stop
        assert (await allocate_block(store, keys)).start == block.stop
