"""Metrics as CSV: in a directory, a file for each metric, a row for each value and report."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

MAX_FILE_BYTES = 4 << 20
MAX_ROWS = 1_000  # of one metric in one report
_HEADER = "time,labels,value\n"


class CsvReporter:
    """Appends to `<metric>.csv`; a file of `MAX_FILE_BYTES` becomes `<metric>.csv.1` in place of the one before."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def report(self, time_s: float, samples: Sequence[tuple[str, str, float]]) -> None:
        """`samples`: name, labels and value, those of a metric one after the other. Raises `OSError`."""
        time = datetime.fromtimestamp(time_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self._directory.mkdir(parents=True, exist_ok=True)
        for name, group in groupby(sorted(samples), key=lambda sample: sample[0]):
            rows = io.StringIO()
            csv.writer(rows, lineterminator="\n").writerows(
                (time, labels, f"{value:.12g}") for _, labels, value in list(group)[:MAX_ROWS]
            )
            self._append(self._directory / f"{name}.csv", rows.getvalue())

    def _append(self, path: Path, rows: str) -> None:
        size = path.stat().st_size if path.exists() else 0
        if size and size + len(rows) > MAX_FILE_BYTES:
            path.replace(path.with_name(f"{path.name}.1"))
            size = 0
        with path.open("a") as file:
            file.write(rows if size else _HEADER + rows)
