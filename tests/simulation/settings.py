"""What one seed is about: the cluster's shape, its settings, its weather, and which faults it favours.

Each seed draws its own mixture (swarm testing): faults that are left out leave room for long sequences of the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

from highwater.replica_manager.partition.actions import PartitionSettings

from .groups import settings as groups
from .storage import SELDOM

FAULTS = (
    "kill manager",
    "kill storage",
    "kill fetcher",
    "kill broker",
    "lose tail",
    "break streams",
    "pause broker",
    "pause manager",
    "pause storage",
    "pause fetcher",
    "part brokers",
    "part from etcd",
    "part from controllers",
    "isolate",
    "kill controller",
    "pause controller",
    "lose watch",
    "stall etcd",
    "fill etcd",
    "expire token",
    "change configuration",
    "late writes",
    "expire lease",
    "shut down",
    "recreate topic",
    "prefer leaders",
    "damage log",
    "fail log",
    "late appends",
    "fail disk",
    "strand",
)
# With these a log that was whole is cut, and goes on with another's, where tombstones of what it has may be gone.
LOSING = frozenset({"lose tail", "damage log", "fail disk"})
GROUPS = 0.25  # the part of seeds that have groups


@dataclass(slots=True)
class Settings:
    brokers: int = 3
    topics: int = 1
    partitions: int = 1
    replication_factor: int = 3
    min_insync_replicas: int = 2
    unclean: bool = False
    partition: PartitionSettings = field(default_factory=PartitionSettings)
    session_ms: int = 3000
    controller_session_ms: int = 2000
    tick_ms: int = 100
    checkpoint_ms: int = 1500
    cache_batches: int = 20
    fetch_batches: int = 3
    fence_turn_ms: int = 0  # a fence's answer is taken within so much: those of many are taken in turns
    fetch_wait_ms: int = 500
    fetch_backoff_ms: int = 500
    consume_pause_ms: int = 400
    produce_gap_ms: int = 200
    produce_timeout_ms: int = 1000
    acks_one: bool = False
    # Weather
    loss: float = 0.0
    stream_break: float = 0.0
    slow: float = 0.0
    slow_ms: int = 100
    late: float = 0.0
    watch_lag_ms: int = 10
    flush: float = 0.1
    flush_messages: int = SELDOM  # of the brokers; 1: every append waits for the disk
    topic_flush_messages: int | None = None  # the topics' own
    # Faults: how often, and the weight of each
    fault_gap_ms: int = 500
    outage_ms: int = 2000
    weights: dict[str, float] = field(default_factory=dict)
    shutdown_wait_ms: int = 4000  # `controlled.shutdown.max.wait.ms`
    previous_version: frozenset[int] = frozenset()  # brokers that know no incremental sessions (RULES 4.10)
    keeps_minimum: bool = False  # no fault of these takes an ISR below its minimum (RULES 7.8)
    groups: groups.GroupSettings | None = None  # None: there are none

    def calm(self) -> None:
        """The weather clears, and no more is written than a replica that is far behind can catch up with."""
        self.produce_gap_ms = max(self.produce_gap_ms, 100)
        self.loss = self.stream_break = self.slow = self.late = 0.0
        self.weights = {}


def draw(random: Random) -> Settings:
    brokers = random.choice((3, 3, 3, 4))
    factor = random.choice((1, 2, 2, 3, 3, 3, 3, 3, 3, brokers))
    minimum = random.choice((1, 2, 2))
    unclean = random.random() < 0.06
    settings = Settings(
        brokers=brokers,
        topics=random.choice((1, 1, 1, 2)),
        partitions=random.choice((1, 1, 2)),
        replication_factor=factor,
        min_insync_replicas=minimum,
        unclean=unclean,
        partition=PartitionSettings(
            replica_lag_time_max_ms=random.choice((1000, 2000, 4000)),
            min_insync_replicas=minimum,
            session_grace_ms=random.choice((200, 500)),
            isr_retry_backoff_ms=random.choice((100, 250)),
        ),
        session_ms=random.choice((1500, 3000)),
        controller_session_ms=random.choice((1000, 2000)),
        checkpoint_ms=random.choice((500, 2000)),
        cache_batches=random.choice((2, 20)),
        fetch_batches=random.choice((1, 2, 5)),
        fetch_backoff_ms=random.choice((200, 500)),
        produce_gap_ms=random.choice((30, 80, 200, 400)),
        produce_timeout_ms=random.choice((500, 1000, 10_000)),
        acks_one=random.random() < 0.5,
        loss=random.choice((0.0, 0.0, 0.01, 0.05)),
        stream_break=random.choice((0.0, 0.0, 0.002, 0.01)),
        slow=random.choice((0.0, 0.02, 0.1, 0.3)),
        slow_ms=random.choice((50, 400, 1500)),
        late=random.choice((0.0, 0.0, 0.02, 0.1)),
        watch_lag_ms=random.choice((5, 100, 800)),
        flush=random.choice((0.05, 0.5)),
        fault_gap_ms=random.choice((100, 300, 800)),
        outage_ms=random.choice((300, 1500, 4000)),
    )
    settings.weights = {fault: random.random() ** 2 for fault in FAULTS if random.random() < 0.45}
    if settings.unclean or min(settings.min_insync_replicas, factor) < 2:
        settings.weights.pop("lose tail", None)  # RULES 7.5 promises nothing then
        settings.weights.pop("fail disk", None)
    if not settings.unclean:
        settings.weights.pop("strand", None)
    settings.flush_messages = random.choice((SELDOM, SELDOM, 1))
    settings.topic_flush_messages = random.choice((None, None, 1, 1000))
    if random.random() < 0.3:
        settings.weights["drain"] = random.random() ** 2
    if random.random() < 0.2:
        settings.previous_version = frozenset(random.sample(range(1, brokers + 1), random.randint(1, brokers - 1)))
    if random.random() < GROUPS and not settings.unclean:
        settings.groups = groups.draw(random)
        if random.random() < 0.4:
            settings.weights = {fault: weight for fault, weight in settings.weights.items() if fault not in LOSING}
        if settings.weights.keys() & LOSING:
            settings.groups.delete_retention_ms = groups.NEVER_MS
    if random.random() < 0.3:
        settings.weights["throttle"] = 0.5 * random.random()
        # Most of the time something is written, and commits wait no more for a replica that comes back.
        settings.fault_gap_ms = 800
        settings.partition = replace(settings.partition, replica_lag_time_max_ms=1000)
    settings.fence_turn_ms = random.choice((0, 0, 50, 300))
    settings.fetch_wait_ms = random.choice((500, 500, 500, 10_000))  # of which a leader takes a second at most
    return settings


def drain_alone(settings: Settings) -> None:
    """Brokers are drained, two at once, and nothing else goes wrong: no partition falls below its minimum."""
    settings.replication_factor, settings.min_insync_replicas = 3, 2
    settings.partition = replace(settings.partition, min_insync_replicas=2, replica_lag_time_max_ms=4000)
    settings.unclean = False
    settings.loss = settings.stream_break = settings.slow = settings.late = 0.0
    settings.session_ms, settings.controller_session_ms = 3000, 2000
    settings.outage_ms, settings.fault_gap_ms = 300, 800
    settings.produce_gap_ms, settings.consume_pause_ms, settings.fetch_wait_ms = 400, 1000, 500
    settings.topics, settings.partitions = 1, 2
    settings.weights = {"drain": 1.0, "prefer leaders": 0.3, "lose watch": 0.2, "kill controller": 0.1}
    settings.shutdown_wait_ms = 60_000
    settings.keeps_minimum = True
    settings.groups = None
