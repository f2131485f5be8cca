"""Real log-storages and replica-managers (and fetchers) in this process over a real etcd, instructed by the test as the
controller. Nothing is faked but the controller's decisions."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from highwater.fetcher.service import FetcherService
from highwater.fetcher.settings import FetcherSettings
from highwater.log_storage.service import LogStorageService
from highwater.log_storage.settings import LogStorageSettings
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import PartitionState, TopicAssignment, VersionedState
from highwater.metadata.store.store import Store
from highwater.model.partition import PartitionKey
from highwater.records import Codec, Record, encode_rows
from highwater.replica_manager.service import ReplicaManagerService
from highwater.replica_manager.settings import ReplicaManagerSettings
from highwater.rpc.connections.channel import open_channel
from highwater.rpc.settings import load
from highwater.v1 import (
    broker_pb2,
    broker_pb2_grpc,
    common_pb2,
    replica_control_pb2,
    replica_control_pb2_grpc,
)

DEADLINE_S = 15.0


async def eventually(condition: Callable[[], Awaitable[Any]], what: str, deadline_s: float = DEADLINE_S) -> Any:
    """The first truthy answer of `condition`; fails with `what` where there is none in time."""
    try:
        async with asyncio.timeout(deadline_s):
            while True:
                found = await condition()
                if found:
                    return found
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"not within {deadline_s} s: {what}") from None


def rows(
    *values: bytes, key: bytes | None = b"key", producer: tuple[int, int, int] = (-1, -1, -1), codec: Codec = Codec.NONE
) -> bytes:
    """One batch of row records. `producer`: id, epoch, base sequence."""
    records = [Record(index, 1_700_000_000_000 + index, key, value, ()) for index, value in enumerate(values)]
    return encode_rows(
        records, codec=codec, producer_id=producer[0], producer_epoch=producer[1], base_sequence=producer[2]
    )


@dataclass
class Trio:
    """One broker's processes, each of which can be stopped and started alone."""

    broker_id: int
    directory: Path
    etcd: str
    cluster: str
    settings: Mapping[str, str] = field(default_factory=dict)
    log_storage: LogStorageService | None = None
    replica_manager: ReplicaManagerService | None = None
    fetcher: FetcherService | None = None
    with_fetcher: bool = False
    log_storage_address: str = ""  # where the replica-manager looks for log-storage; empty: its socket
    channel: Any = None

    def _socket(self, name: str) -> str:
        return f"unix:{self.directory}/{name}"

    @property
    def client_address(self) -> str:
        """Of its client listener; all calls of this class go by the internal one."""
        return self._socket("c")

    async def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        await self.start_log_storage()
        await self.start_replica_manager()
        if self.with_fetcher:
            await self.start_fetcher()

    async def start_log_storage(self) -> None:
        settings = load(
            LogStorageSettings,
            {
                "broker.id": str(self.broker_id),
                "listen": f"{self._socket('ls')},127.0.0.1:0",
                "log.dirs": str(self.directory / "logs"),
                "replica.high.watermark.checkpoint.interval.ms": "200",
            },
        )
        self.log_storage = LogStorageService(settings)
        await self.log_storage.start()

    async def start_replica_manager(self, registered_within_s: float = DEADLINE_S) -> None:
        settings = load(
            ReplicaManagerSettings,
            {
                "broker.id": str(self.broker_id),
                "cluster": self.cluster,
                "listeners": f"INTERNAL://{self._socket('rm')},CLIENT://{self.client_address}",
                "inter.broker.listener.name": "INTERNAL",
                "etcd": self.etcd,
                "log.storage": self.log_storage_address or self._socket("ls"),
                "broker.session.timeout.ms": "2000",
                "controlled.shutdown.max.wait.ms": "0",
                **self.settings,
            },
        )
        self.replica_manager = ReplicaManagerService(settings)
        await self.replica_manager.start()
        if self.channel is None:
            self.channel = open_channel(self._socket("rm"))
        await self.registered(within_s=registered_within_s)

    async def start_fetcher(self) -> None:
        settings = load(
            FetcherSettings,
            {
                "broker.id": str(self.broker_id),
                "listen": self._socket("f"),
                "replica.manager": self._socket("rm"),
                "log.storage": self._socket("ls"),
                "replica.fetch.backoff.ms": "100",
            },
        )
        self.fetcher = FetcherService(settings)
        await self.fetcher.start()

    async def registered(self, above: int = 0, within_s: float = DEADLINE_S) -> int:
        """The broker epoch, once it is registered under one above `above`."""
        manager = self.replica_manager
        assert manager is not None

        async def epoch() -> int:
            found = manager.replica_manager.broker_epoch
            return found if found is not None and found > above else 0

        return int(await eventually(epoch, f"broker {self.broker_id} registers", within_s))

    async def stop_fetcher(self) -> None:
        if self.fetcher is not None:
            await self.fetcher.stop()
            self.fetcher = None

    async def stop_replica_manager(self) -> None:
        if self.replica_manager is not None:
            await self.replica_manager.stop()
            self.replica_manager = None

    async def stop_log_storage(self) -> None:
        if self.log_storage is not None:
            await self.log_storage.stop()
            self.log_storage = None

    async def stop(self) -> None:
        await self.stop_fetcher()
        await self.stop_replica_manager()
        await self.stop_log_storage()
        if self.channel is not None:
            await self.channel.close(None)

    @property
    def broker_epoch(self) -> int:
        assert self.replica_manager is not None
        epoch = self.replica_manager.replica_manager.broker_epoch
        assert epoch is not None
        return epoch

    @property
    def stub(self) -> Any:
        return broker_pb2_grpc.BrokerStub(self.channel)

    @property
    def control(self) -> Any:
        return replica_control_pb2_grpc.ReplicaControlStub(self.channel)

    # Client calls

    async def produce(
        self, key: PartitionKey, records: bytes, *, acks: int = -1, timeout_ms: int = 5000
    ) -> broker_pb2.ProduceResult:
        response = await self.stub.Produce(
            broker_pb2.ProduceRequest(
                acks=acks,
                timeout_ms=timeout_ms,
                partitions=[broker_pb2.ProducePartition(partition=to_key(key), records=records)],
            )
        )
        (result,) = response.results
        return result

    async def fetch(
        self,
        key: PartitionKey,
        offset: int = 0,
        *,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        leader_epoch: int = -1,
        debug: bool = False,
        columns: bool = False,
        max_bytes: int = 1 << 20,
    ) -> broker_pb2.FetchResult:
        request = fetch_request(key, offset, max_wait_ms, min_bytes, leader_epoch, columns, max_bytes)
        if debug:
            request.debug.SetInParent()
        else:
            request.consumer.SetInParent()
        response = await self.stub.Fetch(request)
        (result,) = response.results
        return result


def fetch_request(
    key: PartitionKey,
    offset: int,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    leader_epoch: int = -1,
    columns: bool = False,
    max_bytes: int = 1 << 20,
) -> broker_pb2.FetchRequest:
    return broker_pb2.FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        partitions=[
            broker_pb2.FetchPartition(
                partition=to_key(key), leader_epoch=leader_epoch, fetch_offset=offset, max_bytes=max_bytes
            )
        ],
        accepts=[broker_pb2.PAYLOAD_ROWS, *([broker_pb2.PAYLOAD_COLUMNS] if columns else [])],
    )


def to_key(key: PartitionKey) -> common_pb2.PartitionKey:
    return common_pb2.PartitionKey(topic_id=key.topic_id, partition=key.partition)


@dataclass(frozen=True)
class Topic:
    name: str
    key: PartitionKey
    replicas: tuple[int, ...]
    config: Mapping[str, str]
    version: VersionedState


class TestCluster:
    """The controller's part, played by the test: topics of one partition, states in etcd, instructions."""

    __test__ = False

    def __init__(
        self,
        store: Store,
        keys: Keys,
        etcd: str,
        directory: Path,
        brokers: int,
        settings: Mapping[str, str] | None = None,
        with_fetchers: bool = False,
    ) -> None:
        self.store = store
        self.keys = keys
        self.controller_epoch = 1
        self.trios = {
            broker_id: Trio(
                broker_id, directory / f"b{broker_id}", etcd, keys.cluster, settings or {}, with_fetcher=with_fetchers
            )
            for broker_id in range(brokers)
        }

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for trio in self.trios.values():
                stack.push_async_callback(trio.stop)
                await trio.start()
            await eventually(self._all_see_all, "every broker sees every other registered")
            self._stack = stack.pop_all()
        return self

    async def _all_see_all(self) -> bool:
        """etcd tells a watcher that began in the past of what came since up to 100 ms late."""
        managers = [trio.replica_manager for trio in self.trios.values() if trio.replica_manager is not None]
        return all(manager.replica_manager.live_brokers >= self.trios.keys() for manager in managers)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def __getitem__(self, broker_id: int) -> Trio:
        return self.trios[broker_id]

    async def create_topic(
        self,
        name: str,
        replicas: Sequence[int] = (0,),
        config: Mapping[str, str] | None = None,
        *,
        instruct: bool = True,
    ) -> Topic:
        topic_id = uuid.uuid4().bytes
        await self.store.put(self.keys.topic(name), TopicAssignment(name, topic_id, (tuple(replicas),)).to_json())
        state = PartitionState(
            leader=replicas[0],
            leader_epoch=0,
            leader_broker_epoch=self.trios[replicas[0]].broker_epoch,
            isr=tuple(sorted(replicas)),
            controller_epoch=self.controller_epoch,
        )
        revision = await self.store.put(self.keys.state(name, 0), state.to_json())
        topic = Topic(name, PartitionKey(topic_id, 0), tuple(replicas), config or {}, VersionedState(state, revision))
        if instruct:
            await self.instruct_all(topic)
        return topic

    async def delete_topic(self, topic: Topic) -> None:
        """As the controller ends it: no key of the topic is left."""
        await self.store.txn((), _deletes(self.keys, topic))

    async def state(self, topic: Topic) -> VersionedState:
        entry = await self.store.get(self.keys.state(topic.name, 0))
        assert entry is not None
        return VersionedState(PartitionState.from_json(entry.value), entry.mod_revision)

    async def elect(self, topic: Topic, leader: int, isr: Sequence[int] | None = None) -> Topic:
        """The next leader epoch, with `leader`; everybody is told."""
        present = await self.state(topic)
        state = present.state.with_(
            leader=leader,
            leader_epoch=present.state.leader_epoch + 1,
            leader_broker_epoch=self.trios[leader].broker_epoch,
            isr=tuple(sorted(isr if isr is not None else present.state.isr)),
        )
        revision = await self.store.put(self.keys.state(topic.name, 0), state.to_json())
        elected = Topic(topic.name, topic.key, topic.replicas, topic.config, VersionedState(state, revision))
        await self.instruct_all(elected)
        return elected

    async def instruct_all(self, topic: Topic) -> None:
        for broker_id in topic.replicas:
            if self.trios[broker_id].replica_manager is not None:
                response = await self.instruct(broker_id, topic)
                assert response.error.code == common_pb2.ERROR_CODE_NONE, response
                assert response.results[0].error.code == common_pb2.ERROR_CODE_NONE, response

    async def instruct(
        self, broker_id: int, topic: Topic, *, controller_epoch: int | None = None, broker_epoch: int | None = None
    ) -> replica_control_pb2.LeaderAndIsrResponse:
        trio = self.trios[broker_id]
        state = topic.version.state
        return await trio.control.LeaderAndIsr(
            replica_control_pb2.LeaderAndIsrRequest(
                controller_id=9,
                controller_epoch=self.controller_epoch if controller_epoch is None else controller_epoch,
                broker_epoch=trio.broker_epoch if broker_epoch is None else broker_epoch,
                partitions=[
                    replica_control_pb2.PartitionInstruction(
                        topic=topic.name,
                        partition=to_key(topic.key),
                        state=common_pb2.PartitionState(
                            leader=state.leader,
                            leader_epoch=state.leader_epoch,
                            leader_broker_epoch=state.leader_broker_epoch,
                            isr=state.isr,
                            elr=state.elr,
                            lost=state.lost,
                            unclean_epoch=state.unclean_epoch,
                            controller_epoch=state.controller_epoch,
                            state_revision=topic.version.revision,
                            replicas=topic.replicas,
                        ),
                        config=topic.config,
                    )
                ],
                live_brokers=[
                    common_pb2.BrokerEndpoint(
                        broker_id=other.broker_id, broker_epoch=other.broker_epoch, address=other._socket("rm")
                    )
                    for other in self.trios.values()
                    if other.replica_manager is not None
                    and other.replica_manager.replica_manager.broker_epoch is not None
                ],
            )
        )

    async def stop_replica(
        self, broker_id: int, topic: Topic, *, leader_epoch: int = -1, delete_log: bool = True
    ) -> replica_control_pb2.StopReplicaResponse:
        trio = self.trios[broker_id]
        return await trio.control.StopReplica(
            replica_control_pb2.StopReplicaRequest(
                controller_id=9,
                controller_epoch=self.controller_epoch,
                broker_epoch=trio.broker_epoch,
                partitions=[
                    replica_control_pb2.StopPartition(
                        partition=to_key(topic.key), leader_epoch=leader_epoch, delete_log=delete_log
                    )
                ],
            )
        )


def _deletes(keys: Keys, topic: Topic) -> list[Any]:
    from highwater.metadata.store.transactions import Delete

    return [Delete(keys.topic(topic.name)), Delete(keys.state(topic.name, 0))]
