"""Prometheus's text format, as far as a service writes it, and where it is got from."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from highwater.errors import UserError

TIMEOUT_S = 5.0
MAX_BYTES = 64 << 20

_LINE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


class Sample(NamedTuple):
    name: str
    labels: Mapping[str, str]
    value: float


class NotServedError(UserError):
    """There are no metrics at an address."""


def parse(text: str) -> Iterator[Sample]:
    """All values; comments, and what is none, are passed over."""
    for line in text.splitlines():
        found = _LINE.match(line)
        if found is None:
            continue
        name, labels, value = found.groups()
        try:
            number = float(value)
        except ValueError:
            continue
        yield Sample(name, _labels(labels) if labels else {}, number)


def _labels(text: str) -> dict[str, str]:
    return {
        name: re.sub(r'\\[\\"n]', lambda escape: _ESCAPES[escape[0]], value) if "\\" in value else value
        for name, value in _LABEL.findall(text)
    }


def scrape(address: str) -> str:
    """The text at `http://<address>/metrics`. Raises `NotServedError`."""
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=TIMEOUT_S) as answer:
            text: bytes = answer.read(MAX_BYTES)
    except (OSError, ValueError, urllib.error.HTTPError) as error:
        reason = getattr(error, "reason", None) or error
        raise NotServedError(f"no metrics at {address}: {reason}") from None
    return text.decode(errors="replace")


def local_cluster(data: Path) -> dict[str, object]:
    """The words of a running `highwater up` about its cluster. Raises `UserError` where none runs on that directory."""
    try:
        told = json.loads((data / "cluster.json").read_text())
    except (OSError, ValueError):
        raise UserError(
            f"no cluster of highwater up runs in {data}: give its directory with --data, or the host:port of a "
            "process's metrics (its setting metrics.listen)"
        ) from None
    assert isinstance(told, dict)
    return told


def local_addresses(data: Path) -> dict[str, str]:
    """The address of each process's metrics, by its name. Raises `UserError`."""
    addresses = local_cluster(data).get("metrics")
    if not isinstance(addresses, dict) or not addresses:
        raise UserError(f"the cluster in {data} serves no metrics: start it without --metrics-port -1")
    return addresses
