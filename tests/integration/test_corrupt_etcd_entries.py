"""Every kind of key in etcd replaced by garbage, emptied, made huge and removed, one at a time, while nothing runs: a
controller and a broker start over it, name the key, and serve the other topic."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from controller_world import World, acts, create
from replica_manager_cluster import Trio, eventually, rows

from highwater.errors import ErrorCode
from highwater.metadata.local import LocalEtcd
from highwater.metadata.schema.keys import Keys
from highwater.metadata.store.store import Store
from highwater.metadata.store.transactions import Delete, Put
from highwater.model.partition import PartitionKey
from highwater.v1 import broker_pb2

MOST_BYTES = 1_000_000
KINDS: dict[str, Callable[[Keys], str]] = {
    "the cluster's id": lambda keys: keys.cluster_id,
    "the controller": lambda keys: keys.controller,
    "the controller epoch": lambda keys: keys.controller_epoch,
    "a broker": lambda keys: keys.broker(1),
    "another broker": lambda keys: keys.broker(2),
    "a broker's tail": lambda keys: keys.broker_tail(1),
    "a topic": lambda keys: keys.topic("bad"),
    "a state": lambda keys: keys.state("bad", 0),
    "a configuration": lambda keys: keys.topic_config("bad"),
    "a deletion": lambda keys: keys.delete_topic("bad"),
    "an ISR notification": lambda keys: keys.isr_change(1, 3, 1),
    "producer ids": lambda keys: keys.producer_ids,
    "a doubted directory": lambda keys: keys.doubted_dir("d"),
}
HARMS: dict[str, bytes | None] = {
    "garbage": b"\x93garbage\x00\xff" * 41,
    "emptied": b"",
    "huge": b"7" * MOST_BYTES,
    "removed": None,
}
# Nobody reads the value of one; the others are given up, or made again, in silence where they are not there.
SILENT = {"a doubted directory"}
TOLD_WHERE_REMOVED = {"the cluster's id"}


class Harmed:
    """One broker and one controller over an etcd that a test may change while neither runs."""

    def __init__(self, world: World, trio: Trio) -> None:
        self.world = world
        self.trio = trio
        self.partitions: dict[str, PartitionKey] = {}

    async def start(self) -> None:
        service, _ = await asyncio.gather(self.world.controller(), self.trio.start_replica_manager())
        await acts(service)

    async def stop(self) -> None:
        await self.trio.stop_replica_manager()
        await self.world.controllers.pop().stop()

    async def written(self, topic: str) -> bool:
        result = await self.trio.produce(self.partitions[topic], rows(b"x"))
        return result.error.code == ErrorCode.NONE


async def gone(log: Path) -> bool:
    return not await asyncio.to_thread(log.exists)


@pytest.fixture
async def harmed(own_etcd: LocalEtcd, keys: Keys, tmp_path: Path) -> AsyncIterator[Harmed]:
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(Store([own_etcd.address]))
        world = await stack.enter_async_context(World(own_etcd, store, keys))
        trio = Trio(1, tmp_path / "b1", own_etcd.address, keys.cluster, {"min.insync.replicas": "1"})
        stack.push_async_callback(trio.stop)
        made = Harmed(world, trio)
        await trio.start_log_storage()
        await made.start()
        stub = world.stub(world.controllers[0].address)
        for topic in ("bad", "other"):
            (made.partitions[topic],) = await create(stub, topic, 1, 1)
            await eventually(lambda topic=topic: made.written(topic), f"{topic} is written")
        await made.trio.stub.InitProducerId(broker_pb2.InitProducerIdRequest())
        await made.stop()
        await store.put(keys.broker_tail(1), b"3")
        await store.put(keys.doubted_dir("d"), b"")
        yield made


@pytest.mark.timeout(120)
async def test_everything_else_is_served(harmed: Harmed, keys: Keys, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "highwater")
    store = harmed.world.store
    rounds = 0
    for kind, key_of in KINDS.items():
        for harm, value in HARMS.items():
            key = key_of(keys)
            what = f"{kind}, {harm}"
            sound = await store.get(key)
            await store.txn((), (Delete(key) if value is None else Put(key, value),))
            caplog.clear()
            await harmed.start()
            await eventually(lambda: harmed.written("other"), f"the other topic is written: {what}")
            given = await harmed.trio.stub.InitProducerId(broker_pb2.InitProducerIdRequest())
            assert given.error.code == ErrorCode.NONE, what
            if (value is not None and kind not in SILENT) or (value is None and kind in TOLD_WHERE_REMOVED):
                told = {each.getMessage() for each in caplog.records if key in each.getMessage()}
                assert told, what
                remedies = ("repair or delete it", "is deleted", "is replaced", "put that of the log directories back")
                assert any(each in message for message in told for each in remedies), (what, told)
                assert all(len(message) < 1_000 for message in told), what
            log = harmed.trio.directory / "logs" / "bad-0"
            deleted = (kind, harm) == ("a topic", "removed")
            if deleted:
                await eventually(lambda log=log: gone(log), "a topic that is gone has no log (RULES 9.2)")
            await harmed.stop()
            assert log.is_dir() or deleted, what
            await store.txn((), (Delete(key) if sound is None else Put(key, sound.value),))
            if deleted:
                await harmed.start()
                await eventually(lambda: harmed.written("bad"), "the topic is made again")
                await harmed.stop()
            rounds += 1
    assert rounds == len(KINDS) * len(HARMS)
    await harmed.start()  # what was harmed and put back is served again
    await eventually(lambda: harmed.written("bad"), "the repaired topic is written")
