"""`python -m highwater.fetcher --set broker.id=1 ...`"""

from __future__ import annotations

import asyncio

from highwater.fetcher.service import FetcherService
from highwater.rpc.server import run_service
from highwater.rpc.settings import FetcherSettings, from_command_line
from highwater.telemetry import log


def main() -> None:
    settings = from_command_line(FetcherSettings)
    log.configure("fetcher", settings.log_level)

    async def serve(stop: asyncio.Event) -> None:
        service = FetcherService(settings)
        try:
            await service.start()
            await stop.wait()
        finally:
            await service.stop()

    run_service(serve)
