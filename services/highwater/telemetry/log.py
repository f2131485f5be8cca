"""Log lines for people and for `grep`: time, level, service, message, then `key=value` pairs."""

from __future__ import annotations

import logging
import sys
from typing import Any

_FORMAT = "%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s"


def configure(service: str, level: str = "INFO") -> None:
    """Sends the process's log to stderr. Called once, by a service's main."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(_FORMAT, datefmt="%Y-%m-%dT%H:%M:%S"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("highwater").info("starting %s", service)


def get_logger(name: str) -> logging.Logger:
    return logging.getLogger(f"highwater.{name}" if not name.startswith("highwater") else name)


def pairs(**values: Any) -> str:
    """`a=1 b=x`, for the end of a message."""
    return " ".join(f"{key}={value}" for key, value in values.items())
