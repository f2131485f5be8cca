"""The figures of groups on Apache Kafka through confluent-kafka."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cached_property
from statistics import median

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.events import events
from bench.groups import figures
from bench.groups.consuming import PairedRates
from bench.groups.figures import Send
from bench.groups.kafka_members import KafkaMembers, group_settings
from bench.groups.members import MakeMembers, Plan
from bench.groups.sizes import SETTLE_TIMEOUT_S, GroupSizes
from bench.kafka_side import KafkaSide
from bench.scale.progress import say
from bench.scale.usage import cpu_and_memory, most_of_each
from bench.work import PARTITIONS, TABLE_ROWS, TOPIC_CONFIG

_RECORD = b"x" * 100
_ALTERING_AT_ONCE = 200
_WARM_UP = 20  # commits
_BROKERS = 3

AssignedCallback = Callable[[Consumer, object], None]


class KafkaGroups:
    """Beside a side whose brokers run. Members speak Kafka's own protocol for groups, but where a session timeout below
    45 s is measured; idle members are left out, as each of this client's has threads of its own for every broker."""

    make_members: MakeMembers = KafkaMembers

    def __init__(self, side: KafkaSide, sizes: GroupSizes) -> None:
        self._side = side
        self._sizes = sizes

    @property
    def bootstrap(self) -> str:
        return self._side.peer.bootstrap

    @cached_property
    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 2})

    def make_topic(self, topic: str, partitions: int) -> None:
        new = NewTopic(topic, partitions, _BROKERS, config=TOPIC_CONFIG)
        self._admin.create_topics([new])[topic].result(SETTLE_TIMEOUT_S)

    @contextmanager
    def sender(self, topic: str) -> Iterator[Send]:
        producer = self._side.producer(**{"linger.ms": 0, "log_level": 2})

        def send(partition: int) -> None:
            producer.produce(topic, _RECORD, partition=partition)
            producer.poll(0)

        yield send
        producer.flush(SETTLE_TIMEOUT_S)

    def group_rebalance(self, topic: str) -> dict[str, float]:
        return {"group_rebalance": figures.group_rebalance(self, self._sizes, topic)}

    def group_failover(self, topic: str) -> dict[str, float]:
        return {"group_failover": figures.group_failover(self, self._sizes, topic)}

    def group_join_gap(self, topic: str) -> dict[str, float]:
        return {"group_join_gap": figures.group_join_gap(self, self._sizes, topic)}

    def commit_p50(self, topic: str) -> dict[str, float]:
        self.make_topic(topic, PARTITIONS)
        count = self._sizes.commits + _WARM_UP
        with self.sender(topic) as send:
            for number in range(count):
                send(number % PARTITIONS)
        consumer = self._member(topic, topic, {"enable.auto.commit": False})
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        taken: list[float] = []
        while len(taken) < count and time.monotonic() < deadline:
            message = consumer.poll(1)
            if message is not None and message.error() is None:
                started = time.perf_counter()
                consumer.commit(message=message, asynchronous=False)
                taken.append(1000 * (time.perf_counter() - started))
        consumer.close()
        if len(taken) < count:
            raise TimeoutError(f"{len(taken)} of {count} records were committed in {SETTLE_TIMEOUT_S:g} s")
        return {"commit_p50": median(taken[_WARM_UP:])}

    def group_consume(self, topic: str) -> dict[str, float]:
        self.make_topic(topic, PARTITIONS)
        producer = self._side.producer(**{"linger.ms": 5, "batch.size": 1_000_000, "log_level": 2})
        keys, values = events(TABLE_ROWS)
        for _ in range(self._sizes.consume_tables):
            for key, value in zip(keys, values, strict=True):
                producer.produce(topic, value, key)
            producer.flush(SETTLE_TIMEOUT_S)
        rates = PairedRates(self._sizes)
        while rates.wants_more():
            rates.add(self._in_group(topic, f"{topic}-{rates.count}"), self._side.consume_records(topic))
        return {"group_consume": rates.percent()}

    def _in_group(self, topic: str, group: str) -> float:
        """Records a second from the assignment on, as `consume_records` counts it."""
        seen, began = 0, 0.0
        total = TABLE_ROWS * self._sizes.consume_tables
        deadline = time.monotonic() + SETTLE_TIMEOUT_S

        def assigned(_: Consumer, partitions: object) -> None:
            nonlocal began
            began = began or time.perf_counter()

        consumer = self._member(topic, group, {"fetch.max.bytes": 55_000_000}, assigned)
        while seen < total and time.monotonic() < deadline:
            for message in consumer.consume(min(10_000, total - seen), timeout=1):
                message.value()
                seen += 1
        rate = seen / (time.perf_counter() - began)
        consumer.close()
        if seen < total:
            raise TimeoutError(f"{seen:,} of {total:,} records were read in {SETTLE_TIMEOUT_S:g} s")
        return rate

    def group_idle(self, topic: str) -> dict[str, float]:
        self.make_topic(topic, PARTITIONS)
        began = time.monotonic()
        for first in range(0, self._sizes.idle_groups, _ALTERING_AT_ONCE):
            last = min(first + _ALTERING_AT_ONCE, self._sizes.idle_groups)
            asked = [self._alter(f"idle-{number:05d}", topic) for number in range(first, last)]
            for future in asked:
                future.result(SETTLE_TIMEOUT_S)
        say(f"{self._sizes.idle_groups:,} groups were made in {time.monotonic() - began:.1f} s")
        return {"group_idle": self._idle_cpu()}

    def _alter(self, group: str, topic: str) -> Future[ConsumerGroupTopicPartitions]:
        """Sets a group's offsets of all partitions."""
        offsets = [TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)]
        wanted = ConsumerGroupTopicPartitions(group, offsets)
        return self._admin.alter_consumer_group_offsets([wanted])[group]

    def _idle_cpu(self) -> float:
        time.sleep(self._sizes.idle_settle_s)
        pids = {f"broker-{broker}": [self._side.peer.pid(broker)] for broker in range(1, _BROKERS + 1)}
        cpu, _ = most_of_each(cpu_and_memory(pids, self._sizes.idle_window_s))
        return cpu

    def _member(
        self, topic: str, group: str, settings: Mapping[str, object], assigned: AssignedCallback | None = None
    ) -> Consumer:
        consumer = Consumer({**group_settings(Plan(self.bootstrap, topic, group, [0])), **settings})
        consumer.subscribe([topic], **({"on_assign": assigned} if assigned else {}))
        return consumer
