"""`python -m highwater.log_storage --set broker.id=1 --set log.dirs=/data --set listen=unix:/run/log-storage.sock`"""

from __future__ import annotations

import asyncio
import resource

from highwater.log_storage.service import LogStorageService
from highwater.rpc.server import run_service
from highwater.rpc.settings import LogStorageSettings, from_command_line
from highwater.telemetry import log


def main() -> None:
    settings = from_command_line(LogStorageSettings)
    log.configure("log-storage", settings.log_level)
    _allow_many_files()

    async def serve(stop: asyncio.Event) -> None:
        service = LogStorageService(settings)
        service.metrics.serve(settings.metrics_listen)
        await service.start()
        try:
            await stop.wait()
        finally:
            await service.stop()

    run_service(serve)


def _allow_many_files() -> None:
    """A segment that is read has three files open. What a process may open by default is often 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    main()
