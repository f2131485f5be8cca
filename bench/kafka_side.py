"""The same measurements on Apache Kafka through confluent-kafka."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from bench.events import events
from bench.kafka_peer import KafkaPeer
from bench.work import (
    FAILOVER_TIMEOUT_S,
    LATENCY_RATE,
    LATENCY_RECORDS,
    LATENCY_WARM_UP,
    PARTITIONS,
    TABLE_ROWS,
    Work,
    percentile,
)


class KafkaSide:
    name = "Kafka"

    def __init__(self, script: str, work: Work) -> None:
        self.peer = KafkaPeer(script)
        self.work = work

    def startup(self) -> float:
        return self.peer.up()

    def stop(self) -> None:
        self.peer.down()

    def idle_rss(self) -> float:
        return float(psutil.Process(self.peer.pid(1)).memory_info().rss) / 1e6

    def create(self, topic: str) -> None:
        self.peer.create(topic)

    def producer(self, **settings: object) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self.peer.bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "compression.type": "lz4",
                "queue.buffering.max.messages": 1_000_000,
                **settings,
            }
        )

    def produce_table(self, topic: str) -> float:
        """It has no columns: the same records one by one."""
        keys, values = events(TABLE_ROWS)
        return self._produce(topic, keys, values, self.work.tables)

    def produce_send(self, topic: str) -> float:
        keys, values = events(self.work.sends)
        return self._produce(topic, keys, values, 1)

    def _produce(self, topic: str, keys: list[bytes], values: list[bytes], times: int) -> float:
        producer = self.producer(**{"linger.ms": 5, "batch.size": 1_000_000})
        producer.produce(topic, values[0], keys[0])
        producer.flush()
        started = time.perf_counter()
        for _ in range(times):
            for key, value in zip(keys, values, strict=True):
                while True:
                    try:
                        producer.produce(topic, value, key)
                        break
                    except BufferError:
                        producer.poll(0.01)
        assert producer.flush(120) == 0
        return times * len(keys) / (time.perf_counter() - started)

    def consume_records(self, topic: str) -> float:
        consumer = Consumer(
            {
                "bootstrap.servers": self.peer.bootstrap,
                "group.id": "bench",
                "enable.auto.commit": False,
                "fetch.max.bytes": 55_000_000,
            }
        )
        total = 0
        for number in range(PARTITIONS):
            _, high = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=10)
            total += high
        consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        seen = 0
        started = time.perf_counter()
        while seen < total:
            for message in consumer.consume(min(10_000, total - seen), timeout=5):
                message.value()
                seen += 1
        rate = total / (time.perf_counter() - started)
        consumer.close()
        return rate

    def consume_arrow(self, topic: str) -> float:
        """It has no columns: the fastest that its client hands out is messages."""
        return self.consume_records(topic)

    def latency(self, topic: str) -> tuple[float, float]:
        _, values = events(LATENCY_RECORDS + LATENCY_WARM_UP)
        producer = self.producer(**{"linger.ms": 0})
        taken: list[float] = []
        due = time.perf_counter()
        for number, value in enumerate(values):
            due += 1 / LATENCY_RATE
            time.sleep(max(0.0, due - time.perf_counter()))
            started = time.perf_counter()
            producer.produce(topic, value, partition=number % PARTITIONS)
            producer.flush()
            taken.append((time.perf_counter() - started) * 1000)
        kept = taken[LATENCY_WARM_UP:]
        return percentile(kept, 50), percentile(kept, 99)

    def failover(self, topic: str) -> float:
        admin = AdminClient({"bootstrap.servers": self.peer.bootstrap})
        partitions = admin.list_topics(topic).topics[topic].partitions
        victim = partitions[0].leader
        led = [number for number, partition in partitions.items() if partition.leader == victim]
        producer = self.producer(**{"linger.ms": 0})
        for number in range(PARTITIONS):
            producer.produce(topic, b"before", partition=number)
        assert producer.flush(30) == 0
        os.kill(self.peer.pid(victim), signal.SIGKILL)
        took = last_served(producer, [(topic, number) for number in led], time.perf_counter())
        self.peer.start(victim)
        deadline = time.monotonic() + FAILOVER_TIMEOUT_S
        while time.monotonic() < deadline:
            described = admin.list_topics(topic).topics[topic].partitions
            if all(len(p.isrs) == len(p.replicas) for p in described.values()):
                break
            time.sleep(0.2)
        return took


def last_served(producer: Producer, partitions: Sequence[tuple[str, int]], killed: float) -> float:
    """Seconds from `killed` to the acknowledgement of a record on each partition; the last of them. Raises
    `TimeoutError` where one took none."""
    last = 0.0
    failed: list[object] = []

    def on_delivery(error: object, _message: object) -> None:
        nonlocal last
        if error is None:
            last = time.perf_counter() - killed
        else:
            failed.append(error)

    for topic, partition in partitions:
        producer.produce(topic, b"after", partition=partition, on_delivery=on_delivery)
    left = producer.flush(FAILOVER_TIMEOUT_S)
    if left or failed:
        why = failed[0] if failed else "no answer"
        raise TimeoutError(f"{left + len(failed)} of {len(partitions)} partitions took no record: {why}")
    return last
