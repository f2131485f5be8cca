"""Samples of Prometheus' text format, and what lies between two readings of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.parser import text_string_to_metric_families

Labels = frozenset[tuple[str, str]]
Samples = Mapping[tuple[str, Labels], float]
"""Values by name and labels."""


def samples_of(text: str) -> Samples:
    """Those of one answer of `/metrics`."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def total(samples: Samples, name: str, **labels: str) -> float:
    """The sum of all samples of this name that have these labels."""
    return sum(samples[key] for key in _having(samples, name, labels))


def by_label(samples: Samples, name: str, label: str) -> dict[str, float]:
    """The sums by the values of one label."""
    found: dict[str, float] = {}
    for key in _having(samples, name, {}):
        value = dict(key[1]).get(label, "")
        found[value] = found.get(value, 0.0) + samples[key]
    return found


def since(before: Samples, after: Samples) -> Samples:
    """The growth of counters from one reading to the next; what was not there counted from zero. Of a process that
    was started anew in between nothing is known: raises `ValueError`, which names the counter that fell."""
    fallen = [key[0] for key, value in after.items() if value < before.get(key, 0.0)]
    if fallen:
        raise ValueError(f"{sorted(fallen)[0]} has fallen: the process was started anew while it was measured")
    return {key: value - before.get(key, 0.0) for key, value in after.items()}


def merged(readings: Iterable[Samples]) -> Samples:
    """The sums over several processes."""
    found: dict[tuple[str, Labels], float] = {}
    for reading in readings:
        for key, value in reading.items():
            found[key] = found.get(key, 0.0) + value
    return found


def _having(samples: Samples, name: str, labels: Mapping[str, str]) -> Iterator[tuple[str, Labels]]:
    wanted = set(labels.items())
    return (key for key in samples if key[0] == name and wanted <= key[1])
