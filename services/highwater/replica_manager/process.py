"""`python -m highwater.replica_manager --set broker.id=1 ...`: one broker's replica-manager.

SIGTERM is a controlled shutdown: leadership moves to other brokers first.
"""

from __future__ import annotations

import asyncio

from highwater.metadata.registration import DuplicateBrokerIdError
from highwater.replica_manager.service import ReplicaManagerService
from highwater.rpc.server import UserError, run_service
from highwater.rpc.settings import ReplicaManagerSettings, from_command_line
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
    await asyncio.wait((stopping, service.failed), return_when=asyncio.FIRST_COMPLETED)
    if service.failed.done():
        stopping.cancel()
        await service.stop(deregister=False)
        try:
            service.failed.result()
        except DuplicateBrokerIdError as error:
            raise UserError(str(error)) from error
    await service.controlled_shutdown()
    await service.stop()


def main() -> None:
    settings = from_command_line(ReplicaManagerSettings)
    configure("replica-manager", settings.log_level)
    run_service(lambda stop: serve(settings, stop))
