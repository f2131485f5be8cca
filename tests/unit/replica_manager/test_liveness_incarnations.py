"""A registration names the incarnation of log-storage that was seen last (RULES 1.4), and knows what the one before has
said of lost tails (RULES 7.2)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from types import SimpleNamespace
from typing import Any

import pytest

from highwater.log_storage_client.client import LogStorageClient
from highwater.log_storage_client.values import Description, StorageUnavailableError
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import BrokerRegistration
from highwater.metadata.store.etcd_errors import Unavailable
from highwater.replica_manager.membership import liveness as module
from highwater.replica_manager.membership.liveness import Liveness
from highwater.rpc.process import loop_turn
from highwater.v1 import common_pb2, log_storage_pb2

LOGS = 50
CLUSTER = "cluster"
NOTHING: Any = None


class Broker:
    """Whose log-storage answers as the last of `incarnations`."""

    def __init__(self) -> None:
        self.log_storage_incarnation = ""
        self.incarnation, self.broker_id, self.broker_epoch = "b", 1, None
        self.appends = SimpleNamespace(probe=self._probe)
        channel: Any = SimpleNamespace(unary_unary=lambda *_, **__: None, stream_stream=lambda *_, **__: None)
        self.storage = LogStorageClient(channel, timeout_s=1, seen=self.seen)
        self.storage._stub = SimpleNamespace(DescribeLogs=self._describe)  # type: ignore[assignment]
        self.incarnations = ["first"]
        self.doubts = False  # log-storage, its directory "d"
        self.registrations: list[BrokerRegistration] = []
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
        self.seen(self.incarnations[-1])
        return self.incarnations[-1]

    async def _describe(self, *_: Any, **__: Any) -> Any:
        logs = [
            log_storage_pb2.LogDescription(partition=common_pb2.PartitionKey(partition=each)) for each in range(LOGS)
        ]
        log_dirs = [log_storage_pb2.LogDirDescription(directory_id="d", cluster_id=CLUSTER, doubted=self.doubts)]
        return log_storage_pb2.DescribeLogsResponse(incarnation=self.incarnations[-1], logs=logs, log_dirs=log_dirs)

    async def _register(self, registration: BrokerRegistration) -> int:
        self.registrations.append(registration)
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
        return CLUSTER

    for name, answer in (("doubted_dirs", of_etcd), ("read_addresses", of_etcd), ("ensure_cluster_id", cluster_id)):
        monkeypatch.setattr(module, name, answer)
    restarting = asyncio.ensure_future(meanwhile(broker))
    with pytest.raises(StorageUnavailableError) as raised:
        await broker.liveness._register()
    await restarting
    if meanwhile is nothing_happens:
        assert [each.log_storage_incarnation for each in broker.registrations] == ["first"]
    else:
        assert broker.registrations == []
        assert "restarted between" in str(raised.value)


class Doubts:
    """etcd, as far as it has directories in doubt."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kept: dict[str, int] = {}
        self.fails = 0  # so many writes
        self.writing, self.slow = asyncio.Event(), asyncio.Event()
        self.slow.set()
        for name, work in (
            ("remember_doubted", self._remember),
            ("doubted_dirs", self._read),
            ("read_addresses", self._nothing),
            ("ensure_cluster_id", self._cluster_id),
        ):
            monkeypatch.setattr(module, name, work)

    async def _remember(self, _: Any, __: Any, directory_ids: Collection[str]) -> None:
        self.writing.set()
        await self.slow.wait()
        if directory_ids and self.fails:
            self.fails -= 1
            raise Unavailable("no answer")
        self.kept.update(dict.fromkeys(directory_ids, 7))

    async def _read(self, *_: Any) -> dict[str, int]:
        return dict(self.kept)

    async def _nothing(self, *_: Any) -> dict[Any, Any]:
        return {}

    async def _cluster_id(self, *_: Any) -> str:
        return CLUSTER


async def registers(broker: Broker) -> BrokerRegistration:
    """As the second incarnation of log-storage, whose directory "d" is sound."""
    broker.incarnations.append("second")
    broker.doubts = False
    with pytest.raises(StorageUnavailableError, match="far enough"):
        await broker.liveness._register()
    return broker.registrations[-1]


async def remembers(broker: Broker) -> None:
    """As for a report of offline logs."""
    await broker.liveness._hear_doubted()
    await broker.liveness._write_doubted()


async def test_a_doubt_that_etcd_has_not_taken_outlives_its_log_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, doubts = Broker(), Doubts(monkeypatch)
    broker.doubts, doubts.fails = True, 1
    with pytest.raises(Unavailable):
        await remembers(broker)
    assert (await registers(broker)).tail_lost


async def test_a_doubt_on_its_way_to_etcd_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, doubts = Broker(), Doubts(monkeypatch)
    broker.doubts = True
    doubts.slow.clear()
    remembering = asyncio.create_task(remembers(broker))
    await doubts.writing.wait()
    asyncio.get_running_loop().call_later(0.05, doubts.slow.set)
    assert (await registers(broker)).tail_lost
    await remembering


async def test_a_doubt_that_is_heard_of_late_has_the_broker_registered_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, doubts = Broker(), Doubts(monkeypatch)
    broker.doubts = True
    first = await broker.storage.describe()
    assert not (await registers(broker)).tail_lost

    async def late() -> Description:
        return first

    monkeypatch.setattr(broker.storage, "describe", late)
    broker.liveness._due.clear()
    await remembers(broker)
    assert doubts.kept == {"d": 7}
    assert broker.liveness._due.is_set()
    monkeypatch.undo()
    Doubts(monkeypatch).kept = doubts.kept
    assert (await registers(broker)).tail_lost


async def test_a_doubt_that_is_heard_of_late_outlives_a_failed_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried again, and the log-storage that does not know is not asked."""
    broker, doubts = Broker(), Doubts(monkeypatch)
    broker.doubts, doubts.fails = True, 1
    first = await broker.storage.describe()
    assert not (await registers(broker)).tail_lost

    async def late() -> Description:
        return first

    with monkeypatch.context() as patched:
        patched.setattr(broker.storage, "describe", late)
        broker.liveness._due.clear()
        with pytest.raises(Unavailable):
            await remembers(broker)
    await broker.liveness._write_doubted()
    assert broker.liveness._due.is_set()
    assert (await registers(broker)).tail_lost


async def test_log_storage_is_asked_once_for_what_etcd_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers with all its logs."""
    broker, doubts = Broker(), Doubts(monkeypatch)
    broker.doubts, doubts.fails = True, 5
    monkeypatch.setattr(module, "RETRY_S", 0)
    asked, describe = 0, broker.storage.describe
    updated = asyncio.Event()

    async def counted() -> Description:
        nonlocal asked
        asked += 1
        return await describe()

    async def update(**_: Any) -> bool:
        updated.set()
        return True

    monkeypatch.setattr(broker.storage, "describe", counted)
    monkeypatch.setattr(broker.liveness, "_update", update)
    reporting = asyncio.create_task(broker.liveness._report())
    for reports in (1, 2):
        updated.clear()
        broker.liveness.report_offline_logs()
        await asyncio.wait_for(updated.wait(), 10)
        assert (asked, doubts.kept) == (reports, {"d": 7})
    reporting.cancel()


async def test_a_doubt_that_is_heard_of_while_the_next_one_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    """etcd was asked already which directories are in doubt."""
    broker, doubts = Broker(), Doubts(monkeypatch)
    broker.doubts = True
    first = await broker.storage.describe()

    async def late() -> Description:
        return first

    async def heard(*_: Any) -> str:
        with monkeypatch.context() as patched:
            patched.setattr(broker.storage, "describe", late)
            await remembers(broker)
        return CLUSTER

    with monkeypatch.context() as patched:
        patched.setattr(module, "ensure_cluster_id", heard)
        broker.incarnations.append("second")
        broker.doubts = False
        await broker.liveness._register()
    assert broker.registrations == []
    assert broker.liveness._due.is_set()
    assert doubts.kept == {"d": 7}
    assert (await registers(broker)).tail_lost


async def test_a_doubt_of_which_a_replica_manager_before_this_one_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was stopped while etcd was silent. This one hosts nothing when it hears of offline logs: it reports none."""
    broker, doubts = Broker(), Doubts(monkeypatch)
    broker.doubts = True
    with pytest.raises(StorageUnavailableError, match="far enough"):
        await broker.liveness._register()
    assert doubts.kept == {"d": 7}
    assert (await registers(broker)).tail_lost
