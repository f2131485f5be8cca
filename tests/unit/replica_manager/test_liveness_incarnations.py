"""A registration names the incarnation of log-storage that was seen last (RULES 1.4)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from highwater.log_storage_client.client import LogStorageClient
from highwater.log_storage_client.values import StorageUnavailableError
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import BrokerRegistration
from highwater.replica_manager.membership import liveness as module
from highwater.replica_manager.membership.liveness import Liveness
from highwater.rpc.process import loop_turn
from highwater.v1 import common_pb2, log_storage_pb2

LOGS = 50
NOTHING: Any = None


class Broker:
    """Whose log-storage is of incarnation "first" as far as it has answered for itself."""

    def __init__(self) -> None:
        self.log_storage_incarnation = ""
        self.incarnation, self.broker_id, self.broker_epoch = "b", 1, None
        self.appends = SimpleNamespace(probe=self._probe)
        channel: Any = SimpleNamespace(unary_unary=lambda *_, **__: None, stream_stream=lambda *_, **__: None)
        self.storage = LogStorageClient(channel, timeout_s=1, seen=self.seen)
        self.storage._stub = SimpleNamespace(DescribeLogs=self._describe)  # type: ignore[assignment]
        self.registered: list[str] = []
        as_replica_manager: Any = self
        self.liveness = Liveness(
            as_replica_manager,
            NOTHING,
            Keys("c"),
            listeners=lambda: {"internal": "b1:1"},
            internal_listener="internal",
            rack="",
            session_timeout_ms=1_000,
            registered=lambda: None,
            failed=NOTHING,
        )
        self.liveness._registrar = SimpleNamespace(register=self._register)  # type: ignore[assignment]

    def seen(self, incarnation: str) -> None:
        self.liveness.log_storage_seen(incarnation)

    def log_storage_restarted(self, incarnation: str) -> None:
        self.log_storage_incarnation = incarnation

    def registration_lost(self) -> None:
        pass

    async def _probe(self, _: float) -> str:
        self.seen("first")
        return "first"

    async def _describe(self, *_: Any, **__: Any) -> Any:
        logs = [
            log_storage_pb2.LogDescription(partition=common_pb2.PartitionKey(partition=each)) for each in range(LOGS)
        ]
        return log_storage_pb2.DescribeLogsResponse(incarnation="first", logs=logs)

    async def _register(self, registration: BrokerRegistration) -> int:
        self.registered.append(registration.log_storage_incarnation)
        raise StorageUnavailableError("far enough")


async def logs_are_read(broker: Broker) -> None:
    for _ in range(LOGS // 2):
        await asyncio.sleep(0)
    broker.seen("second")


async def etcd_is_asked(broker: Broker) -> None:
    pass


async def nothing_happens(broker: Broker) -> None:
    pass


@pytest.mark.parametrize("meanwhile", [logs_are_read, etcd_is_asked, nothing_happens])
async def test_log_storage_restarts_while(
    meanwhile: Callable[[Broker], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_turn, "TURN_S", 0.0)
    broker = Broker()

    async def of_etcd(*_: Any) -> dict[Any, Any]:
        return {}

    async def cluster_id(*_: Any) -> str:
        if meanwhile is etcd_is_asked:
            broker.seen("second")
        return ""

    for name, answer in (("doubted_dirs", of_etcd), ("read_addresses", of_etcd), ("ensure_cluster_id", cluster_id)):
        monkeypatch.setattr(module, name, answer)
    restarting = asyncio.ensure_future(meanwhile(broker))
    with pytest.raises(StorageUnavailableError) as raised:
        await broker.liveness._register()
    await restarting
    if meanwhile is nothing_happens:
        assert broker.registered == ["first"]
    else:
        assert broker.registered == []
        assert "restarted between" in str(raised.value)
