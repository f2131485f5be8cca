"""The alert rules of the Helm chart, as `monitoring.yaml` makes them of a release `hw` in the namespace `here`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

ALERTS = Path(__file__).parents[1] / "helm" / "highwater" / "files" / "alerts.yaml"
_PLACES = (
    ("‹pods›", 'namespace="here",pod=~"hw-.*"'),
    ("‹namespace›", "here"),
    ("‹name›", "hw"),
    ("‹brokers›", "3"),
    ("‹members›", "3"),
    ("‹backupAge›", "3600"),
)


@cache
def rules() -> list[dict[str, Any]]:
    text = ALERTS.read_text()
    for place, value in _PLACES:
        text = text.replace(place, value)
    return list(yaml.safe_load(text))
