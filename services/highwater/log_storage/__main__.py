"""`python -m highwater.log_storage --set broker.id=1 --set log.dirs=/data --set listen=unix:/run/log-storage.sock`"""

from __future__ import annotations

import asyncio

from highwater.log_storage.service import LogStorageService
from highwater.rpc.server import run_service
from highwater.rpc.settings import LogStorageSettings, from_command_line
from highwater.telemetry import log


def main() -> None:
    settings = from_command_line(LogStorageSettings)
    log.configure("log-storage", settings.log_level)

    async def serve(stop: asyncio.Event) -> None:
        service = LogStorageService(settings)
        service.metrics.serve(settings.metrics_listen)
        await service.start()
        try:
            await stop.wait()
        finally:
            await service.stop()

    run_service(serve)


if __name__ == "__main__":
    main()
