"""Measurements: their aims, the table and `build/bench.json`."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.groups.sizes import SESSION_TIMEOUT_MS

OUTPUT = Path("build/bench.json")


@dataclass(frozen=True)
class Aim:
    unit: str
    target: float | None
    higher_is_better: bool
    relative: Mapping[str, float] = field(default_factory=dict)
    """Multiples of what was measured beside it: of `peer`, of `null`, or of another result by its name."""


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
    # bench.groups: docs/benchmarks.md says how each is measured.
    "group_rebalance": Aim("s", 1, False),
    "group_failover": Aim("s", SESSION_TIMEOUT_MS / 1000 + 1, False),
    "group_join_gap": Aim("ms", 100, False),
    "commit_p50": Aim("ms", 5, False),
    "group_consume": Aim("% of assigned", 95, True),
    "group_idle": Aim("% of a core", 5, False),
    "group_idle_members": Aim("% of a core", 5, False),
    "spark_read": Aim("rows/s", 2_500_000, True),
    "spark_aggregate": Aim("rows/s", 2_500_000, True),
    "spark_stream": Aim("rows/s", 2_000_000, True),
    "spark_write": Aim("rows/s", 1_500_000, True),
    # The first query of a new JVM.
    "spark_read_cold": Aim("rows/s", 2_500_000, True),
    "spark_aggregate_cold": Aim("rows/s", 2_500_000, True),
    "spark_stream_cold": Aim("rows/s", 2_000_000, True),
    "spark_write_cold": Aim("rows/s", 1_500_000, True),
    "spark_first_batch": Aim("s", 5.0, False, {"peer": 1.3}),
    # The pipelines. What does nothing is Spark here, which writes the same rows to a table, from no topic.
    "archive_rate": Aim("rows/s", None, True, {"peer": 2.0, "null": 0.7}),
    "archive_rate_cold": Aim("rows/s", None, True, {"peer": 2.0, "null": 0.7}),
    "replay_rate": Aim("rows/s", None, True, {"spark_write": 0.8}),
    # Of a million plain files; and the driver's memory, as a multiple of that with a tenth of them.
    "archive_listing": Aim("s", 5.0, False),
    "archive_listing_growth": Aim("×", 1.1, False),
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
    # bench.scale: the docstrings of bench/scale/highwater.py and rounds.py say how each is measured.
    "scale_latency": Aim("×", 1.3, False),
    "scale_latency_p50": Aim("ms", None, False),
    "scale_latency_alone": Aim("ms", None, False),
    "scale_create": Aim("×", 1.5, False),
    "scale_create_last": Aim("s", None, False),
    "scale_idle_cpu": Aim("% of a core", 5, False),
    "scale_idle_memory": Aim("MB", 600, False),
    "scale_failover": Aim("s", 3, False),
    "scale_failover_led": Aim("s", None, False),
    "scale_restart": Aim("s", 30, False),
    "scale_controller": Aim("s", 5, False),
    "scale_stopped": Aim("s", 60, False),
    "scale_stopped_led": Aim("s", None, False),
    "scale_starved": Aim("s", 60, False),
    "scale_starved_led": Aim("s", None, False),
    "scale_produce": Aim("% of 6 partitions", 70, True),
    "scale_produce_rate": Aim("records/s", None, True),
    "scale_clients_p99": Aim("ms", 50, False),
    "scale_clients_read_p99": Aim("ms", 50, False),
    "scale_clients_share": Aim("% of due", 99.9, True),
    "scale_clients_memory": Aim("MB", 1000, False),
    "scale_round_messages": Aim("×", 1.1, False),
    "scale_round_bytes": Aim("×", 1.1, False),
    "scale_round_cpu": Aim("×", 1.1, False),
    "scale_longest_callback": Aim("ms", 50, False),
    "scale_longest_callback_cpu": Aim("ms", None, False),
    # bench.operating: in per cent of a plain cluster's, and more than that.
    "tls_produce_table": Aim("% of plain", 85, True),
    "tls_cpu": Aim("% of plain", 118, False),
    "tls_latency_p50": Aim("ms more", 1, False),
    "guarded_produce_table": Aim("% of plain", 97, True),
    "guarded_cpu": Aim("% of plain", 103, False),
    "guarded_latency_p50": Aim("ms more", None, False),
    "traced_produce_table": Aim("% of plain", 98, True),
    "traced_cpu": Aim("% of plain", 102, False),
    "traced_latency_p50": Aim("ms more", None, False),
    # tests/k8s: until all is ready; the longest time that any partition goes without an acknowledgement when a broker
    # dies; from its death until it is back in its ISRs; controllers, etcd and brokers restarted; the image's files.
    "k8s_ready": Aim("s", 45, False),
    "k8s_failover_container": Aim("s", 1.5, False),
    "k8s_failover_pod": Aim("s", 1.0, False),
    "k8s_failover_network": Aim("s", 5.0, False),
    "k8s_rejoin": Aim("s", 20, False),
    "k8s_roll": Aim("s", 90, False),
    "k8s_image": Aim("MB", None, False),
    "k8s_image_base": Aim("MB", None, False),
}


@dataclass
class Result:
    name: str
    value: float
    unit: str
    target: float | None
    relative_targets: Mapping[str, float]
    met: bool | None  # None: nothing that it is to be compared with was measured
    peer: str | None = None
    peer_value: float | None = None
    ratio: float | None = None
    null_value: float | None = None  # of a Python source or sink for Spark that does nothing
    partitions: int | None = None  # that it was measured with, where their number is an option


def results(
    ours: Mapping[str, float],
    peer: str | None = None,
    theirs: Mapping[str, float] | None = None,
    nulls: Mapping[str, float] | None = None,
) -> list[Result]:
    """One result for each measurement of ours; `ratio` is ours over the peer's."""
    found = []
    for name, value in ours.items():
        aim = AIMS[name]
        beside = {**ours, "peer": (theirs or {}).get(name), "null": (nulls or {}).get(name)}
        result = Result(name, value, aim.unit, aim.target, aim.relative, _met(aim, value, beside))
        result.null_value = beside["null"]
        if (peer_value := beside["peer"]) is not None:
            result.peer, result.peer_value, result.ratio = peer, peer_value, value / peer_value
        found.append(result)
    return found


def _met(aim: Aim, value: float, beside: Mapping[str, float | None]) -> bool | None:
    """All of what can be said: the relative aims are of what may not have been measured."""
    targets = [] if aim.target is None else [aim.target]
    targets += [times * other for name, times in aim.relative.items() if (other := beside.get(name)) is not None]
    if not targets:
        return None
    return all(value >= target if aim.higher_is_better else value <= target for target in targets)


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
        known[result.name] = {key: value for key, value in asdict(result).items() if value not in (None, {})}
    OUTPUT.write_text(json.dumps(list(known.values()), indent=1) + "\n")
    table = Table(title=hardware(), title_justify="left")
    with_null = any(result.null_value is not None for result in found)
    for column in ("name", "value", "aim", "met", "peer", "peer's value", "ratio", *(["null"] if with_null else [])):
        table.add_column(column, justify="left" if column in ("name", "met", "peer") else "right")
    for result in found:
        table.add_row(
            result.name,
            f"{_number(result.value)} {result.unit}",
            _told(AIMS[result.name]),
            {True: "yes", False: "no", None: ""}[result.met],
            result.peer or "",
            "" if result.peer_value is None else _number(result.peer_value),
            "" if result.ratio is None else f"{result.ratio:.2f}",
            *([] if not with_null else ["" if result.null_value is None else _number(result.null_value)]),
        )
    console = Console()
    (console if console.is_terminal else Console(width=140)).print(table)


def _told(aim: Aim) -> str:
    if aim.target is None and not aim.relative:
        return ""
    targets = [] if aim.target is None else [_number(aim.target)]
    targets += [f"{times:g} × {name}" for name, times in aim.relative.items()]
    return f"{'≥' if aim.higher_is_better else '≤'} {', '.join(targets)}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
