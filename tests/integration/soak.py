"""A cluster of real processes that is broken at random for as long as wanted.

    python tests/integration/soak.py --seed 3 --seconds 600

Processes are killed, stopped for a while (zombies, RULES 8.1) and terminated, one service or a whole broker at a time,
two things at once at the most. Meanwhile

    - numbered records go to six partitions from an idempotent producer with `acks=all`, and a consumer that follows
      checks each: none is lost, doubled, reordered or taken back after it was seen;
    - keys of a compacted topic are written again and again, and the cleaner and the scrubber are at work all the time;
    - topics are made, written, read, given partitions and deleted, also under the same names again;
    - replicas move between the log directories of their brokers, and leaderships go back to preferred leaders.

At the end everything must heal, every acknowledged record be there once, every key have its last value, and all
replicas hold the same batches. A seed fixes which faults are drawn, not how they fall together with what the processes
do. Exit status 1, and the data directory stays: something was wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

from replica_manager_cluster import eventually
from running_cluster import Deployment, deployment, paused, running_cluster

from highwater.cli.local_cluster import SERVICES, LocalCluster
from highwater.client import (
    Admin,
    Consumer,
    ConsumerRecord,
    HighwaterError,
    NewTopic,
    OffsetOutOfRangeError,
    Producer,
    TopicPartition,
)
from highwater.client.delivery import Delivery

NUMBERED, COMPACTED = "numbered", "compacted"
REPLICAS = [[1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 3, 2], [2, 1, 3], [3, 2, 1]]
COMPACTED_REPLICAS = REPLICAS[:3]
SETTINGS = {
    "log.segment.bytes": "1000000",
    "log.scrub.interval.ms": "20000",
    "log.cleaner.backoff.ms": "1000",
    "log.cleaner.min.cleanable.ratio": "0.3",
    "file.delete.delay.ms": "3000",
    "replica.lag.time.max.ms": "3000",
    "leader.imbalance.check.interval.seconds": "5",
}
OUTSTANDING = 300  # records of a partition that may be without an acknowledgement
WRITERS, KEYS_OF_A_WRITER = 8, 10
CHURNED_RECORDS = 60
DELIVERY_TIMEOUT_S = 150.0  # longer than any outage that the faults add up to
SETTLE_S = 120.0
FAULTS_AT_ONCE = 2
SHOWN_PROBLEMS = 20  # a lost record shifts all that follow


@dataclass
class Soak:
    """What all of its parts share."""

    seed: int
    bootstrap: str
    begun: float = field(default_factory=monotonic)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    problems: int = 0
    acked: dict[int, int] = field(default_factory=lambda: defaultdict(int))  # of each numbered partition
    seen: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    values: dict[bytes, bytes] = field(default_factory=dict)  # acknowledged last, of each key
    topics: int = 0  # made, written, read and deleted

    def say(self, text: str) -> None:
        print(f"{monotonic() - self.begun:7.1f} s  {text}", flush=True)

    def problem(self, text: str) -> None:
        self.problems += 1
        if self.problems <= SHOWN_PROBLEMS:
            self.say(f"PROBLEM: {text}")

    def random(self, part: str) -> Random:
        """Of its own for each part, so that one does not change what another draws."""
        return Random(f"{self.seed} {part}")

    async def pause(self, seconds: float) -> None:
        """At most so long, and not beyond the end of the faults."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.stopped.wait(), seconds)


# What users do


async def write_numbers(soak: Soak) -> None:
    async with (
        Producer(soak.bootstrap, acks="all", delivery_timeout_ms=DELIVERY_TIMEOUT_S * 1000) as producer,
        asyncio.TaskGroup() as group,
    ):
        for partition in range(len(REPLICAS)):
            deliveries: asyncio.Queue[Delivery | None] = asyncio.Queue(OUTSTANDING)
            group.create_task(_send(soak, producer, partition, deliveries))
            group.create_task(_confirm(soak, partition, deliveries))


async def _send(soak: Soak, producer: Producer, partition: int, deliveries: asyncio.Queue[Delivery | None]) -> None:
    random = soak.random(f"numbers {partition}")
    number = 0
    while not soak.stopped.is_set():
        for _ in range(random.choice((1, 1, 5, 40))):
            value = b"%d:%d:%s" % (partition, number, b"x" * random.choice((0, 10, 300)))
            await deliveries.put(await producer.send(NUMBERED, value, key=b"%d" % (number % 50), partition=partition))
            number += 1
        await asyncio.sleep(0.02)
    await deliveries.put(None)


async def _confirm(soak: Soak, partition: int, deliveries: asyncio.Queue[Delivery | None]) -> None:
    while (delivery := await deliveries.get()) is not None:
        try:
            await delivery
        except HighwaterError as error:
            soak.problem(f"record {soak.acked[partition]} of partition {partition} was not taken: {error}")
            soak.stopped.set()
        else:
            soak.acked[partition] += 1


async def read_numbers(soak: Soak, written: asyncio.Event) -> None:
    """Until all that was acknowledged has been seen, once `written` is set."""
    partitions = [TopicPartition(NUMBERED, number) for number in range(len(REPLICAS))]
    while True:
        async with Consumer(bootstrap=soak.bootstrap, auto_offset_reset="error") as consumer:
            consumer.assign(partitions)
            for partition in partitions:
                consumer.seek(partition, soak.seen[partition.partition])
            try:
                while not (written.is_set() and soak.seen == soak.acked):
                    for record in await consumer.poll(500, max_records=5000):
                        _check_number(soak, record)
                return
            except OffsetOutOfRangeError as error:
                soak.problem(f"the consumer was sent back: {error}")
                return
            except HighwaterError as error:
                soak.say(f"the consumer begins anew: {error}")
        await asyncio.sleep(1)


def _check_number(soak: Soak, record: ConsumerRecord) -> None:
    assert record.value is not None
    partition, number = map(int, record.value.split(b":")[:2])
    expected = soak.seen[record.partition]
    if (partition, number, record.offset) != (record.partition, expected, expected):
        soak.problem(f"partition {record.partition}, offset {record.offset}: {partition}:{number}, expected {expected}")
    soak.seen[record.partition] = number + 1


async def write_keys(soak: Soak) -> None:
    async def write(producer: Producer, writer: int) -> None:
        random = soak.random(f"keys {writer}")
        while not soak.stopped.is_set():
            key = b"k%d" % (writer * KEYS_OF_A_WRITER + random.randrange(KEYS_OF_A_WRITER))
            value = random.randbytes(150)
            await producer.send_and_wait(COMPACTED, value, key=key)
            soak.values[key] = value

    async with (
        Producer(soak.bootstrap, acks="all", delivery_timeout_ms=DELIVERY_TIMEOUT_S * 1000) as producer,
        asyncio.TaskGroup() as group,
    ):
        for writer in range(WRITERS):
            group.create_task(write(producer, writer))


async def churn_topics(soak: Soak) -> None:
    random = soak.random("topics")
    made = 0
    async with Admin(soak.bootstrap) as admin, Producer(soak.bootstrap, acks="all") as producer:
        while not soak.stopped.is_set():
            made += 1
            name = f"again{made % 3}" if made % 2 else f"once{made}"
            try:
                await _use_topic(soak, admin, producer, name, grow=made % 3 == 0)
                soak.topics += 1
            except HighwaterError as error:
                soak.say(f"{name}: {error}")  # too few brokers, as a rule
                with suppress(HighwaterError):
                    await admin.delete_topic(name)
            await soak.pause(random.random() * 3)


async def _use_topic(soak: Soak, admin: Admin, producer: Producer, name: str, *, grow: bool) -> None:
    await admin.create_topic(name, 3, 3, {"min.insync.replicas": "2"})
    for number in range(CHURNED_RECORDS):
        await producer.send_and_wait(name, b"%d" % number, partition=number % 3)
    if grow:
        await admin.create_partitions(name, 5)
    found: list[int] = []
    async with Consumer(bootstrap=soak.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(name, partition) for partition in range(3)])
        ends = monotonic() + SETTLE_S
        while len(found) < CHURNED_RECORDS and monotonic() < ends:
            found += [int(record.value or b"-1") for record in await consumer.poll(500)]
    if sorted(found) != list(range(CHURNED_RECORDS)):
        soak.problem(f"{name}: {CHURNED_RECORDS} records were taken, read were {sorted(found)}")
    await admin.delete_topic(name)


async def move_replicas(soak: Soak) -> None:
    random = soak.random("moves")
    partitions = [(NUMBERED, number) for number in range(len(REPLICAS))]
    partitions += [(COMPACTED, number) for number in range(len(COMPACTED_REPLICAS))]
    async with Admin(soak.bootstrap) as admin:
        while not soak.stopped.is_set():
            await soak.pause(random.uniform(5, 15))
            try:
                directories = await admin.describe_log_dirs()
                broker_id = random.choice(directories).broker_id
                path = random.choice([each.path for each in directories if each.broker_id == broker_id])
                await admin.alter_replica_log_dirs({(random.choice(partitions), broker_id): path})
            except HighwaterError as error:
                soak.say(f"move: {error}")


# What goes wrong


class Faults:
    def __init__(self, soak: Soak, cluster: LocalCluster) -> None:
        self._soak = soak
        self._cluster = cluster
        self._random = soak.random("faults")
        self._kinds = {"kill": self._kill, "pause": self._pause, "terminate": self._terminate}
        self._busy: set[str] = set()  # processes

    async def run(self, seconds: float) -> None:
        """Everything runs again when it returns."""
        soak, random = self._soak, self._random
        ends = monotonic() + seconds
        running: set[asyncio.Task[None]] = set()
        count = 0
        while monotonic() < ends and not soak.stopped.is_set():
            await soak.pause(random.choice((0.2, 1, 3, 6, 10)))
            kind = random.choice(("kill", "kill", "kill", "pause", "pause", "terminate"))
            names = self._targets()
            outage_s = random.choice((0.1, 0.3, 1.0, 2.0, 5.0, 9.0))
            for task in [task for task in running if task.done()]:
                task.result()  # raises where a process could not be started
                running.remove(task)
            if len(running) >= FAULTS_AT_ONCE or self._busy & set(names):
                continue
            count += 1
            soak.say(
                f"fault {count}: {kind} {' '.join(names)} for {outage_s} s; {sum(soak.acked.values())} acknowledged, "
                f"{sum(soak.seen.values())} seen, {soak.topics} topics"
            )
            running.add(asyncio.create_task(self._carry_out(self._kinds[kind], names, outage_s)))
        await asyncio.gather(*running)

    def _targets(self) -> list[str]:
        if self._random.random() < 0.3:
            broker = self._random.randrange(self._cluster.settings.brokers) + 1
            return [f"{service}-{broker}" for service in SERVICES]
        return [self._random.choice(list(self._cluster.processes))]

    async def _carry_out(
        self, fault: Callable[[Sequence[str], float], Coroutine[Any, Any, None]], names: Sequence[str], outage_s: float
    ) -> None:
        self._busy |= set(names)
        try:
            await fault(names, outage_s)
        finally:
            self._busy -= set(names)

    async def _kill(self, names: Sequence[str], outage_s: float) -> None:
        for name in names:
            self._cluster.processes[name].kill()
        await asyncio.sleep(outage_s)
        self._start(names)

    async def _pause(self, names: Sequence[str], outage_s: float) -> None:
        with ExitStack() as stack:
            for name in names:
                stack.enter_context(paused(self._cluster.processes[name].pid))
            await asyncio.sleep(outage_s)

    async def _terminate(self, names: Sequence[str], outage_s: float) -> None:
        for name in names:
            self._cluster.processes[name].terminate()
        ends = monotonic() + SETTLE_S
        while any(self._cluster.processes[name].running for name in names):
            await asyncio.sleep(0.1)
            if monotonic() > ends:
                self._soak.problem(f"SIGTERM does not end {' '.join(names)}")
                break
        await self._kill(names, outage_s)

    def _start(self, names: Sequence[str]) -> None:
        for name in names:
            self._cluster.processes[name].start()


# The end


async def check(soak: Soak, deployed: Deployment) -> None:
    await deployed.healed(NUMBERED, len(REPLICAS))
    await deployed.healed(COMPACTED, len(COMPACTED_REPLICAS))
    numbered = [TopicPartition(NUMBERED, number) for number in range(len(REPLICAS))]
    compacted = [TopicPartition(COMPACTED, number) for number in range(len(COMPACTED_REPLICAS))]
    async with Consumer(bootstrap=soak.bootstrap, auto_offset_reset="earliest") as consumer:
        for partition, end in (await consumer.end_offsets(numbered)).items():
            if end != soak.acked[partition.partition]:
                soak.problem(f"{partition} ends at {end}, acknowledged were {soak.acked[partition.partition]}")
        found = await _last_values(consumer, compacted)
    for key, value in soak.values.items():
        if found.get(key) != value:
            soak.problem(f"{COMPACTED}: {key!r} does not have the value that was acknowledged last")
    for topic, number in numbered + compacted:
        verified = await deployed.admin.verify_replicas(topic, number, check_crcs=True)
        if not verified.ok:
            soak.problem(f"the replicas of {topic}-{number} differ: {verified}")


async def _last_values(consumer: Consumer, partitions: Sequence[TopicPartition]) -> dict[bytes | None, bytes | None]:
    ends = await consumer.end_offsets(partitions)
    consumer.assign(partitions)
    found: dict[bytes | None, bytes | None] = {}
    async with asyncio.timeout(SETTLE_S):
        while any([await consumer.position(partition) < ends[partition] for partition in partitions]):
            for record in await consumer.poll(500):
                found[record.key] = record.value
    return found


@asynccontextmanager
async def under_way(soak: Soak, *work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """While the body runs, and then until it ends by itself."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield
        soak.stopped.set()
        async with asyncio.timeout(DELIVERY_TIMEOUT_S + SETTLE_S):
            await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def run(soak: Soak, cluster: LocalCluster, seconds: float) -> None:
    async with deployment(cluster) as deployed:
        await deployed.create_topic(NUMBERED, REPLICAS)
        config = {"min.insync.replicas": "2", "cleanup.policy": "compact", "segment.bytes": "200000"}
        (made,) = await deployed.admin.create_topics(
            [NewTopic(COMPACTED, config=config, assignment=COMPACTED_REPLICAS)]
        )
        assert made.error is None, made.error
        written = asyncio.Event()
        following = asyncio.create_task(read_numbers(soak, written))
        try:
            async with under_way(soak, write_numbers(soak), write_keys(soak), churn_topics(soak), move_replicas(soak)):
                await Faults(soak, cluster).run(seconds)
                before = dict(soak.acked)
                await deployed.healed(NUMBERED, len(REPLICAS))
                await eventually(partial(_moved_on, soak, before), "every partition takes records", SETTLE_S)
                soak.say("healed")
            written.set()
            async with asyncio.timeout(SETTLE_S):
                await following
            await check(soak, deployed)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


async def _moved_on(soak: Soak, before: Mapping[int, int]) -> bool:
    return all(soak.acked[partition] > count for partition, count in before.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(2)))
    parser.add_argument("--seconds", type=float, default=600)
    arguments = parser.parse_args()
    data = Path(tempfile.mkdtemp(prefix="highwater-soak-"))
    with running_cluster(data, settings=SETTINGS, controllers=2, log_dirs=2) as cluster:
        soak = Soak(arguments.seed, cluster.bootstrap)
        try:
            asyncio.run(run(soak, cluster, arguments.seconds))
        except Exception as error:
            soak.problem(f"{type(error).__name__}: {error}")
    if soak.problems:
        print(f"seed {soak.seed}: {soak.problems} problems; data and logs of the processes are in {data}")
        return 1
    shutil.rmtree(data)
    print(
        f"seed {soak.seed}: {sum(soak.acked.values())} records, {len(soak.values)} keys and {soak.topics} topics, "
        "and nothing was wrong"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
