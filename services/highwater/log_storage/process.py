"""`python -m highwater.log_storage --set broker.id=1 --set log.dirs=/data --set listen=unix:/run/log-storage.sock`"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import NoReturn

from highwater.log_storage.recovery.recovery_progress import OpeningStopped
from highwater.log_storage.segment.open_segments import open_segments
from highwater.log_storage.segment.unsynced_segments import unsynced_segments
from highwater.log_storage.service import LogStorageService
from highwater.log_storage.settings import LogStorageSettings
from highwater.rpc.process.open_files import allow_open_files
from highwater.rpc.server import run_service
from highwater.rpc.settings import from_command_line
from highwater.telemetry import log

INTERRUPTED_S = 5.0  # for what a start has begun

logger = log.get_logger("log_storage.process")


def main() -> None:
    settings = from_command_line(LogStorageSettings)
    log.configure("log-storage", settings.log_level, settings.log_format, broker_id=settings.broker_id)
    # Each log has the active segment's file open, one that waits to be synced has its own, and a segment that is read
    # three.
    open_files = allow_open_files()
    open_segments.allow(open_files)
    unsynced_segments.allow(open_files)
    run_service(lambda stop: serve(settings, stop))


async def serve(settings: LogStorageSettings, stop: asyncio.Event) -> None:
    service = LogStorageService(settings)
    service.metrics.publish(settings, f"log-storage-{settings.broker_id}")
    stopping = asyncio.create_task(stop.wait())
    starting = asyncio.create_task(service.start())
    await asyncio.wait((stopping, starting), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():  # it recovers, perhaps for hours
        service.interrupt()
        await asyncio.wait((starting,), timeout=INTERRUPTED_S)
        if not starting.done():
            _end("stopped while a disk did not answer: the next start recovers the logs")
    try:
        await starting
    except OpeningStopped:
        logger.info("stopped while the logs were being opened: the next start recovers them")
        return
    try:
        await stopping
    finally:
        if not await service.stop():
            _end("stopped while a disk did not answer: the next start recovers its logs")


def _end(message: str) -> NoReturn:
    """Without the threads, which Python would wait for, and the disk may never answer."""
    logger.error(message)
    logging.shutdown()
    os._exit(1)
