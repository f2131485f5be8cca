"""The figures of `bench.scale` that are Kafka's too, measured as `bench.scale.highwater` does, by confluent-kafka."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from functools import cached_property

from confluent_kafka.admin import AdminClient, NewTopic, PartitionMetadata

from bench.kafka_side import KafkaSide, last_served
from bench.scale.progress import say_failed_over, say_grown
from bench.scale.sizes import BROKERS, REPLICATION_FACTOR, WHOLE_TIMEOUT_S, Sizes, growth, new_topics
from bench.scale.usage import cpu_and_memory, most_of_each
from bench.scale.waiting import until
from bench.work import FAILOVER_TIMEOUT_S, TOPIC_CONFIG, Work

_ANSWER_TIMEOUT_S = 30.0
_ASK_S = 0.2
_QUIET = {"log_level": 2}  # nothing of brokers that are killed on purpose


class KafkaScale:
    name = "Kafka"

    def __init__(self, script: str, sizes: Sizes) -> None:
        self._side = KafkaSide(script, Work())
        self._sizes = sizes
        self._idle = 0
        self._creations: list[float] = []
        self._killed: int | None = None

    def start(self) -> None:
        self._side.startup()
        until(self._unregistered, FAILOVER_TIMEOUT_S, _ASK_S)
        self._make("warm-up", 1)

    def stop(self) -> None:
        self._side.stop()

    def seen(self) -> str:
        return ""

    @cached_property
    def _admin(self) -> AdminClient:
        """Of a cluster that has been started."""
        return AdminClient({"bootstrap.servers": self._side.peer.bootstrap, **_QUIET})

    def scale_latency(self) -> dict[str, float]:
        self._side.create("lone")
        alone, _ = self._side.latency("lone")
        self._grow_to(self._sizes.partitions["scale_latency"])
        beside, _ = self._side.latency("lone")
        return {"scale_latency": beside / alone, "scale_latency_p50": beside, "scale_latency_alone": alone}

    def scale_create(self) -> dict[str, float]:
        self._grow_to(self._sizes.partitions["scale_create"])
        first, last = growth(self._creations)
        return {"scale_create": last / first, "scale_create_last": last}

    def scale_idle(self) -> dict[str, float]:
        self._grow_to(self._sizes.partitions["scale_idle"])
        pids = {f"broker-{broker}": [self._side.peer.pid(broker)] for broker in range(1, BROKERS + 1)}
        cpu, memory = most_of_each(cpu_and_memory(pids, self._sizes.window_s))
        return {"scale_idle_cpu": cpu, "scale_idle_memory": memory}

    def scale_failover(self) -> dict[str, float]:
        self._grow_to(self._sizes.partitions["scale_failover"])
        leaders = [partition.leader for _, partition in self._described()]
        victim = max(set(leaders), key=leaders.count)
        led = [(topic, partition.id) for topic, partition in self._described() if partition.leader == victim]
        producer = self._side.producer(**{"linger.ms": 0}, **_QUIET)
        before = last_served(producer, led, time.perf_counter())
        self._kill(victim)
        killed = time.perf_counter()
        until(self._without_leader, FAILOVER_TIMEOUT_S, _ASK_S)
        all_led = time.perf_counter() - killed
        served = last_served(producer, led, killed)
        say_failed_over(len(led), all_led, served, before)
        return {"scale_failover": served, "scale_failover_led": all_led}

    def scale_restart(self) -> dict[str, float]:
        self._grow_to(self._sizes.partitions["scale_restart"])
        if self._killed is None:
            self._kill(BROKERS)
            until(self._without_leader, FAILOVER_TIMEOUT_S, _ASK_S)
        broker, self._killed = self._killed, None
        assert broker is not None
        began = time.perf_counter()
        self._side.peer.start(broker)
        until(self._not_whole, WHOLE_TIMEOUT_S, _ASK_S)
        return {"scale_restart": time.perf_counter() - began}

    def _kill(self, broker: int) -> None:
        os.kill(self._side.peer.pid(broker), signal.SIGKILL)
        self._killed = broker

    def _grow_to(self, partitions: int) -> None:
        wanted = new_topics(self._idle, partitions)
        for topic, count in wanted:
            self._creations.append(self._make(topic, count))
            self._idle += count
            say_grown(self._idle, count, self._creations)
        if wanted:
            until(self._not_whole, WHOLE_TIMEOUT_S, _ASK_S)
            time.sleep(self._sizes.settle_s)

    def _make(self, topic: str, partitions: int) -> float:
        """Seconds until a broker knows the leaders."""
        began = time.perf_counter()
        made = self._admin.create_topics([NewTopic(topic, partitions, REPLICATION_FACTOR, config=TOPIC_CONFIG)])
        made[topic].result(_ANSWER_TIMEOUT_S)

        def unknown() -> str:
            found = self._admin.list_topics(topic, timeout=_ANSWER_TIMEOUT_S).topics[topic].partitions.values()
            led = sum(partition.leader >= 0 for partition in found)
            return "" if led == partitions else f"{led} of the {partitions} partitions of {topic} have leaders"

        until(unknown, _ANSWER_TIMEOUT_S, 0.01)
        return time.perf_counter() - began

    def _described(self) -> Sequence[tuple[str, PartitionMetadata]]:
        topics = self._admin.list_topics(timeout=_ANSWER_TIMEOUT_S).topics
        return [(name, partition) for name, topic in topics.items() for partition in topic.partitions.values()]

    def _unregistered(self) -> str:
        there = len(self._admin.list_topics(timeout=_ANSWER_TIMEOUT_S).brokers)
        return "" if there == BROKERS else f"{there} of {BROKERS} brokers are registered"

    def _without_leader(self) -> str:
        found = self._described()
        led = sum(partition.leader not in (-1, self._killed) for _, partition in found)
        return "" if led == len(found) else f"{len(found) - led:,} of {len(found):,} have no leader"

    def _not_whole(self) -> str:
        found = self._described()
        behind = sum(len(partition.isrs) < len(partition.replicas) for _, partition in found)
        return "" if not behind else f"{behind:,} of {len(found):,} have replicas outside their ISRs"
