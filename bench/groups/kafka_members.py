"""Members that are consumers of confluent-kafka, each in a thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from time import monotonic

from confluent_kafka import Consumer, TopicPartition

from bench.groups.members import Plan
from bench.groups.reads import Read
from bench.groups.sizes import SETTLE_TIMEOUT_S

_POLL_S = 0.02  # a member that is to leave notices it so late


def group_settings(plan: Plan) -> dict[str, object]:
    """Kafka's own protocol for groups since 4.0, in which brokers alone say the session timeout, 45 s at least; the
    classic one where the plan says another."""
    common = {
        "bootstrap.servers": plan.bootstrap,
        "group.id": plan.group,
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 500,
        "log_level": 2,
    }
    if not plan.session_timeout_ms:
        return {**common, "group.protocol": "consumer"}
    return {
        **common,
        "group.protocol": "classic",
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": plan.session_timeout_ms,
        "heartbeat.interval.ms": plan.heartbeat_interval_ms,
    }


class KafkaMembers:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._shares: dict[int, frozenset[int]] = {}
        self._reading: list[threading.Thread] = []
        self._leaving = threading.Event()
        self._reads: deque[Read] = deque()

    def join(self) -> None:
        self._leaving.clear()
        for number in self._plan.numbers:
            self._shares[number] = frozenset()
            self._reading.append(threading.Thread(target=self._read, args=(number,), daemon=True))
            self._reading[-1].start()

    def _read(self, number: int) -> None:
        """Both protocols say what is added to a share and what is taken from it. `Consumer.assignment` is asked in no
        other thread: it waits for the one that polls."""

        def added(_: Consumer, partitions: Sequence[TopicPartition]) -> None:
            self._shares[number] |= {each.partition for each in partitions}

        def removed(_: Consumer, partitions: Sequence[TopicPartition]) -> None:
            self._shares[number] -= {each.partition for each in partitions}

        consumer = Consumer(group_settings(self._plan))
        consumer.subscribe([self._plan.topic], on_assign=added, on_revoke=removed, on_lost=removed)
        while not self._leaving.is_set():
            message = consumer.poll(_POLL_S)
            if message is None or message.error() is not None:
                continue
            if (partition := message.partition()) is not None:
                self._reads.append(Read(monotonic(), number, partition))
        consumer.close()

    def leave(self) -> float:
        began_s = monotonic()
        self._leaving.set()
        for thread in self._reading:
            thread.join(SETTLE_TIMEOUT_S)
        self._reading, self._shares = [], {}
        return began_s

    def owned(self) -> dict[int, frozenset[int]]:
        return dict(self._shares)

    def take_reads(self) -> list[Read]:
        return [self._reads.popleft() for _ in range(len(self._reads))]
