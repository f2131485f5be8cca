"""Measurements: their aims, the table and `build/bench.json`."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

OUTPUT = Path("build/bench.json")


@dataclass(frozen=True)
class Aim:
    unit: str
    target: float
    higher_is_better: bool


AIMS = {
    "produce_table": Aim("records/s", 2_200_000, True),
    "produce_send": Aim("records/s", 250_000, True),
    "consume_arrow": Aim("records/s", 4_000_000, True),
    "consume_records": Aim("records/s", 1_500_000, True),
    "latency_p50": Aim("ms", 4.0, False),
    "latency_p99": Aim("ms", 10.0, False),
    "failover": Aim("s", 1.5, False),
    "idle_rss": Aim("MB", 300, False),
    "startup": Aim("s", 10.0, False),
    "spark_read": Aim("rows/s", 2_500_000, True),
    "spark_aggregate": Aim("rows/s", 2_500_000, True),
    "spark_stream": Aim("rows/s", 2_000_000, True),
    "spark_write": Aim("rows/s", 1_500_000, True),
    # The first query of a new JVM.
    "spark_read_cold": Aim("rows/s", 2_500_000, True),
    "spark_aggregate_cold": Aim("rows/s", 2_500_000, True),
    "spark_stream_cold": Aim("rows/s", 2_000_000, True),
    "spark_write_cold": Aim("rows/s", 1_500_000, True),
    "spark_first_batch": Aim("s", 5.0, False),
    # The driver's memory with a topic of ten times the size, as a multiple.
    "spark_driver_growth": Aim("×", 1.1, False),
    "storage_append": Aim("% of write", 60, True),
    "storage_fsync": Aim("% of unflushed", 50, True),
    "storage_recovery": Aim("MB/s", 500, True),
    "storage_compaction": Aim("s", 60, False),
    "storage_compaction_memory": Aim("MB", 512, False),
    "storage_append_compacting": Aim("% of alone", 60, True),
    "storage_append_compacting_p99": Aim("ms", 10, False),
    "storage_open": Aim("s", 5, False),
    "storage_lookup": Aim("ms", 1, False),
    "storage_lookup_pages": Aim("index pages", 2, False),
    "storage_lookup_ranges": Aim("data ranges", 1, False),
}


@dataclass
class Result:
    name: str
    value: float
    unit: str
    target: float
    met: bool
    peer: str | None = None
    peer_value: float | None = None
    ratio: float | None = None
    null_value: float | None = None  # of a Python source or sink for Spark that does nothing


def results(ours: dict[str, float], peer: str | None = None, theirs: dict[str, float] | None = None) -> list[Result]:
    """One result for each measurement of ours; `ratio` is ours over the peer's."""
    found = []
    for name, value in ours.items():
        aim = AIMS[name]
        met = value >= aim.target if aim.higher_is_better else value <= aim.target
        result = Result(name, value, aim.unit, aim.target, met)
        if theirs and name in theirs:
            result.peer, result.peer_value, result.ratio = peer, theirs[name], value / theirs[name]
        found.append(result)
    return found


def hardware() -> str:
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    system = f"{platform.system()} {platform.release()}"
    return f"{os.cpu_count()} × {model}, {memory:.0f} GiB, {system}, Python {platform.python_version()}"


def publish(found: list[Result]) -> None:
    """Prints the table and merges the results into `build/bench.json`, by name."""
    OUTPUT.parent.mkdir(exist_ok=True)
    known = {entry["name"]: entry for entry in json.loads(OUTPUT.read_text())} if OUTPUT.exists() else {}
    for result in found:
        known[result.name] = {key: value for key, value in asdict(result).items() if value is not None}
    OUTPUT.write_text(json.dumps(list(known.values()), indent=1) + "\n")
    table = Table(title=hardware(), title_justify="left")
    with_null = any(result.null_value is not None for result in found)
    for column in ("name", "value", "aim", "met", "peer", "peer's value", "ratio", *(["null"] if with_null else [])):
        table.add_column(column, justify="left" if column in ("name", "met", "peer") else "right")
    for result in found:
        sign = "≥" if AIMS[result.name].higher_is_better else "≤"
        table.add_row(
            result.name,
            f"{_number(result.value)} {result.unit}",
            f"{sign} {_number(result.target)}",
            "yes" if result.met else "no",
            result.peer or "",
            "" if result.peer_value is None else _number(result.peer_value),
            "" if result.ratio is None else f"{result.ratio:.2f}",
            *([] if not with_null else ["" if result.null_value is None else _number(result.null_value)]),
        )
    console = Console()
    (console if console.is_terminal else Console(width=140)).print(table)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
