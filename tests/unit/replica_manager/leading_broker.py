"""A broker that leads some partitions, without log-storage, etcd or gRPC."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from highwater.errors import ErrorCode
from highwater.log_storage_client.values import AppendAnswer
from highwater.metadata.schema.models import PartitionState, VersionedState
from highwater.model.fence_role import Role
from highwater.model.log_state import LogState
from highwater.model.partition import PartitionKey
from highwater.replica_manager.partition.actions import FenceAnswer, Instruction, LiveBrokers, PartitionSettings
from highwater.replica_manager.replicas.hosted_partition import HostedPartition
from highwater.replica_manager.replicas.metrics import ReplicaManagerMetrics
from highwater.replica_manager.replicas.purgatory import Purgatory
from highwater.replica_manager.replicas.replica_manager import ReplicaManager
from highwater.replica_manager.requests.fetch import FetchHandler
from highwater.telemetry.metrics import Metrics

EPOCH = 5
BATCH = b"x" * 100


def key(number: int) -> PartitionKey:
    return PartitionKey(bytes(16), number)


class Storage:
    """Answers each read with the same bytes."""

    def __init__(self) -> None:
        self.records = BATCH
        self.reads: list[int] = []
        self.at_once = 0  # reads under way
        self.most_at_once = 0
        self.log_start_offset = 0

    async def read(self, asked: PartitionKey, offset: int, max_offset: int, max_bytes: int) -> Any:
        self.reads.append(asked.partition)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        for _ in range(3):
            await asyncio.sleep(0)
        self.at_once -= 1
        return SimpleNamespace(
            offline=False,
            incarnation="ls",
            log_start_offset=self.log_start_offset,
            log_end_offset=max_offset,
            error=SimpleNamespace(code=ErrorCode.NONE, message=""),
            records=self.records,
        )


class Leader:
    """Broker 1, alone in the ISR of each partition."""

    def __init__(
        self,
        partitions: int = 3,
        *,
        max_consumers: int = 10,
        max_bytes: int = 1_000,
        message_max_bytes: int = 1 << 20,
        responses_max_bytes: int = 256 << 20,
        fencer: Any = None,
    ) -> None:
        self.storage = Storage()
        self.max_bytes = max_bytes
        nothing: Any = SimpleNamespace(committed=None, send=None, submit=lambda *_: None)
        self.replica_manager = ReplicaManager(
            1,
            PartitionSettings(min_insync_replicas=1),
            self.storage,  # type: ignore[arg-type]
            nothing,
            fencer or nothing,
            nothing,
            incarnation="rm",
            tail_cache_bytes=0,
            purgatory=Purgatory(max_produces=1, max_fetches=max_consumers),
            message_max_bytes=message_max_bytes,
            lease_confirmed=lambda: True,
            register_anew=lambda: None,
            report_offline_logs=lambda: None,
            now_ms=lambda: int(asyncio.get_running_loop().time() * 1000),
        )
        self.replica_manager._publish_soon = lambda: None  # type: ignore[method-assign]
        for number in range(partitions):
            self.replica_manager.host(key(number), "t", {})
            self.lead(number)
        self.handler = FetchHandler(
            self.replica_manager,
            ReplicaManagerMetrics(Metrics("test")),
            max_bytes=max_bytes,
            responses_max_bytes=responses_max_bytes,
        )

    def hosted(self, number: int) -> HostedPartition:
        return self.replica_manager.hosted[key(number)]

    def lead(
        self,
        number: int,
        epoch: int = EPOCH,
        isr: tuple[int, ...] = (1,),
        *,
        replicas: tuple[int, ...] = (),
        incarnation: str = "ls",
    ) -> None:
        """`replicas`: the assignment; where it is left out, the ISR."""
        hosted = self.hosted(number)
        hosted.partition.brokers_changed(LiveBrokers({1: 101, 2: 102}), 0)
        state = VersionedState(PartitionState(1, epoch, 101, isr), 10 + epoch)
        hosted.partition.instruct(Instruction(state, replicas or isr), 0)
        answer = FenceAnswer(Role.LEADER, epoch, incarnation=incarnation)
        self.replica_manager.perform(hosted, hosted.partition.fenced(answer, 0))

    def grow(self, number: int, end: int, epoch: int = EPOCH) -> None:
        """By a write that is committed where the leader is alone in the ISR."""
        log = LogState(end, epoch, 0, 0)
        self.hosted(number).log_ended(epoch, AppendAnswer(ErrorCode.NONE, "", -1, -1, False, -1, log, "ls"))
