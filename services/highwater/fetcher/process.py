"""`python -m highwater.fetcher --set broker.id=1 ...`"""

from __future__ import annotations

from highwater.fetcher.service import FetcherService
from highwater.fetcher.settings import FetcherSettings
from highwater.rpc.server import run_service, serve
from highwater.rpc.settings import from_command_line
from highwater.telemetry import log


def main() -> None:
    settings = from_command_line(FetcherSettings)
    log.configure("fetcher", settings.log_level, settings.log_format, broker_id=settings.broker_id)
    run_service(lambda stop: serve(FetcherService(settings), stop))
