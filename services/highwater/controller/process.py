"""`python -m highwater.controller --set controller.id=0 ...`"""

from __future__ import annotations

from highwater.controller.service import ControllerService
from highwater.controller.settings import ControllerSettings
from highwater.rpc.server import run_service, serve
from highwater.rpc.settings import from_command_line
from highwater.telemetry import log


def main() -> None:
    settings = from_command_line(ControllerSettings)
    log.configure("controller", settings.log_level, settings.log_format, controller_id=settings.controller_id)
    run_service(lambda stop: serve(ControllerService(settings), stop))
