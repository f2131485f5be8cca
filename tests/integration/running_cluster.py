"""A cluster of real processes under a steady stream of records, for tests that break things."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from replica_manager_cluster import eventually

from highwater.cli.local_cluster import CLUSTER, LocalCluster, LocalClusterSettings
from highwater.client import Admin, Consumer, HighwaterError, NewTopic, Producer, TopicPartition
from highwater.client.producer.delivery import Delivery
from highwater.metadata.schema.cluster_view import Change, ClusterSnapshot
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import NO_LEADER, PartitionState
from highwater.metadata.state.brokers import read_brokers
from highwater.metadata.state.cluster_watch import watch_cluster
from highwater.metadata.state.partition_states import read_states
from highwater.metadata.store.store import Store

KEYS = Keys(CLUSTER)
HIGHWATER = str(Path(sys.executable).with_name("highwater"))  # the command
HEAL_S = 30.0
_GROUP = 5  # records, at once, to each partition
_PACE_S = 0.01  # between two groups
_KEYS = 7
_OUTSTANDING = 500  # records of a partition that may be without an acknowledgement


@contextmanager
def running_cluster(data: Path, **settings: object) -> Iterator[LocalCluster]:
    """A cluster of three brokers on free ports; nothing of it is left afterwards."""
    cluster = LocalCluster(LocalClusterSettings(data, port=0, **settings))  # type: ignore[arg-type]
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.kill()


@contextmanager
def paused(pid: int | None) -> Iterator[None]:
    """A process that the kernel does not run meanwhile: a zombie in the sense of RULES 8.1."""
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


class Deployment:
    """What a test asks of a running cluster and its etcd."""

    def __init__(self, cluster: LocalCluster, store: Store, admin: Admin) -> None:
        self.cluster = cluster
        self.store = store
        self.admin = admin

    async def create_topic(self, topic: str, assignment: Sequence[Sequence[int]], min_insync_replicas: int = 2) -> None:
        config = {"min.insync.replicas": str(min_insync_replicas)}
        (result,) = await self.admin.create_topics([NewTopic(topic, config=config, assignment=assignment)])
        assert result.error is None, result.error

    async def states(self, topic: str, partitions: int = 1) -> list[PartitionState]:
        """As they stand in etcd: metadata hears of ISR changes seconds later (RULES 2.5)."""
        wanted = [(topic, partition) for partition in range(partitions)]
        found, _ = await read_states(self.store, KEYS, wanted)
        return [found[each].state for each in wanted]

    async def healed(self, topic: str, partitions: int = 1, replicas: int = 3) -> float:
        """Waits until every partition has a leader and a full ISR; the seconds it took."""
        begun = monotonic()

        async def full() -> bool:
            states = await self.states(topic, partitions)
            return all(state.leader != NO_LEADER and len(state.isr) == replicas for state in states)

        await eventually(full, f"all replicas of {topic} are in sync", HEAL_S)
        return monotonic() - begun

    async def replaced(self, broker: int, topic: str, partitions: int = 1) -> None:
        """Waits until others lead what this broker led."""

        async def others_lead() -> bool:
            return all(state.leader not in (broker, NO_LEADER) for state in await self.states(topic, partitions))

        await eventually(others_lead, f"others than broker {broker} lead {topic}", HEAL_S)

    async def preferred_lead(self, topic: str, partitions: int = 1) -> None:
        """Waits until each partition is led by its first replica: on a busy machine a broker may have lost its lease
        since the cluster was started."""

        async def as_assigned() -> bool:
            return not await self.admin.elect_leaders([(topic, partition) for partition in range(partitions)])

        await eventually(as_assigned, f"the preferred leaders lead {topic}", HEAL_S)

    async def left_isr(self, broker: int, topic: str, partitions: Sequence[int]) -> None:
        """Waits until this broker is in none of these ISRs."""

        async def out() -> bool:
            states = await self.states(topic, max(partitions) + 1)
            return all(broker not in states[partition].isr for partition in partitions)

        await eventually(out, f"broker {broker} is in no ISR of {topic}", HEAL_S)

    async def registered(self, brokers: int = 3) -> None:
        """In etcd, and as the controller has heard of it: before that it makes no topic of so many replicas."""

        async def all_there() -> bool:
            if len(await read_brokers(self.store, KEYS)) != brokers:
                return False
            with suppress(HighwaterError):  # there may be no controller yet
                return len((await self.admin.describe_cluster()).brokers) == brokers
            return False

        await eventually(all_there, f"{brokers} brokers are registered", HEAL_S)

    @asynccontextmanager
    async def recorded_changes(self) -> AsyncGenerator[list[Change]]:
        """All that changes in etcd from here on, in its order."""
        changes: list[Change] = []
        listed = asyncio.Event()

        async def follow() -> None:
            async with aclosing(watch_cluster(self.store, KEYS)) as updates:
                async for update in updates:
                    if isinstance(update, ClusterSnapshot):
                        listed.set()
                    else:
                        changes.extend(update.changes)

        following = asyncio.create_task(follow())
        await listed.wait()
        try:
            yield changes
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


@asynccontextmanager
async def deployment(cluster: LocalCluster) -> AsyncGenerator[Deployment]:
    """Waits first until every process runs: a test before may have failed half way."""
    for process in cluster.processes.values():
        if not process.running:
            process.start()
    async with Store([cluster.etcd], tls=cluster.etcd_tls) as store, Admin(cluster.bootstrap) as admin:
        found = Deployment(cluster, store, admin)
        await found.registered(cluster.settings.brokers)
        yield found


@dataclass
class Traffic:
    """Numbered records with `acks=all` from an idempotent producer, and what became of them. Every partition gets
    0, 1, 2, ... in its own right, some batches always in flight."""

    bootstrap: str
    topic: str
    partitions: int = 1
    pace_s: float = _PACE_S
    acked: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    offsets: dict[int, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    """Of each partition: where each acknowledged record was said to be."""
    longest_pause_s: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    """Of each partition: how long it was without an acknowledgement while one was due."""
    _stopping: bool = False
    _progress: asyncio.Event = field(default_factory=asyncio.Event)
    _failure: HighwaterError | None = None

    async def until_acked(self, more: int) -> None:
        """Until so many more records of every partition are acknowledged."""
        goals = {partition: self.acked[partition] + more for partition in range(self.partitions)}
        async with asyncio.timeout(HEAL_S):
            while self._failure is None and any(self.acked[partition] < goal for partition, goal in goals.items()):
                self._progress.clear()
                await self._progress.wait()
        if self._failure is not None:
            raise self._failure

    async def _run(self, producer: Producer) -> None:
        async with asyncio.TaskGroup() as group:
            for partition in range(self.partitions):
                outstanding: asyncio.Queue[Delivery | None] = asyncio.Queue(_OUTSTANDING)
                group.create_task(self._send(producer, partition, outstanding))
                group.create_task(self._confirm(partition, outstanding))

    async def _send(self, producer: Producer, partition: int, outstanding: asyncio.Queue[Delivery | None]) -> None:
        number = 0
        while not self._stopping and self._failure is None:
            for _ in range(_GROUP):
                value = f"{partition}:{number}".encode()
                key = b"%d" % (number % _KEYS)
                await outstanding.put(await producer.send(self.topic, value, key=key, partition=partition))
                number += 1
            await asyncio.sleep(self.pace_s)
        await outstanding.put(None)

    async def _confirm(self, partition: int, outstanding: asyncio.Queue[Delivery | None]) -> None:
        while (delivery := await outstanding.get()) is not None:
            begun = monotonic()
            try:
                metadata = await delivery
            except HighwaterError as error:
                self._failure = self._failure or error
            else:
                self.offsets[partition][self.acked[partition]] = metadata.offset
                self.acked[partition] += 1
                self.longest_pause_s[partition] = max(self.longest_pause_s[partition], monotonic() - begun)
            self._progress.set()

    async def _read_back(self) -> dict[int, list[int]]:
        partitions = [TopicPartition(self.topic, partition) for partition in range(self.partitions)]
        found: dict[int, list[int]] = {partition: [] for partition in range(self.partitions)}
        async with (
            asyncio.timeout(HEAL_S),
            Consumer(bootstrap=self.bootstrap, auto_offset_reset="earliest") as consumer,
        ):
            ends = await consumer.end_offsets(partitions)
            consumer.assign(partitions)
            while sum(map(len, found.values())) < sum(ends.values()):
                for record in await consumer.poll(max_records=20_000):
                    assert record.value is not None
                    partition, number = map(int, record.value.split(b":"))
                    assert partition == record.partition
                    assert self.offsets[partition].get(number, record.offset) == record.offset
                    found[partition].append(number)
        return found

    async def check(self) -> None:
        """Every record is there once, in its order. Raises what the producer was told."""
        if self._failure is not None:
            raise self._failure
        for partition, numbers in (await self._read_back()).items():
            first_wrong = next((i for i, number in enumerate(numbers) if number != i), len(numbers))
            around = numbers[max(first_wrong - 3, 0) : first_wrong + 3]
            assert numbers == list(range(self.acked[partition])), (
                f"{self.topic}-{partition}: {self.acked[partition]} acknowledged, {len(numbers)} read, "
                f"of these {len(set(numbers))} different; around position {first_wrong}: {around}"
            )


@asynccontextmanager
async def traffic(
    bootstrap: str, topic: str, partitions: int = 1, *, delivery_timeout_ms: int = 30_000, pace_s: float = _PACE_S
) -> AsyncGenerator[Traffic]:
    """Records flow while the body runs, some to each partition every `pace_s`. At its end all that was sent is
    acknowledged, read back and compared."""
    running = Traffic(bootstrap, topic, partitions, pace_s)
    async with Producer(bootstrap, acks="all", delivery_timeout_ms=delivery_timeout_ms) as producer:
        sending = asyncio.create_task(running._run(producer))
        try:
            await running.until_acked(100)
            yield running
            await running.until_acked(100)
            running._stopping = True
            await sending
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
    await running.check()
