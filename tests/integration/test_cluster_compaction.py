"""A compacted topic on real processes: kill -9 in the middle of a pass, a follower that was away while the leader
compacted, one that begins from nothing; every replica has the last value of every key and nothing invented."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from functools import partial
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from time import monotonic

import pytest
from replica_manager_cluster import eventually
from running_cluster import HEAL_S, Deployment, deployment, running_cluster

from highwater.client import Consumer, NewTopic, Producer, TopicPartition
from highwater.log_storage.config import LogConfig
from highwater.log_storage.files.checkpoints import CLEANER_OFFSETS, read_offsets
from highwater.log_storage.inspect.dump import dump_segment
from highwater.log_storage.inspect.verify import verify
from highwater.log_storage.recovery.recovery import Checkpointed, open_log
from highwater.log_storage.segment.segment_files import CLEANED_SUFFIX, SWAP_SUFFIX
from highwater.metadata.schema.models import NO_LEADER
from highwater.records import decode

KEYS = 60
SETTINGS = {
    "broker.session.timeout.ms": "3000",
    "controller.session.timeout.ms": "1000",
    "file.delete.delay.ms": "0",
    "replica.high.watermark.checkpoint.interval.ms": "200",
    "log.flush.offset.checkpoint.interval.ms": "500",
    "tail.cache.bytes": "0",  # it holds what was compacted since
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.min.cleanable.ratio": "0.05",
    # So slow that a pass can be met in the middle.
    "log.cleaner.io.max.bytes.per.second": "200000",
}
CONFIG = {"cleanup.policy": "compact", "segment.bytes": "20000", "min.insync.replicas": "2"}
PASS_S = 60.0
_PACE_S = 0.1  # between two hundred records

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
async def deployed(tmp_path: Path) -> AsyncIterator[Deployment]:
    with running_cluster(tmp_path, settings=SETTINGS) as cluster:
        async with deployment(cluster) as found:
            yield found


class Written:
    """The last value of every key, all acknowledged; None: deleted."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.last: dict[bytes, bytes | None] = {}
        self._bootstrap, self._topic = bootstrap, topic
        self._number = 0
        self.stopping = False

    async def more(self, records: int) -> None:
        async with Producer(self._bootstrap, linger_ms=5, batch_size=4000) as producer:
            deliveries = []
            for _ in range(records):
                key = b"key-%d" % (self._number * 7 % KEYS)
                value = b"%d " % self._number + sha256(b"%d" % self._number).digest() * 2 if self._number % 11 else None
                deliveries.append(await producer.send(self._topic, value, key=key, partition=0))
                self.last[key] = value
                self._number += 1
            for delivery in deliveries:
                await delivery


async def create(deployed: Deployment, topic: str) -> Written:
    (result,) = await deployed.admin.create_topics([NewTopic(topic, config=CONFIG, assignment=[[1, 2, 3]])])
    assert result.error is None, result.error
    return Written(deployed.cluster.bootstrap, topic)


def log_dir(deployed: Deployment, broker: int) -> Path:
    (found,) = deployed.cluster.log_dirs(broker)
    return found


def cleaned_to(deployed: Deployment, broker: int, topic: str) -> int:
    return read_offsets(log_dir(deployed, broker) / CLEANER_OFFSETS).get((topic, 0), 0)


async def compacted(deployed: Deployment, topic: str, brokers: tuple[int, ...], offset: int) -> None:
    for broker in brokers:

        async def far_enough(broker: int = broker) -> bool:
            return cleaned_to(deployed, broker, topic) >= offset

        await eventually(far_enough, f"broker {broker} has compacted {topic} up to {offset}", PASS_S)


async def consumed(deployed: Deployment, topic: str) -> dict[bytes, bytes | None]:
    """The last value of every key as a consumer sees it, up to the end of the log."""
    partition = TopicPartition(topic, 0)
    found: dict[bytes, bytes | None] = {}
    async with Consumer(bootstrap=deployed.cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([partition])
        end = (await consumer.end_offsets([partition]))[partition]
        deadline = monotonic() + HEAL_S
        while await consumer.position(partition) < end:
            assert monotonic() < deadline, await consumer.position(partition)
            for record in await consumer.poll(500):
                assert record.key is not None
                found[record.key] = record.value
    return found


def without_deleted(values: dict[bytes, bytes | None]) -> dict[bytes, bytes]:
    return {key: value for key, value in values.items() if value is not None}


async def led_by_another(deployed: Deployment, topic: str, led: set[int]) -> int:
    """Kills the leaders of before; who leads now."""
    (state,) = await deployed.states(topic)
    if state.leader in led:
        deployed.cluster.kill_broker(state.leader)
        await deployed.replaced(state.leader, topic)
        deployed.cluster.start_broker(state.leader)
        await deployed.healed(topic)
        (state,) = await deployed.states(topic)
    assert state.leader != NO_LEADER
    return int(state.leader)


def stored(directory: Path) -> dict[bytes, bytes | None]:
    """The last value of every key in a stopped replica."""
    found: dict[bytes, bytes | None] = {}
    log = open_log(directory, LogConfig(), Checkpointed(clean=True))
    for segment in log.segments:
        for position, header in segment.headers(0):
            for record in decode(segment.batch_at(position, header)).records():
                assert record.key is not None
                found[record.key] = record.value
    return found


async def check_replicas(deployed: Deployment, topic: str, written: Written) -> None:
    """Stops the cluster, and looks at the files of each replica."""
    deployed.cluster.stop(HEAL_S)
    for broker in (1, 2, 3):
        assert without_deleted(stored(log_dir(deployed, broker) / f"{topic}-0")) == without_deleted(written.last)
        problems = [(file.path, file.problems) for file in verify(log_dir(deployed, broker)) if file.problems]
        assert not problems


async def in_the_middle(deployed: Deployment, broker: int) -> bool:
    """Whether a cleaned segment is being written, or put in place."""
    names = os.listdir(log_dir(deployed, broker) / "killed-0")
    return any(name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX)) for name in names)


async def keep_writing(written: Written) -> None:
    while not written.stopping:
        await written.more(100)
        await asyncio.sleep(_PACE_S)


async def test_kill_9_in_the_middle_of_passes(deployed: Deployment) -> None:
    written = await create(deployed, "killed")
    await written.more(1500)
    for broker in (1, 2, 3):
        written.stopping = False  # not by the task: what stops it may come before it begins
        writing = asyncio.create_task(keep_writing(written))
        try:
            await eventually(partial(in_the_middle, deployed, broker), f"broker {broker} compacts", PASS_S)
            process = deployed.cluster.processes[f"log-storage-{broker}"]
            process.kill()
            process.start()
        finally:
            written.stopping = True
            await writing
        await deployed.healed("killed")
    await compacted(deployed, "killed", (1, 2, 3), 1500)
    led: set[int] = set()
    while len(led) < 2:
        leader = await led_by_another(deployed, "killed", led)
        assert without_deleted(await consumed(deployed, "killed")) == without_deleted(written.last)
        led.add(leader)
    await check_replicas(deployed, "killed", written)


async def test_followers_catch_up_over_gaps(deployed: Deployment) -> None:
    """Broker 3 was away while the others compacted; broker 2 begins from nothing afterwards, and is killed on its way.
    What they lead is what was written."""
    written = await create(deployed, "gaps")
    await written.more(300)
    await deployed.healed("gaps")
    deployed.cluster.kill_broker(3)
    await deployed.left_isr(3, "gaps", [0])
    await written.more(1500)
    await compacted(deployed, "gaps", (1, 2), 1500)
    deployed.cluster.start_broker(3)
    await deployed.healed("gaps")
    deployed.cluster.kill_broker(2)
    await deployed.left_isr(2, "gaps", [0])
    shutil.rmtree(log_dir(deployed, 2) / "gaps-0")
    deployed.cluster.start_broker(2)
    directory = log_dir(deployed, 2) / "gaps-0"
    await eventually(partial(has_some, directory), "broker 2 has copied something", HEAL_S)
    process = deployed.cluster.processes["log-storage-2"]
    process.kill()
    process.start()
    await deployed.healed("gaps")
    await written.more(200)
    assert copied_gaps(directory)
    led = {1}
    for _ in range(2):
        leader = await led_by_another(deployed, "gaps", led)
        assert without_deleted(await consumed(deployed, "gaps")) == without_deleted(written.last)
        led.add(leader)
    await check_replicas(deployed, "gaps", written)


async def has_some(directory: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return any(entry.stat().st_size for entry in os.scandir(directory) if entry.name.endswith(".log"))
    return False


def copied_gaps(directory: Path) -> bool:
    headers = [batch.header for path in sorted(directory.glob("*.log")) for batch in dump_segment(path)]
    return any(before and after and after.base_offset > before.next_offset for before, after in pairwise(headers))
