"""Words that a user must hear although the application has set up no log: that it waits for a cluster, or loses
records."""

from __future__ import annotations

import logging
import sys
from typing import Any


def say(logger: logging.Logger, level: int, message: str, *values: Any, exc_info: bool = False) -> None:
    """Logs it; where nobody listens it goes to stderr, as what is logged without a handler goes in Python."""
    logger.log(level, message, *values, exc_info=exc_info)
    if logging.lastResort is not None and level >= logging.lastResort.level and not _is_heard(logger):
        error = sys.exc_info() if exc_info else None
        logging.lastResort.handle(logger.makeRecord(logger.name, level, "", 0, message, values, error))


def _is_heard(logger: logging.Logger) -> bool:
    """Tells whether a handler takes what is logged there; the package's own takes nothing."""
    asked: logging.Logger | None = logger
    while asked is not None:
        if any(not isinstance(handler, logging.NullHandler) for handler in asked.handlers):
            return True
        asked = asked.parent if asked.propagate else None
    return False
