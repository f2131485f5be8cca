"""`python -m highwater.replica_manager --set broker.id=1 ...`: one broker's replica-manager.

SIGTERM is a controlled shutdown: leadership moves to other brokers first.
"""

from __future__ import annotations

import asyncio

from highwater.errors import UserError
from highwater.metadata.leases.registration import DuplicateBrokerIdError
from highwater.replica_manager.service import ReplicaManagerService
from highwater.replica_manager.settings import ReplicaManagerSettings
from highwater.rpc.server import run_service
from highwater.rpc.settings import from_command_line
from highwater.telemetry.log import configure


async def serve(settings: ReplicaManagerSettings, stop: asyncio.Event) -> None:
    service = ReplicaManagerService(settings)
    stopping = asyncio.create_task(stop.wait())
    starting = asyncio.create_task(service.start())
    await asyncio.wait((stopping, starting), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():  # it waits for etcd, perhaps for long
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await service.stop()
        return
    await starting
    leaving = asyncio.create_task(_leave(service, stopping))
    await asyncio.wait((leaving, service.failed), return_when=asyncio.FIRST_COMPLETED)
    if service.failed.done():  # also while it waits to be let go: what it holds in memory is not to be gone by
        leaving.cancel()
        await asyncio.gather(leaving, stopping, return_exceptions=True)
        await service.stop(deregister=False)
        try:
            service.failed.result()
        except DuplicateBrokerIdError as error:
            raise UserError(str(error)) from error
    try:
        await leaving
    finally:
        await service.stop()


async def _leave(service: ReplicaManagerService, stopping: asyncio.Task[bool]) -> None:
    await stopping
    await service.controlled_shutdown()


def main() -> None:
    settings = from_command_line(ReplicaManagerSettings)
    configure("replica-manager", settings.log_level, settings.log_format, broker_id=settings.broker_id)
    run_service(lambda stop: serve(settings, stop))
