"""The figures of groups on Highwater."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from bench.groups import figures
from bench.groups.consuming import PairedRates
from bench.groups.figures import Send
from bench.groups.highwater_members import MEMBERS_OF_GROUP, HighwaterMembers, IdleMembers
from bench.groups.members import MakeMembers, MemberProcesses, Plan
from bench.groups.sizes import SETTLE_TIMEOUT_S, GroupSizes
from bench.highwater_side import HighwaterSide
from bench.scale.progress import say
from bench.scale.usage import cpu_and_memory, most_of_each
from bench.scale.waiting import until
from bench.work import PARTITIONS, Work
from highwater.cli.local_cluster import LocalCluster, LocalClusterSettings
from highwater.client import Admin, Consumer, Producer, TopicPartition
from highwater.client.blocking import Producer as BlockingProducer

_RECORD = b"x" * 100
_ALTERING_AT_ONCE = 64
_WARM_UP = 20  # commits


class HighwaterStand:
    """A side's cluster, for what is measured alike on both sides."""

    make_members: MakeMembers = HighwaterMembers

    def __init__(self, side: HighwaterSide) -> None:
        self._side = side
        self.bootstrap = side.cluster.bootstrap

    def make_topic(self, topic: str, partitions: int) -> None:
        self._side.create(topic, partitions)

    @contextmanager
    def sender(self, topic: str) -> Iterator[Send]:
        with BlockingProducer(self.bootstrap, linger_ms=0) as producer:

            def send(partition: int) -> None:
                producer.send(topic, _RECORD, partition=partition)

            yield send
            producer.flush()


class HighwaterGroups:
    """Beside a side whose cluster runs; `data` is for clusters that have settings of their own, or no topics yet."""

    def __init__(self, side: HighwaterSide, data: Path, sizes: GroupSizes) -> None:
        self._side = side
        self._data = data
        self._sizes = sizes

    def group_rebalance(self, topic: str) -> dict[str, float]:
        return {"group_rebalance": figures.group_rebalance(HighwaterStand(self._side), self._sizes, topic)}

    def group_failover(self, topic: str) -> dict[str, float]:
        times = {
            "group.consumer.session.timeout.ms": str(self._sizes.session_timeout_ms),
            "group.consumer.heartbeat.interval.ms": str(self._sizes.heartbeat_interval_ms),
        }
        with self._another(f"{topic}-cluster", times) as side:
            return {"group_failover": figures.group_failover(HighwaterStand(side), self._sizes, topic)}

    def group_join_gap(self, topic: str) -> dict[str, float]:
        return {"group_join_gap": figures.group_join_gap(HighwaterStand(self._side), self._sizes, topic)}

    def commit_p50(self, topic: str) -> dict[str, float]:
        self._side.create(topic)
        return {"commit_p50": self._side.run(self._commit_p50(topic))}

    async def _commit_p50(self, topic: str) -> float:
        """Milliseconds of a `commit` of what was handed out, one record at a time; median."""
        bootstrap = self._side.cluster.bootstrap
        count = self._sizes.commits + _WARM_UP
        async with Producer(bootstrap) as producer:
            for number in range(count):
                await producer.send(topic, _RECORD, partition=number % PARTITIONS)
        taken: list[float] = []
        consumer = Consumer(
            topic, bootstrap=bootstrap, group=topic, auto_offset_reset="earliest", enable_auto_commit=False
        )
        async with consumer, asyncio.timeout(SETTLE_TIMEOUT_S):
            while len(taken) < count:
                if await consumer.poll(max_records=1):
                    started = time.perf_counter()
                    await consumer.commit()
                    taken.append(1000 * (time.perf_counter() - started))
        return median(taken[_WARM_UP:])

    def group_consume(self, topic: str) -> dict[str, float]:
        self._side.create(topic)
        side = HighwaterSide(self._side.cluster, Work(tables=self._sizes.consume_tables))
        try:
            side.produce_table(topic)
            rates = PairedRates(self._sizes)
            while rates.wants_more():
                rates.add(side.run(self._in_group(topic, f"{topic}-{rates.count}")), side.consume_records(topic))
        finally:
            side.close()
        return {"group_consume": rates.percent()}

    async def _in_group(self, topic: str, group: str) -> float:
        """Records a second by `poll`, from the assignment on, as `consume_records` counts it."""
        began = seen = 0.0
        partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]

        def assigned(_: object) -> None:
            nonlocal began
            began = began or time.perf_counter()

        consumer = Consumer(
            topic,
            bootstrap=self._side.cluster.bootstrap,
            group=group,
            auto_offset_reset="earliest",
            on_assigned=assigned,
        )
        async with consumer, asyncio.timeout(SETTLE_TIMEOUT_S):
            total = sum((await consumer.end_offsets(partitions)).values())
            while seen < total:
                seen += len(await consumer.poll(timeout_ms=5000, max_records=50_000))
            return total / (time.perf_counter() - began)

    def group_idle(self, topic: str) -> dict[str, float]:
        """CPU of the three processes of the broker that has most, in per cent of a core: with groups that have
        committed offsets and no members, and then with idle members of other groups, too."""
        sizes = self._sizes
        with self._another(f"{topic}-cluster", {}) as side, MemberProcesses(IdleMembers) as processes:
            side.create(topic)
            none = self._idle_cpu(side.cluster)
            side.run(self._commit_for_many(side.cluster.bootstrap, topic))
            groups = self._idle_cpu(side.cluster)
            count = os.cpu_count() or 1
            numbers = range(sizes.idle_members)
            started = [
                processes.start(Plan(side.cluster.bootstrap, topic, "members", numbers[first::count]))
                for first in range(count)
            ]
            began = time.monotonic()
            for process in started:
                process.begin("join")
            for process in started:
                process.answer("join")
            until(lambda: side.run(self._missing_members(side.cluster.bootstrap)), SETTLE_TIMEOUT_S)
            say(f"{sizes.idle_members:,} members joined in {time.monotonic() - began:.1f} s")
            members = self._idle_cpu(side.cluster)
        say(f"without any groups it was {none:.1f} %")
        return {"group_idle": groups, "group_idle_members": members}

    def _idle_cpu(self, cluster: LocalCluster) -> float:
        time.sleep(self._sizes.idle_settle_s)
        pids: Mapping[str, list[int]] = {
            f"broker-{broker}": [process.pid for process in cluster.broker_processes(broker) if process.pid is not None]
            for broker in range(1, cluster.settings.brokers + 1)
        }
        cpu, _ = most_of_each(cpu_and_memory(pids, self._sizes.idle_window_s))
        return cpu

    async def _commit_for_many(self, bootstrap: str, topic: str) -> None:
        offsets: dict[tuple[str, int], int] = {(topic, partition): 0 for partition in range(PARTITIONS)}
        waiting = iter(range(self._sizes.idle_groups))
        began = time.monotonic()
        async with Admin(bootstrap) as admin:

            async def some() -> None:
                for number in waiting:
                    for error in (await admin.alter_offsets(f"idle-{number:05d}", offsets)).values():
                        if error is not None:
                            raise error

            await asyncio.gather(*(some() for _ in range(_ALTERING_AT_ONCE)))
        say(f"{self._sizes.idle_groups:,} groups were made in {time.monotonic() - began:.1f} s")

    async def _missing_members(self, bootstrap: str) -> str:
        wanted = self._sizes.idle_members
        names = sorted({f"members-{number // MEMBERS_OF_GROUP:04d}" for number in range(wanted)})
        async with Admin(bootstrap) as admin:
            there = sum(len(group.members) for group in await admin.describe_groups(names))
        return "" if there == wanted else f"{there:,} of {wanted:,} members have joined"

    @contextmanager
    def _another(self, name: str, settings: Mapping[str, str]) -> Iterator[HighwaterSide]:
        """A cluster of its own; nothing of it is left."""
        cluster = LocalCluster(LocalClusterSettings(self._data / name, brokers=3, port=0, settings=dict(settings)))
        side = HighwaterSide(cluster, self._side.work)
        side.startup()
        try:
            yield side
        finally:
            side.close()
            cluster.kill()
