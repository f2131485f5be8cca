"""Twenty members under random interleavings of requests, timeouts, failovers and changes of topics."""

from __future__ import annotations

import pytest
from group_world import GROUP, World, load

from highwater.groups.group import Group
from highwater.groups.records import Record
from highwater.groups.requests import GroupState
from highwater.groups.shard import GroupShard


def shown(shard: GroupShard) -> dict[str, object]:
    return {group_id: vars(group) for group_id, group in shard.state.groups.items()}


def indexes(shard: GroupShard) -> tuple[object, ...]:
    return (shard.state.subscribed, shard.state.with_patterns, shard.state.committed)


@pytest.mark.parametrize("seed", range(150))
@pytest.mark.parametrize(("clients", "steps"), [(20, 500), (3, 300)])
def test_no_partition_is_owned_twice_and_all_are_owned_in_the_end(seed: int, clients: int, steps: int) -> None:
    world = World(seed, clients)
    world.run(steps)
    group = world.shard.state.groups[GROUP]
    assert isinstance(group, Group)
    running = {client.member_id: client for client in world.clients if client.running}
    assert set(group.members) == set(running)
    if running:
        assert group.state is GroupState.STABLE
        there = {key for name in group.subscribed_topics() if (found := world.image.named(name)) for key in found.keys}
        assert set(group.owners) == there
        for member_id, client in running.items():
            assert client.reading == group.members[member_id].held == group.targets[member_id]


@pytest.mark.parametrize("seed", range(20))
def test_replayed_state_is_the_live_state_after_every_step(seed: int) -> None:
    world = World(seed, clients=6)
    for _ in range(250):
        world.step()
        replayed = load(world.log, world.image, world.now_ms)
        assert shown(replayed) == shown(world.shard)
        assert indexes(replayed) == indexes(world.shard)


@pytest.mark.parametrize("seed", range(20))
def test_a_compacted_log_says_the_same(seed: int) -> None:
    """The last value of every key, in the order of the log; then without tombstones."""
    world = World(seed, clients=6)
    for step in range(250):
        world.step()
        if step % 5:
            continue
        last: dict[bytes, Record] = {}
        for record in world.log:
            last.pop(record.key, None)
            last[record.key] = record
        for kept in (last.values(), [record for record in last.values() if record.value is not None]):
            replayed = load(kept, world.image, world.now_ms)
            assert shown(replayed) == shown(world.shard)
            assert indexes(replayed) == indexes(world.shard)


@pytest.mark.parametrize("seed", range(10))
def test_a_shard_that_replayed_any_prefix_carries_on(seed: int) -> None:
    world = World(seed, clients=6)
    for _ in range(150):
        world.step()
    for length in range(0, len(world.log), 3):
        again = World(seed + 1, clients=6)
        again.log, again.base, again.committed = world.log[:length], length, length
        again.image, again.now_ms = world.image, world.now_ms
        again.shard = load(again.log, again.image, again.now_ms, again.config)
        again.run(0)
        group = again.shard.state.groups[GROUP]
        assert group.state is GroupState.STABLE
        assert set(group.members) == {client.member_id for client in again.clients}
