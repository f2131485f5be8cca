"""What each mutant needs to be met within few seeds: settings turned towards its mistake."""

from __future__ import annotations

from dataclasses import replace

from . import storage
from .settings import Settings


def three(settings: Settings) -> None:
    settings.replication_factor = 3
    settings.min_insync_replicas = 2


def weights(settings: Settings, **weights: float) -> None:
    settings.weights = {name.replace("_", " "): weight for name, weight in weights.items()}


def busy(settings: Settings) -> None:
    three(settings)
    settings.produce_gap_ms = 60
    weights(
        settings, kill_fetcher=1, pause_fetcher=1, kill_broker=1, kill_manager=1, kill_storage=0.5, pause_storage=0.5
    )


def pipelined(settings: Settings) -> None:
    three(settings)
    settings.produce_gap_ms = 30
    settings.fetch_batches = 1
    weights(settings, pause_storage=1, pause_fetcher=1, kill_fetcher=1, kill_broker=0.5)


def unknown_writes(settings: Settings) -> None:
    busy(settings)
    settings.late = 0.1
    weights(settings, kill_fetcher=1, pause_fetcher=1, late_writes=1, stall_etcd=1)


def elections(settings: Settings) -> None:
    three(settings)
    settings.produce_gap_ms = 60
    settings.outage_ms = 1500
    weights(settings, prefer_leaders=1, kill_broker=1, pause_broker=1, pause_manager=1, part_brokers=1, isolate=0.5)


def zombies(settings: Settings) -> None:
    elections(settings)
    settings.slow, settings.slow_ms = 0.1, 1500
    weights(settings, prefer_leaders=1, pause_broker=1, pause_manager=1, kill_storage=1, kill_broker=1)


def lost_tails(settings: Settings) -> None:
    """Of a replica that is back at once, leaders hear late, and what they propose is written late."""
    three(settings)
    settings.loss = settings.stream_break = settings.late = 0.0
    settings.slow, settings.slow_ms = 0.1, 400
    settings.watch_lag_ms = 800
    settings.outage_ms = 300
    settings.fault_gap_ms = 60
    settings.flush = 0.05
    settings.flush_messages, settings.topic_flush_messages = storage.SELDOM, None
    settings.session_ms = 3000
    settings.produce_gap_ms = 150
    settings.partition = replace(settings.partition, session_grace_ms=200, replica_lag_time_max_ms=1000)
    weights(settings, lose_tail=4, late_writes=1, stall_etcd=1)


def handed_back(settings: Settings) -> None:
    three(settings)
    settings.produce_gap_ms = 60
    settings.produce_timeout_ms = 20_000
    settings.fault_gap_ms = 200
    settings.outage_ms = 500
    weights(settings, expire_lease=1, prefer_leaders=1, pause_fetcher=1)


def restarts(settings: Settings) -> None:
    three(settings)
    weights(settings, kill_manager=1, kill_storage=1, kill_broker=1)


def damaged(settings: Settings) -> None:
    three(settings)
    settings.produce_gap_ms = 60
    settings.fault_gap_ms = 150
    settings.slow, settings.slow_ms = 0.1, 400
    weights(settings, damage_log=2, pause_manager=0.5, kill_broker=0.3)


def damaged_while_fenced(settings: Settings) -> None:
    """Leaderships move all the time, and the answers of fences are taken late."""
    damaged(settings)
    settings.topics = settings.partitions = 1
    settings.fence_turn_ms, settings.fault_gap_ms = 600, 100
    settings.produce_gap_ms, settings.watch_lag_ms = 150, 5
    settings.acks_one, settings.checkpoint_ms = False, 2000
    settings.slow, settings.loss, settings.stream_break, settings.session_ms = 0.02, 0.0, 0.0, 3000
    weights(settings, damage_log=1, prefer_leaders=1, expire_lease=0.5)


def cut_unheard(settings: Settings) -> None:
    """Much happens to a broker between two messages that its fetcher takes."""
    damaged(settings)
    settings.stream_break = 0.3
    weights(settings, damage_log=2, pause_fetcher=1.5, expire_lease=0.5)


def late_appends(settings: Settings) -> None:
    three(settings)
    settings.produce_gap_ms = 60
    settings.fault_gap_ms = 200
    weights(settings, late_appends=2, pause_fetcher=0.3)


def sessions(settings: Settings) -> None:
    three(settings)
    settings.produce_gap_ms, settings.outage_ms = 4000, 2500
    settings.partition = replace(settings.partition, replica_lag_time_max_ms=1000)
    weights(settings, pause_fetcher=1, prefer_leaders=0.2)


def full_etcd(settings: Settings) -> None:
    three(settings)
    settings.controller_session_ms = 1000
    settings.outage_ms = 3000
    weights(settings, fill_etcd=1, expire_token=1, kill_controller=1, kill_broker=0.3)


def lost_watches(settings: Settings) -> None:
    three(settings)
    settings.fault_gap_ms = 150
    weights(settings, change_configuration=1, lose_watch=2, kill_broker=0.1)


def lost_messages(settings: Settings) -> None:
    three(settings)
    settings.fault_gap_ms, settings.loss = 150, 0.05
    weights(settings, change_configuration=2, part_from_controllers=1)


def disks(settings: Settings) -> None:
    three(settings)
    settings.flush = 0.01
    settings.flush_messages, settings.topic_flush_messages = storage.SELDOM, None
    settings.produce_gap_ms = 60
    settings.fault_gap_ms = 200
    settings.outage_ms = 300
    weights(settings, fail_disk=1, kill_fetcher=0.5)


def overridden(settings: Settings) -> None:
    disks(settings)
    settings.flush_messages, settings.topic_flush_messages = 1, 1000
    weights(settings, lose_tail=1, kill_fetcher=0.5)


def unclean_across_gaps(settings: Settings) -> None:
    three(settings)
    settings.min_insync_replicas = 1
    settings.partition = replace(settings.partition, min_insync_replicas=1)
    settings.unclean = True
    settings.brokers, settings.topics, settings.partitions = 3, 1, 1
    settings.produce_gap_ms = 60
    settings.session_ms, settings.outage_ms, settings.fault_gap_ms = 800, 600, 300
    settings.loss = settings.stream_break = 0.0
    settings.slow, settings.slow_ms = 0.2, 200
    weights(settings, strand=1, kill_manager=0.05, prefer_leaders=0.1)


def throttled(settings: Settings) -> None:
    three(settings)
    settings.previous_version = frozenset()
    settings.produce_gap_ms, settings.outage_ms = 80, 1500
    settings.partition = replace(settings.partition, replica_lag_time_max_ms=1000)
    weights(settings, throttle=1, pause_fetcher=1, kill_broker=1, kill_storage=0.3, prefer_leaders=0.3)
