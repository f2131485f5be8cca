"""`python -m highwater.controller --set controller.id=0 ...`"""

from __future__ import annotations

import asyncio

from highwater.controller.service import ControllerService
from highwater.rpc.server import run_service
from highwater.rpc.settings import ControllerSettings, from_command_line
from highwater.telemetry import log


def main() -> None:
    settings = from_command_line(ControllerSettings)
    log.configure("controller", settings.log_level)

    async def serve(stop: asyncio.Event) -> None:
        service = ControllerService(settings)
        try:
            await service.start()
            await stop.wait()
        finally:
            await service.stop()

    run_service(serve)
