"""`python -m highwater.kube.load --bootstrap HOST:PORT --seconds N`: writes and reads while others break the cluster.

At the end it says whether every acknowledged record is where it was acknowledged.

Single records and tables, `acks=all`, with the SDK's retries; SIGTERM ends it early, with the same check. SIGUSR1
begins a round: of each, the longest time that a partition went without an acknowledgement is told. The last line on
standard output is a JSON object; the exit status is 0 where nothing was wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from highwater.client import Admin, Consumer, Producer, TopicPartition
from highwater.client.exceptions import HighwaterError
from highwater.client.producer.delivery import Delivery
from highwater.kube.history import Checker, History, record_value

TABLE_ROWS = 50
ALL_ACKNOWLEDGED = "every partition has acknowledged a record"
_WINDOW = 64  # of a writer's records that are not acknowledged
_FILLER = b"x" * 80
_SETTLED_S = 180.0
_AGAIN_S = 0.5


@dataclass(frozen=True)
class LoadOptions:
    bootstrap: str
    seconds: float
    partitions: int = 6
    replication_factor: int = 3
    min_insync_replicas: int = 2
    writers: int = 12
    pause_s: float = 0.02
    """Of each writer between two sends."""
    delivery_timeout_ms: float = 120_000


class Load:
    def __init__(self, options: LoadOptions) -> None:
        self.history = History(2 * options.writers)
        self.stopping = asyncio.Event()
        self.rounds_s: list[float] = []
        """The longest silence of a partition in each round that has ended."""
        self._options = options
        self._topic = f"load-{uuid.uuid4().hex[:12]}"
        self._latencies_ms: list[float] = []
        self._acknowledged_at = [time.monotonic()] * options.partitions
        self._longest_s = [0.0] * options.partitions  # in this round
        self._silent = set(range(options.partitions))

    async def run(self) -> dict[str, object]:
        """Runs the load, and returns what was found, for the last line. Raises `HighwaterError` where the cluster never
        took the topic."""
        options = self._options
        async with Admin(options.bootstrap, max_block_ms=60_000) as admin:
            config = {"min.insync.replicas": str(options.min_insync_replicas)}
            await admin.create_topic(self._topic, options.partitions, options.replication_factor, config)
            self._acknowledged_at = [time.monotonic()] * options.partitions
            reading = asyncio.create_task(self._read_on())
            await self._write()
            await self._read_all(reading)
            replicas = await self._replicas(admin)
            if not self.history.problems:
                await admin.delete_topic(self._topic)
        latencies = sorted(self._latencies_ms)
        self.end_round()
        return {
            "problems": self.history.problems,
            **self.history.counts,
            **replicas,
            "seconds_without_acknowledgement": round(max(self.rounds_s), 3),
            "rounds": [round(longest_s, 3) for longest_s in self.rounds_s],
            "p50_ms": round(latencies[len(latencies) // 2], 1) if latencies else None,
            "p99_ms": round(latencies[len(latencies) * 99 // 100], 1) if latencies else None,
        }

    def begin_round(self) -> None:
        """A silence that lasts belongs to the round that ends and to the one that begins."""
        now = time.monotonic()
        for partition, acknowledged_at in enumerate(self._acknowledged_at):
            self._longest_s[partition] = max(self._longest_s[partition], now - acknowledged_at)
        self.end_round()

    def end_round(self) -> None:
        self.rounds_s.append(max(self._longest_s))
        self._longest_s = [0.0] * len(self._longest_s)

    # Writing

    async def _write(self) -> None:
        options = self._options
        settings = {"acks": "all", "delivery_timeout_ms": options.delivery_timeout_ms}
        async with (
            Producer(options.bootstrap, **settings) as producer,  # type: ignore[arg-type]
            asyncio.TaskGroup() as group,
        ):
            asyncio.get_running_loop().call_later(options.seconds, self.stopping.set)
            for writer in range(options.writers):
                group.create_task(self._write_singly(producer, writer))
                group.create_task(self._write_tables(producer, options.writers + writer))

    async def _write_singly(self, producer: Producer, writer: int) -> None:
        window = asyncio.Semaphore(_WINDOW)
        key, partition = b"%d" % writer, writer % self._options.partitions

        async def settled(delivery: Delivery, number: int, began: float) -> None:
            try:
                metadata = await delivery
            except HighwaterError as error:
                self.history.failed(writer, number, error)
            else:
                self.acknowledged(writer, number, metadata.partition, metadata.offset, began)
            finally:
                window.release()

        async with asyncio.TaskGroup() as group:
            while not self.stopping.is_set():
                await window.acquire()
                number = self.history.sent(writer)
                began = time.monotonic()
                value = record_value(writer, number, _FILLER)
                delivery = await producer.send(self._topic, value, key, partition=partition)
                group.create_task(settled(delivery, number, began))
                await self._pause(1)

    async def _write_tables(self, producer: Producer, writer: int) -> None:
        partition = writer % self._options.partitions
        while not self.stopping.is_set():
            numbers = [self.history.sent(writer) for _ in range(TABLE_ROWS)]
            values = [record_value(writer, number, _FILLER) for number in numbers]
            table = pa.table({"key": [b"%d" % writer] * len(values), "value": values})
            began = time.monotonic()
            try:
                metadata = await (await producer.send_table(self._topic, table, partition=partition))
            except HighwaterError as error:
                for number in numbers:
                    self.history.failed(writer, number, error)
            else:
                places = [
                    (batch.partition, batch.base_offset + row)
                    for batch in metadata.batches
                    for row in range(batch.records)
                ]
                for number, place in zip(numbers, places, strict=True):
                    self.acknowledged(writer, number, *place, began)
            await self._pause(TABLE_ROWS)

    def acknowledged(self, writer: int, number: int, partition: int, offset: int, began: float) -> None:
        now = time.monotonic()
        self.history.acknowledged(writer, number, partition, offset)
        self._latencies_ms.append((now - began) * 1000)
        self._longest_s[partition] = max(self._longest_s[partition], now - self._acknowledged_at[partition])
        self._acknowledged_at[partition] = now
        if self._silent:
            self._silent.discard(partition)
            if not self._silent:
                print(ALL_ACKNOWLEDGED, file=sys.stderr, flush=True)

    async def _pause(self, records: int) -> None:
        await asyncio.sleep(self._options.pause_s * records)

    # Reading

    async def _read_on(self) -> None:
        """Yields what comes, as it comes; anew from where it was after whatever befalls the reader."""
        partitions = [TopicPartition(self._topic, number) for number in range(self._options.partitions)]
        while True:
            try:
                async with Consumer(bootstrap=self._options.bootstrap, auto_offset_reset="error") as consumer:
                    consumer.assign(partitions)
                    for one in partitions:
                        consumer.seek(one, self.history.next_offset(one.partition))
                    while True:
                        for record in await consumer.poll(500, max_records=5000):
                            self.history.read(record.partition, record.offset, record.key, record.value)
            except HighwaterError as error:
                self.history.counts["readers begun anew"] += 1
                print(f"the reader begins anew: {error}", file=sys.stderr, flush=True)
                await asyncio.sleep(_AGAIN_S)

    async def _read_all(self, reading: asyncio.Task[None]) -> None:
        """Everything again from the beginning, once the cluster answers."""
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        if not reading.cancelled() and (error := reading.exception()) is not None:
            raise error
        checker = Checker(self.history)
        at = dict.fromkeys((TopicPartition(self._topic, n) for n in range(self._options.partitions)), 0)
        deadline = time.monotonic() + _SETTLED_S
        while True:
            try:
                async with Consumer(bootstrap=self._options.bootstrap, auto_offset_reset="error") as consumer:
                    ends = await consumer.end_offsets(at)
                    consumer.assign(at)
                    for partition, offset in at.items():
                        consumer.seek(partition, offset)
                    while any(at[partition] < end for partition, end in ends.items()):
                        for record in await consumer.poll(500, max_records=5000):
                            checker.record(record.partition, record.offset, record.key, record.value)
                            at[TopicPartition(self._topic, record.partition)] = record.offset + 1
                        if time.monotonic() > deadline:
                            break
                    break
            except HighwaterError as error:
                if time.monotonic() > deadline:
                    self.history.problem("unreadable at the end", str(error))
                    break
                await asyncio.sleep(_AGAIN_S)
        checker.end()

    # Replicas

    async def _replicas(self, admin: Admin) -> dict[str, object]:
        """All back in their ISRs without a hand, and the same byte for byte."""
        began = time.monotonic()
        wanting = f"{self._topic} was not looked at"
        while time.monotonic() - began < _SETTLED_S:
            try:
                wanting = await self._out_of_sync(admin) or await self._unread(admin)
            except HighwaterError as error:
                wanting = str(error)
            if not wanting:
                return {"in_sync_after_s": round(time.monotonic() - began, 1)}
            await asyncio.sleep(_AGAIN_S)
        self.history.problem("replicas out of sync", f"{wanting}, for {_SETTLED_S:g} s")
        return {}

    async def _out_of_sync(self, admin: Admin) -> str:
        (topic,) = await admin.describe_topics([self._topic])
        out = [p.partition for p in topic.partitions if len(p.isr) < len(p.replicas) or p.leader is None]
        return f"partitions {out} are not in sync" if out else ""

    async def _unread(self, admin: Admin) -> str:
        """Names what could not be read just now; differences are noted."""
        for number in range(self._options.partitions):
            found = await admin.verify_replicas(self._topic, number)
            errors = [str(one.error) for one in found.replicas if one.error is not None]
            if errors or found.reference is None:
                return f"partition {number} cannot be compared: {'; '.join(errors)}"
            if not found.ok:
                self.history.problem("different replicas", str(found))
        return ""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--partitions", type=int, default=6)
    parser.add_argument("--replication-factor", type=int, default=3)
    parser.add_argument("--min-insync-replicas", type=int, default=2)
    parser.add_argument("--writers", type=int, default=12, help="so many of single records, and so many of tables")
    given = parser.parse_args(arguments)
    found = asyncio.run(_until_done(LoadOptions(**vars(given))))
    print(json.dumps(found), flush=True)
    return 1 if found["problems"] else 0


async def _until_done(options: LoadOptions) -> dict[str, object]:
    load = Load(options)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, load.stopping.set)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, load.begin_round)
    return await load.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
