"""What users do meanwhile, in this process: numbered records, keys of a compacted topic, topics that come and go, moves
between log directories."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

from highwater.client import (
    Admin,
    AuthorizationError,
    Consumer,
    ConsumerRecord,
    HighwaterError,
    OffsetOutOfRangeError,
    Producer,
    TopicPartition,
)
from highwater.client.producer.delivery import Delivery
from soak.state import (
    COMPACTED,
    COMPACTED_REPLICAS,
    DELIVERY_TIMEOUT_S,
    NUMBERED,
    NUMBERED_REPLICAS,
    SETTLE_S,
    Soak,
)

OUTSTANDING = 300  # records of a partition that may be without an acknowledgement
WRITERS, KEYS_OF_A_WRITER = 8, 10
CHURNED_RECORDS = 60


ALL_NUMBERED = range(len(NUMBERED_REPLICAS))


async def write_numbers(soak: Soak, partitions: Sequence[int] = ALL_NUMBERED, **options: Any) -> None:
    """`options`, here and below: the client's, beside what everybody has."""
    async with (
        Producer(soak.bootstrap, acks="all", delivery_timeout_ms=DELIVERY_TIMEOUT_S * 1000, **options) as producer,
        asyncio.TaskGroup() as group,
    ):
        for partition in partitions:
            deliveries: asyncio.Queue[Delivery | None] = asyncio.Queue(OUTSTANDING)
            group.create_task(_send(soak, producer, partition, deliveries))
            group.create_task(_confirm(soak, partition, deliveries))


async def _send(soak: Soak, producer: Producer, partition: int, deliveries: asyncio.Queue[Delivery | None]) -> None:
    random = soak.random(f"numbers {partition}")
    number = 0
    while not soak.stopped.is_set():
        for _ in range(random.choice((1, 1, 5, 40))):
            value = b"%d:%d:%s" % (partition, number, b"x" * random.choice((0, 10, 300)))
            soak.waits(partition)
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
            soak.acknowledged(partition)


async def read_numbers(soak: Soak, written: asyncio.Event, **options: Any) -> None:
    """Until all that was acknowledged has been seen, once `written` is set."""
    partitions = [TopicPartition(NUMBERED, number) for number in ALL_NUMBERED]
    while True:
        async with Consumer(bootstrap=soak.bootstrap, auto_offset_reset="error", **options) as consumer:
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


async def write_keys(soak: Soak, **options: Any) -> None:
    async def write(producer: Producer, writer: int) -> None:
        random = soak.random(f"keys {writer}")
        while not soak.stopped.is_set():
            key = b"k%d" % (writer * KEYS_OF_A_WRITER + random.randrange(KEYS_OF_A_WRITER))
            value = random.randbytes(150)
            await producer.send_and_wait(COMPACTED, value, key=key)
            soak.values[key] = value

    async with (
        Producer(soak.bootstrap, acks="all", delivery_timeout_ms=DELIVERY_TIMEOUT_S * 1000, **options) as producer,
        asyncio.TaskGroup() as group,
    ):
        for writer in range(WRITERS):
            group.create_task(write(producer, writer))


async def churn_topics(soak: Soak, **options: Any) -> None:
    random = soak.random("topics")
    made = 0
    async with Admin(soak.bootstrap, **options) as admin, Producer(soak.bootstrap, acks="all", **options) as producer:
        while not soak.stopped.is_set():
            made += 1
            name = f"again{made % 3}" if made % 2 else f"once{made}"
            try:
                await _use_topic(soak, admin, producer, name, grow=made % 3 == 0, options=options)
                soak.topics += 1
            except AuthorizationError as error:
                soak.problem(f"{name}: {error}")
            except HighwaterError:  # too few brokers, as a rule
                soak.refused_topics += 1
                with suppress(HighwaterError):
                    await admin.delete_topic(name)
            await soak.pause(random.random() * 3)


async def _use_topic(
    soak: Soak, admin: Admin, producer: Producer, name: str, *, grow: bool, options: Mapping[str, Any]
) -> None:
    await admin.create_topic(name, 3, 3, {"min.insync.replicas": "2"})
    for number in range(CHURNED_RECORDS):
        await producer.send_and_wait(name, b"%d" % number, partition=number % 3)
    if grow:
        await admin.create_partitions(name, 5)
    found: list[int] = []
    async with Consumer(bootstrap=soak.bootstrap, auto_offset_reset="earliest", **options) as consumer:
        consumer.assign([(name, partition) for partition in range(3)])
        ends = monotonic() + SETTLE_S
        while len(found) < CHURNED_RECORDS and monotonic() < ends:
            found += [int(record.value or b"-1") for record in await consumer.poll(500)]
    if sorted(found) != list(range(CHURNED_RECORDS)):
        soak.problem(f"{name}: {CHURNED_RECORDS} records were taken, read were {sorted(found)}")
    await admin.delete_topic(name)


async def move_replicas(soak: Soak) -> None:
    random = soak.random("moves")
    partitions = [(NUMBERED, number) for number in range(len(NUMBERED_REPLICAS))]
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
