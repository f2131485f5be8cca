"""How a replica-manager's process ends: also where something fails while it waits to be let go."""

from __future__ import annotations

import asyncio

import pytest

from highwater.errors import UserError
from highwater.metadata.leases.registration import DuplicateBrokerIdError
from highwater.replica_manager import process
from highwater.replica_manager.settings import ReplicaManagerSettings

SETTINGS = ReplicaManagerSettings.model_construct()
DEADLINE_S = 5


class Service:
    """Waits to be let go until `released`."""

    def __init__(self) -> None:
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.asks, self.released = asyncio.Event(), asyncio.Event()
        self.refused: Exception | None = None
        self.stopped: list[bool] = []

    async def start(self) -> None:
        pass

    async def controlled_shutdown(self) -> None:
        self.asks.set()
        if self.refused is not None:
            raise self.refused
        await self.released.wait()

    async def stop(self, *, deregister: bool = True) -> None:
        self.stopped.append(deregister)


@pytest.fixture
async def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    service = Service()
    monkeypatch.setattr(process, "ReplicaManagerService", lambda settings: service)
    return service


async def serving(stop: asyncio.Event) -> None:
    async with asyncio.timeout(DEADLINE_S):
        await process.serve(SETTINGS, stop)


async def test_it_deregisters_when_it_was_let_go(service: Service) -> None:
    stop = asyncio.Event()
    running = asyncio.create_task(serving(stop))
    stop.set()
    await service.asks.wait()
    assert not service.stopped
    service.released.set()
    await running
    assert service.stopped == [True]


@pytest.mark.parametrize("leaves", [False, True])
async def test_what_fails_ends_it_at_once(service: Service, leaves: bool) -> None:
    stop = asyncio.Event()
    running = asyncio.create_task(serving(stop))
    if leaves:
        stop.set()
        await service.asks.wait()
    service.failed.set_exception(AssertionError("an invariant is broken"))
    with pytest.raises(AssertionError, match="an invariant"):
        await running
    assert service.stopped == [False]


async def test_another_process_of_that_broker_is_told_to_the_user(service: Service) -> None:
    service.failed.set_exception(DuplicateBrokerIdError("broker 1 is registered by another process"))
    with pytest.raises(UserError, match="another process"):
        await serving(asyncio.Event())


async def test_it_stops_although_it_cannot_ask(service: Service) -> None:
    stop = asyncio.Event()
    stop.set()
    service.refused = ValueError("etcd refuses")
    with pytest.raises(ValueError, match="etcd refuses"):
        await serving(stop)
    assert service.stopped == [True]
