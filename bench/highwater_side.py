"""The measurements on Highwater."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil

from bench.events import event_table, events
from bench.work import (
    FAILOVER_TIMEOUT_S,
    LATENCY_RATE,
    LATENCY_RECORDS,
    LATENCY_WARM_UP,
    PARTITIONS,
    TABLE_ROWS,
    TOPIC_CONFIG,
    Work,
    percentile,
)
from highwater.cli.local_cluster import LocalCluster, LocalClusterSettings
from highwater.client import Admin, Consumer, HighwaterError, Producer, TopicPartition

Found = TypeVar("Found")


def three_brokers(data: Path) -> LocalCluster:
    """In a directory of its own."""
    return LocalCluster(LocalClusterSettings(data, brokers=3, port=0))


class HighwaterSide:
    """A cluster of three brokers; each method is one measurement."""

    name = "Highwater"

    def __init__(self, cluster: LocalCluster, work: Work) -> None:
        self.cluster = cluster
        self.work = work
        self._runner = asyncio.Runner()

    def run(self, work: Coroutine[Any, Any, Found]) -> Found:
        return self._runner.run(work)

    def startup(self) -> float:
        started = time.monotonic()
        self.cluster.start()
        return time.monotonic() - started

    def close(self) -> None:
        """Leaves the cluster as it is."""
        self._runner.close()

    def stop(self) -> None:
        self.close()
        self.cluster.stop()

    def idle_rss(self) -> float:
        """MB of resident memory of the three processes of broker 1."""
        processes = [psutil.Process(process.pid) for process in self.cluster.broker_processes(1)]
        return sum(process.memory_info().rss for process in processes) / 1e6

    def create(self, topic: str, partitions: int = PARTITIONS) -> None:
        self.run(self._create(topic, partitions))

    async def _create(self, topic: str, partitions: int) -> None:
        async with Admin(self.cluster.bootstrap) as admin:
            await admin.create_topic(topic, partitions, 3, TOPIC_CONFIG)

    def produce_table(self, *topics: str) -> float:
        """Records a second; each table in equal slices to all of the topics."""
        return self.run(self._produce_table(topics))

    async def _produce_table(self, topics: Sequence[str]) -> float:
        table = event_table(TABLE_ROWS)
        rows = TABLE_ROWS // len(topics)
        slices = [(topic, table.slice(number * rows, rows)) for number, topic in enumerate(topics)]
        async with Producer(self.cluster.bootstrap, compression="lz4") as producer:
            for topic, piece in slices:
                await (await producer.send_table(topic, piece))  # warm: connections, metadata, producer id
            started = time.perf_counter()
            deliveries = [
                await producer.send_table(topic, piece) for _ in range(self.work.tables) for topic, piece in slices
            ]
            for delivery in deliveries:
                await delivery
            return self.work.tables * rows * len(topics) / (time.perf_counter() - started)

    def produce_send(self, topic: str) -> float:
        return self.run(self._produce_send(topic))

    async def _produce_send(self, topic: str) -> float:
        keys, values = events(self.work.sends)
        async with Producer(self.cluster.bootstrap, compression="lz4") as producer:
            await producer.send_and_wait(topic, values[0], keys[0])
            gc.collect()
            started = time.perf_counter()
            send = producer.send
            for key, value in zip(keys, values, strict=True):
                await send(topic, value, key)
            await producer.flush()
            return self.work.sends / (time.perf_counter() - started)

    def consume_arrow(self, topic: str) -> float:
        return self.run(self._consume(topic, arrow=True))

    def consume_records(self, topic: str) -> float:
        return self.run(self._consume(topic, arrow=False))

    async def _consume(self, topic: str, *, arrow: bool) -> float:
        partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        async with Consumer(bootstrap=self.cluster.bootstrap, auto_offset_reset="earliest") as consumer:
            total = sum((await consumer.end_offsets(partitions)).values())
            seen = 0
            started = time.perf_counter()  # before the assignment: from then on the consumer fetches ahead
            consumer.assign(partitions)
            while seen < total:
                if arrow:
                    seen += sum(batch.num_rows for batch in await consumer.poll_batches(timeout_ms=5000))
                else:
                    seen += len(await consumer.poll(timeout_ms=5000, max_records=50_000))
            return total / (time.perf_counter() - started)

    def latency(self, topic: str) -> tuple[float, float]:
        return self.run(self._latency(topic))

    async def _latency(self, topic: str) -> tuple[float, float]:
        """Milliseconds, p50 and p99, of lone records at 200 a second."""
        _, values = events(LATENCY_RECORDS + LATENCY_WARM_UP)
        taken = []
        async with Producer(self.cluster.bootstrap, linger_ms=0) as producer:
            due = time.perf_counter()
            for number, value in enumerate(values):
                due += 1 / LATENCY_RATE
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                started = time.perf_counter()
                await producer.send_and_wait(topic, value, partition=number % PARTITIONS)
                taken.append((time.perf_counter() - started) * 1000)
        kept = taken[LATENCY_WARM_UP:]
        return percentile(kept, 50), percentile(kept, 99)

    def failover(self, topic: str) -> float:
        return self.run(self._failover(topic))

    async def _failover(self, topic: str) -> float:
        """Seconds from the SIGKILL of a broker's three processes to the first acknowledgement on each partition that
        it led; the last of them."""
        async with Admin(self.cluster.bootstrap) as admin, Producer(self.cluster.bootstrap, linger_ms=0) as producer:
            (described,) = await admin.describe_topics([topic])
            victim = described.partitions[0].leader
            assert victim is not None
            led = [p.partition for p in described.partitions if p.leader == victim]
            for partition in range(PARTITIONS):
                await producer.send_and_wait(topic, b"before", partition=partition)
            self.cluster.kill_broker(victim)
            killed = time.perf_counter()

            took = await last_served(producer, [TopicPartition(topic, partition) for partition in led], killed)
            self.cluster.start_broker(victim)
            deadline = time.monotonic() + FAILOVER_TIMEOUT_S
            while time.monotonic() < deadline:
                (described,) = await admin.describe_topics([topic])
                if all(len(p.isr) == len(p.replicas) for p in described.partitions):
                    break
                await asyncio.sleep(0.1)
            return took


async def last_served(producer: Producer, partitions: Iterable[TopicPartition], killed: float) -> float:
    """Seconds from `killed` to the first acknowledgement on each partition; the last of them. Raises `TimeoutError`
    with the first that took no record from now on."""
    began = time.perf_counter()

    async def first_acknowledged(topic: str, partition: int) -> float:
        while time.perf_counter() - began < FAILOVER_TIMEOUT_S:
            try:
                await producer.send_and_wait(topic, b"after", partition=partition)
                return time.perf_counter() - killed
            except HighwaterError as error:
                if not error.retriable:
                    raise
        raise TimeoutError(f"partition {partition} of {topic} took no record for {FAILOVER_TIMEOUT_S} s")

    return max(await asyncio.gather(*(first_acknowledged(*partition) for partition in partitions)))
