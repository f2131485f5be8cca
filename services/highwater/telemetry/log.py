"""Log lines for people and for `grep`: time, level, service, message, then `key=value` pairs; or the same as JSON."""

from __future__ import annotations

import datetime
import json
import logging
import sys
from typing import Any, Literal

from highwater.telemetry.repeated_lines import RepeatedLines

_FORMAT = "%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s"

Format = Literal["text", "json"]

_ids: dict[str, Any] = {}  # of this process: what ties its lines to those of others


class Pairs(str):
    """`a=1 b=x`, and the values that it was made of."""

    values: dict[str, Any]


def configure(service: str, level: str = "INFO", format: Format = "text", **ids: Any) -> None:
    """Sends the process's log to stderr. Called once, by a service's main. `ids` stand in each line of JSON."""
    handler = logging.StreamHandler(sys.stderr)
    if format == "json":
        handler.setFormatter(JsonFormatter(service))
    else:
        handler.setFormatter(logging.Formatter(_FORMAT, datefmt="%Y-%m-%dT%H:%M:%S"))
    RepeatedLines(handler)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    identify(**ids)
    logging.getLogger("highwater").info("starting %s", service)


def identify(**ids: Any) -> None:
    """Sets ids of this process that each line of JSON has from now on: `broker_epoch`, say. None: it has none."""
    for name, value in ids.items():
        if value is None:
            _ids.pop(name, None)
        else:
            _ids[name] = value


def get_logger(name: str) -> logging.Logger:
    return logging.getLogger(f"highwater.{name}" if not name.startswith("highwater") else name)


def pairs(**values: Any) -> Pairs:
    """`a=1 b=x`, for the end of a message."""
    made = Pairs(" ".join(f"{key}={value}" for key, value in values.items()))
    made.values = values
    return made


class JsonFormatter(logging.Formatter):
    """A line of JSON: `time` (UTC), `level`, `service`, `logger`, `message`, the process's ids, and the message's pairs
    by their names; `traceback` where there is one."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, Any] = {
            "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "service": self._service,
            "logger": record.name,
            "message": _without_pairs(record),
            **_ids,
        }
        for argument in record.args if isinstance(record.args, tuple) else ():
            if isinstance(argument, Pairs):
                for name, value in argument.values.items():
                    # A line about another broker keeps its own: what is said of it has a name of its own.
                    line[f"of_{name}" if name in line else name] = value
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def _without_pairs(record: logging.LogRecord) -> str:
    if not isinstance(record.args, tuple) or not any(isinstance(each, Pairs) for each in record.args):
        return record.getMessage()
    summed: str | None = getattr(record, "summed", None)
    if summed is not None:
        return summed
    said = str(record.msg) % tuple("" if isinstance(each, Pairs) else each for each in record.args)
    return str(said).rstrip(" :,")
