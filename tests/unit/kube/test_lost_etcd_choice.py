"""RULES 7.9: the log that a partition goes on with has every acknowledged record, or it is said why it may not."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replication_model import TOPIC_ID, Batch, Partition, Volume

from highwater.kube.lost_etcd.choice import agreed_end, choose
from highwater.kube.lost_etcd.inventory import Replica

STEPS = 300


def inventories(volumes: Mapping[int, Volume]) -> dict[int, Replica]:
    return {broker: volume.inventory() for broker, volume in volumes.items()}


def lacks(partition: Partition, volume: Volume) -> list[int]:
    """Offsets of acknowledged records that the volume does not have."""
    return [offset for offset, batch in partition.acknowledged.items() if volume.log[offset : offset + 1] != [batch]]


def history(seed: int, brokers: int, minimum: int, *, losses: bool = False) -> Partition:
    chance = random.Random(seed)
    partition = Partition(brokers, minimum, chance, losses=losses)
    for _ in range(chance.randrange(50, 2 * STEPS) if losses else chance.randrange(10, STEPS)):
        partition.step()
    return partition


@settings(max_examples=400, deadline=None)
@given(seed=st.integers(0, 2**32), brokers=st.integers(2, 4), minimum=st.integers(1, 3), data=st.data())
def test_nothing_acknowledged_is_lost_without_a_doubt(
    seed: int, brokers: int, minimum: int, data: st.DataObject
) -> None:
    minimum = min(minimum, brokers)
    partition = history(seed, brokers, minimum)
    missing = data.draw(st.sets(st.integers(0, brokers - 1), max_size=brokers - 1), label="missing")
    left = {broker: volume for broker, volume in enumerate(partition.volumes) if broker not in missing}
    choice = choose(inventories(left), absent=missing, min_insync_replicas=minimum)
    if not choice.doubts:
        assert not lacks(partition, partition.volumes[choice.broker_id])
    if len(missing) >= minimum:
        assert choice.doubts
    if not missing:  # whatever is doubted then: the last leader's log has everything
        assert not lacks(partition, partition.volumes[choice.broker_id])


@settings(max_examples=400, deadline=None)
@given(seed=st.integers(0, 2**32), brokers=st.integers(3, 4), minimum=st.integers(2, 3), data=st.data())
def test_lost_tails_lose_nothing_without_a_doubt(seed: int, brokers: int, minimum: int, data: st.DataObject) -> None:
    """Fewer volumes than the minimum are missing or have lost their ends; those that are back and not yet in the ISR
    count, though nobody knows of them any more."""
    partition = history(seed, brokers, minimum, losses=True)
    spare = minimum - 1 - len(partition.lost)
    missing = data.draw(st.sets(st.integers(0, brokers - 1), max_size=spare), label="missing")
    check_with_lost_tails(partition, partition.volumes, missing, partition.tail_lost)


def test_every_end_of_a_volume_is_lost() -> None:
    """With the etcd."""
    for seed in range(2300, 2600):
        partition = history(seed, 3, 2, losses=True)
        check_with_lost_tails(partition, partition.volumes, set(), partition.tail_lost)
        if not partition.lost:
            for broker, volume in enumerate(partition.volumes):
                for end in range(len(volume.log)):
                    left = copy.deepcopy(partition.volumes)
                    left[broker].lose_tail(end)
                    check_with_lost_tails(partition, left, set(), {broker})


def check_with_lost_tails(
    partition: Partition, volumes: Sequence[Volume], missing: set[int], tail_lost: set[int]
) -> None:
    left = {broker: volume for broker, volume in enumerate(volumes) if broker not in missing}
    tails = tail_lost - missing
    choice = choose(inventories(left), absent=missing, tail_lost=tails, min_insync_replicas=partition.minimum)
    if not choice.doubts:
        assert not lacks(partition, volumes[choice.broker_id])
        if choice.broker_id in tails:  # the election that follows is one by log (RULES 7.4)
            elected = max(left, key=lambda broker: (left[broker].last_epoch, len(left[broker].log)))
            assert not lacks(partition, volumes[elected])


def losses(chosen: Callable[[dict[int, Replica]], int]) -> int:
    """In how many of many histories a choice loses what was acknowledged, with all volumes there."""
    found = 0
    for seed in range(6900, 7900):
        partition = history(seed, 3, 2)
        found += bool(lacks(partition, partition.volumes[chosen(inventories(dict(enumerate(partition.volumes))))]))
    return found


def test_the_model_finds_a_choice_that_loses_records() -> None:
    """What `choose` is spared: the longest log, the log of the latest epoch, and the latest fence, each lose some."""
    assert losses(lambda replicas: max(replicas, key=lambda broker: replicas[broker].log_end_offset))
    assert losses(lambda r: max(r, key=lambda broker: (r[broker].last_epoch, r[broker].log_end_offset)))
    assert losses(lambda r: max(r, key=lambda b: (r[b].fence_epoch, r[b].last_epoch, r[b].log_end_offset)))


def test_doubts_are_rare_where_every_volume_is_there() -> None:
    doubted = 0
    for seed in range(500):
        volumes = dict(enumerate(history(seed, 3, 2).volumes))
        doubted += bool(choose(inventories(volumes), absent=frozenset(), min_insync_replicas=2).doubts)
    assert doubted < 25


def volume(*epochs: int, fence: int, led: int | None = -1, high_watermark: int = 0) -> Volume:
    """A log with a batch of each epoch; those of one epoch and offset are the same in all."""
    log = [Batch(epoch, epoch * 100 + offset) for offset, epoch in enumerate(epochs)]
    return Volume(log, fence, led=led, high_watermark=high_watermark)


def test_the_last_leader_goes_before_a_later_record() -> None:
    """Broker 2 wrote in epoch 2 what nobody copied. Then 1 led epoch 3 and had what is from epoch 1 acknowledged,
    without a record of its own."""
    left = {0: volume(1, 1, fence=3, led=1), 1: volume(1, 1, fence=3, led=3), 2: volume(1, 2, fence=2, led=2)}
    choice = choose(inventories(left), absent=frozenset(), min_insync_replicas=2)
    assert choice.broker_id == 1
    assert not choice.doubts


def test_what_only_a_missing_leader_could_tell_is_a_doubt() -> None:
    left = {0: volume(1, 1, fence=3, led=1), 2: volume(1, 2, fence=2, led=2)}
    choice = choose(inventories(left), absent={1}, min_insync_replicas=2)
    assert any("later leader" in doubt for doubt in choice.doubts)


def test_one_missing_replica_of_three_is_no_loss() -> None:
    left = {0: volume(1, 1, 1, fence=1), 2: volume(1, 1, fence=1, high_watermark=2)}
    choice = choose(inventories(left), absent={1}, min_insync_replicas=2)
    assert (choice.broker_id, choice.doubts) == (0, ())


def test_as_many_missing_as_acknowledged_are_a_doubt() -> None:
    choice = choose(inventories({0: volume(1, 1, fence=1)}), absent={1, 2}, min_insync_replicas=2)
    assert "brokers 1, 2" in choice.doubts[0]


def test_a_lost_tail_counts_as_missing_beside_one_that_is() -> None:
    left = inventories({0: volume(1, 1, fence=1, led=1), 2: volume(1, fence=1)})
    assert choose(left, absent={1}, tail_lost={0}, min_insync_replicas=2).doubts
    assert not choose(
        left, absent=frozenset(), tail_lost={0, 2}, min_insync_replicas=2
    ).doubts  # there is nothing better


def test_what_the_last_leader_lost_and_others_have_differently_is_a_doubt() -> None:
    """Broker 0 led epoch 3 and had the second record of epoch 1 acknowledged by broker 1, without one of its own. With
    its machine it lost that. Broker 2's record of epoch 2 is later, and nobody copied it."""
    left = inventories({0: volume(1, fence=3, led=3), 1: volume(1, 1, fence=3), 2: volume(1, 2, fence=3, led=2)})
    [doubt] = choose(left, absent=frozenset(), tail_lost={0}, min_insync_replicas=2).doubts
    assert "may have lost what it wrote last" in doubt
    # What is not as the rest of the leader's log was never acknowledged.
    left[0] = volume(1, 1, fence=3, led=3).inventory()
    choice = choose(left, absent=frozenset(), tail_lost={0}, min_insync_replicas=2)
    assert choice.broker_id == 1
    assert not choice.doubts


def test_a_settled_loss_of_what_a_log_led_is_no_last_leader() -> None:
    """Broker 0 is back from the same, in `lost`, and the partition waits for broker 1, which is down (RULES 7.2)."""
    left = inventories({0: volume(1, fence=3, led=None), 1: volume(1, 1, fence=3), 2: volume(1, 2, fence=2, led=2)})
    choice = choose(left, absent=frozenset(), min_insync_replicas=2)
    assert "broker 1 may have followed a later leader" in choice.doubts[0]


def test_a_chosen_log_that_an_election_by_log_would_not_choose_is_a_doubt() -> None:
    """RULES 7.4: the only member of the ISR starts with its tail lost."""
    left = inventories({0: volume(1, 1, 1, fence=3, led=3), 1: volume(1, 1, fence=3), 2: volume(1, 2, fence=2, led=2)})
    assert not choose(left, absent=frozenset(), min_insync_replicas=2).doubts
    choice = choose(left, absent=frozenset(), tail_lost={0}, min_insync_replicas=2)
    assert choice.broker_id == 0
    assert "broker 2 would win it" in choice.doubts[0]


def test_a_longer_log_that_begins_with_the_leaders_is_taken() -> None:
    """The leader lost its tail with its machine; a follower has it."""
    left = inventories({0: volume(1, 3, fence=3, led=3), 1: volume(1, 3, 3, 3, fence=3)})
    assert choose(left, absent=frozenset(), tail_lost={0}, min_insync_replicas=2).broker_id == 1


@pytest.mark.parametrize("high_watermark", [3, 9])
def test_a_high_watermark_that_the_chosen_log_does_not_reach_is_a_doubt(high_watermark: int) -> None:
    left = inventories({0: volume(1, 2, fence=4, led=4), 1: volume(1, 1, 1, fence=1, high_watermark=high_watermark)})
    choice = choose(left, absent=frozenset(), min_insync_replicas=2)
    assert choice.broker_id == 0
    assert f"below offset {high_watermark} was committed" in choice.doubts[0]


def test_a_fence_that_does_not_say_who_led_is_a_doubt_where_logs_differ() -> None:
    old = Replica(
        "t",
        TOPIC_ID,
        0,
        0,
        2,
        epochs=volume(1, 1, fence=3).inventory().epochs,
        last_epoch=1,
        fence_epoch=3,
        led_epoch=None,
    )
    agreeing = inventories({1: volume(1, 1, 1, fence=2, led=2)}) | {0: old}
    assert not choose(agreeing, absent=frozenset(), min_insync_replicas=1).doubts
    differing = inventories({1: volume(1, 2, fence=2, led=2)}) | {0: old}
    assert choose(differing, absent=frozenset(), min_insync_replicas=1).doubts


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_agreement_by_epochs_is_agreement_of_the_logs(seed: int) -> None:
    volumes = history(seed, 3, 2).volumes
    for one in volumes:
        for other in volumes:
            same = 0
            while same < min(len(one.log), len(other.log)) and one.log[same] == other.log[same]:
                same += 1
            assert agreed_end(one.inventory(), other.inventory()) == same


def test_what_retention_has_let_go_of_agrees() -> None:
    behind = volume(1, 1, 1, fence=1).inventory()
    let_go = Replica(
        "t", TOPIC_ID, 0, 5, 6, epochs=volume(1, 1, 1, 1, 4, 4, fence=4).inventory().epochs[1:], last_epoch=4
    )
    assert agreed_end(behind, let_go) == 3
