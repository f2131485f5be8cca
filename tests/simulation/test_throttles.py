"""No produce waits for a throttle (RULES 4.14): neither of the partition that is throttled, whose ISR goes on without
the replica that comes back, nor of others that the same stream replicates."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from highwater.quotas.replication_quota import Rates
from highwater.replica_manager.partition.actions import PartitionSettings

from .clients import Producer
from .groups.coordinator import simulated
from .history import History
from .settings import Settings
from .throttles import FOLLOWER, LEADER
from .world import World

SEEDS = 4
BEHIND_FROM_MS, BEHIND_UNTIL_MS, END_MS = 3_000, 6_000, 14_000
LOOKED_AT_FROM_MS = BEHIND_UNTIL_MS + 1_000  # what is not throttled is in sync again
LONGEST_MS = 100  # without a throttle it is 50: two streams, two disks, and who waits for whom


def longest_wait_ms(seed: int, rates: Rates) -> tuple[int, int]:
    """Of the acknowledgements of a calm cluster, while a replica of each partition catches up: 0 to 2 are throttled, 3
    to 5 are not. With it, how often something was held back."""
    settings = Settings(
        partitions=6,
        fetch_batches=1,
        produce_gap_ms=200,
        partition=PartitionSettings(replica_lag_time_max_ms=1000, min_insync_replicas=2),
    )
    world = World(seed, settings)
    scheduler, sent, waits = world.scheduler, dict[int, int](), list[int]()
    listed = ",".join(f"{partition}:{broker}" for partition in (0, 1, 2) for broker in world.nodes)
    world.topic_config = {**world.topic_config, LEADER: listed, FOLLOWER: listed}
    for broker_id in world.nodes:
        world.throttles.set(broker_id, rates)
    send_one, acked = Producer.send_one, History.acked

    def sending(producer: Producer) -> None:
        send_one(producer)
        sent[producer.sent[-1]] = scheduler.now_ms

    def acknowledged(history: History, key: object, batch: object, *more: object) -> None:
        if sent[batch.payload] >= LOOKED_AT_FROM_MS:  # type: ignore[attr-defined]
            waits.append(scheduler.now_ms - sent[batch.payload])  # type: ignore[attr-defined]
        acked(history, key, batch, *more)  # type: ignore[arg-type]

    with patch.object(Producer, "send_one", sending), patch.object(History, "acked", acknowledged), simulated(None):
        node = world.nodes[3]
        assert node.fetcher is not None
        scheduler.after(BEHIND_FROM_MS, node.fetcher.kill)
        scheduler.after(BEHIND_UNTIL_MS, node.start_fetcher)
        while scheduler.now_ms < END_MS:
            scheduler.step()
    assert len(waits) > 50
    return max(waits), world.throttles.held


@pytest.mark.parametrize("rates", [Rates(2, None), Rates(None, 2), Rates(None, 5)], ids=str)
def test_no_produce_waits_for_a_throttle(rates: Rates) -> None:
    for seed in range(1, SEEDS + 1):
        longest_ms, held = longest_wait_ms(seed, rates)
        assert longest_ms <= LONGEST_MS, f"seed {seed}"
        assert held > 10, f"seed {seed}"


def test_without_one_they_take_as_long() -> None:
    assert all(longest_wait_ms(seed, Rates()) <= (LONGEST_MS, 0) for seed in range(1, SEEDS + 1))
