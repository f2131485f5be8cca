"""Topics that are written to all the time, and what stands in them."""

from __future__ import annotations

from collections import defaultdict
from random import Random
from threading import Event, Lock, Thread

import pyarrow as pa
from archived import COLUMNS, FIRST_MS, HOUR_MS
from conftest import FOREVER, delete_records_before

from archive_soak.state import Soak
from highwater.client import TopicPartition
from highwater.client.blocking import Admin, Producer
from highwater.spark.offsets.ranges import OffsetRange
from highwater.spark.source.range_reader import read_range
from highwater.spark.source.read_plan import ReadPlan

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
        ("headers", HEADERS),
    ]
)
assert tuple(SCHEMA.names) == COLUMNS
PARTITIONS, MOST_PARTITIONS = 2, 4
_DAYS = 3
_TICK_S = 0.25
_MOST_AT_ONCE = 4  # records of one partition in a tick


class SoakTopic:
    """One topic; that which is made anew under its name is another. Offsets are those of what was acknowledged."""

    def __init__(self, bootstrap: str, name: str, generation: int, random: Random) -> None:
        self.name = name
        self.begins: dict[int, int] = defaultdict(int)
        self.ends: dict[int, int] = defaultdict(int)
        self.partitions = PARTITIONS
        self._bootstrap, self._generation, self._random = bootstrap, generation, random
        self._sent: dict[int, list[pa.Table]] = defaultdict(list)
        self._compared: dict[int, int] = defaultdict(int)  # up to where the topic was found to have what was sent
        self._writing = Lock()
        self._open = True
        self._producer = Producer(bootstrap, acks="all")

    def write(self) -> None:
        with self._writing:
            for partition in range(self.partitions if self._open else 0):
                count = self._random.randrange(_MOST_AT_ONCE)
                if count:
                    self._send(partition, count)

    def _send(self, partition: int, count: int) -> None:
        first = self.ends[partition]
        rows = pa.Table.from_pylist([self._row(partition, first + index) for index in range(count)], SCHEMA)
        told = self._producer.send_table(
            self.name, rows, timestamp_column="timestamp", headers_column="headers", partition=partition
        )
        assert told is not None
        assert told.batches[0].base_offset == first, f"{self.name}-{partition}: {told}, after {first} records"
        self._sent[partition].append(rows)
        self.ends[partition] += count

    def _row(self, partition: int, offset: int) -> dict[str, object]:
        return {
            "key": None if offset % 5 == 0 else b"%d" % (offset % 20),
            "value": None if offset % 11 == 0 else f"{self.name}/{self._generation}/{partition}/{offset}".encode(),
            "topic": self.name,
            "partition": partition,
            "offset": offset,
            "timestamp": (FIRST_MS + offset // 100 % _DAYS * 24 * HOUR_MS + offset) * 1000,
            "timestampType": 0,
            "headers": [("n", b"%d" % offset), ("n", None)] if offset % 3 == 0 else None,
        }

    def sent(self, partition: int, first: int, end: int) -> pa.Table:
        return pa.concat_tables([SCHEMA.empty_table(), *self._sent[partition]]).slice(first, end - first)

    def close(self) -> None:
        with self._writing:
            self._open = False
            self._producer.stop()

    def grow(self, admin: Admin) -> None:
        with self._writing:
            admin.create_partitions(self.name, self.partitions + 1)
            self._producer.stop()
            self._producer = Producer(self._bootstrap, acks="all")  # which knows them all
            self.partitions += 1

    def trim(self, partition: int, offset: int) -> None:
        delete_records_before(self._bootstrap, self.name, partition, offset)
        self.begins[partition] = offset

    def check(self) -> None:
        """That what is new in the topic, and was not trimmed, is what was acknowledged."""
        with self._writing:
            ends = dict(self.ends)
        plan = ReadPlan((self._bootstrap,), COLUMNS, True, 60_000, {})
        for partition, end in ends.items():
            first = max(self._compared[partition], self.begins[partition])
            if first == end:
                continue
            batches = list(read_range(plan, OffsetRange(TopicPartition(self.name, partition), first, end)))
            found = pa.Table.from_batches(batches).select(COLUMNS).cast(SCHEMA)
            assert found.equals(self.sent(partition, first, end)), f"{self.name}-{partition} is not what was sent"
            self._compared[partition] = end


class Topics:
    """Some, and a thread that writes to them."""

    def __init__(self, soak: Soak, bootstrap: str, admin: Admin, names: list[str]) -> None:
        self._soak, self._bootstrap, self._admin = soak, bootstrap, admin
        self._random = soak.random("records")
        self._made = 0
        self._stopping = Event()
        self.by_name = {name: self._make(name) for name in names}
        self._thread = Thread(target=self._run, name="writer")
        self._thread.start()

    def _make(self, name: str) -> SoakTopic:
        self._admin.create_topic(name, PARTITIONS, 1, FOREVER)
        self._made += 1
        return SoakTopic(self._bootstrap, name, self._made, self._random)

    def make_anew(self, name: str) -> SoakTopic:
        """The one that was."""
        old = self.by_name[name]
        old.close()
        old.check()
        self._admin.delete_topic(name)
        self.by_name[name] = self._make(name)
        return old

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        for one in self.by_name.values():
            one.close()

    def _run(self) -> None:
        try:
            while not self._stopping.wait(_TICK_S):
                for one in list(self.by_name.values()):
                    one.write()
        except Exception as error:
            self._soak.problem(f"nothing is written any more: {error!r}")
