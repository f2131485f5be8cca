"""The work of a cluster in which nothing happens: messages and bytes between its processes, CPU, and how long its event
loops are held."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from bench.scale.highwater import HighwaterScale
from bench.scale.observed import LONGEST, LONGEST_CPU, RECEIVED, SENT
from bench.scale.progress import say
from bench.scale.samples import Samples, by_label, merged, since
from bench.scale.sizes import Sizes
from bench.scale.usage import cpu_and_memory

SERVICES = ("log-storage", "replica-manager", "fetcher", "controller", "etcd")
_KINDS = {LONGEST: "by the clock", LONGEST_CPU: "of CPU"}


class Held(NamedTuple):
    """An event loop that ran nothing else meanwhile."""

    longest_s: float
    process: str
    callback: str


@dataclass(frozen=True)
class Second:
    """An average second of the window."""

    partitions: int
    messages: Mapping[str, float]
    """Sent by Highwater's processes, by gRPC method; etcd's own are not among them."""
    bytes: Mapping[str, float]
    cpu: Mapping[str, float]
    """Per cent of a core, by service, over all of its processes."""


def second_of(
    partitions: int,
    before: Mapping[str, Samples],
    after: Mapping[str, Samples],
    cpu: Mapping[str, float],
    took_s: float,
) -> Second:
    """From what was counted of each process before and after a window. Raises `ValueError` where a process was started
    anew in it."""
    grown = merged(since(before[name], after[name]) for name in after)

    def per_second(what: str) -> dict[str, float]:
        sent = by_label(grown, f"{SENT}_{what}_total", "method")
        return {method: count / took_s for method, count in sent.items() if count}

    return Second(partitions, per_second("messages"), per_second("bytes"), cpu)


def grown_by(small: Second, large: Second) -> dict[str, float]:
    """Messages, bytes and CPU of the brokers' and the controllers' processes with more partitions, over those with
    fewer."""

    def summed(second: Second) -> tuple[float, float, float]:
        cpu = sum(share for service, share in second.cpu.items() if service != "etcd")
        return sum(second.messages.values()), sum(second.bytes.values()), cpu

    names = ("scale_round_messages", "scale_round_bytes", "scale_round_cpu")
    return {name: more / less for name, less, more in zip(names, summed(small), summed(large), strict=True)}


class Rounds:
    """An observed cluster; its figures are dearer than those of others by what observing costs."""

    name = "Highwater"

    def __init__(self, data: Path, sizes: Sizes) -> None:
        self._scale = HighwaterScale(data, sizes, observed=True)
        self._sizes = sizes
        self._longest: dict[tuple[str, str], Held] = {}  # by phase, and kind of time

    def start(self) -> None:
        self._scale.start()

    def stop(self) -> None:
        self._scale.stop()

    def seen(self) -> str:
        return self._scale.seen()

    def scale_round(self) -> dict[str, float]:
        """Messages, bytes and CPU of an average second of a cluster in which nothing happens, with all partitions over
        those with a third of them; and the longest time in ms that a callback held an event loop: while the partitions
        were made, stood idle, and a broker and then the controller was killed and came back. By wall clock, which other
        work on the machine makes longer, and by CPU."""
        partitions = self._sizes.partitions["scale_round"]
        seconds = []
        for count in (partitions // 3, partitions):
            self._scale.grow_to(count)
            before = self._read(f"while partitions were made up to {count:,}")
            used = cpu_and_memory(self._groups(), self._sizes.window_s)
            after = self._read(f"while {count:,} stood idle")
            cpu = {service: share for service, (share, _) in used.items()}
            seconds.append(second_of(count, before, after, cpu, self._sizes.window_s))
        _print(seconds)
        for figure, phase in (
            (self._scale.scale_failover, "while a broker was dead"),
            (self._scale.scale_restart, "until it was back"),
            (self._scale.scale_controller, "while the controller was replaced"),
        ):
            figure()
            self._read(phase)
        for (phase, kind), held in self._longest.items():
            say(f"{phase} {held.process} was held {1000 * held.longest_s:.0f} ms {_KINDS[kind]} by {held.callback}")
        return grown_by(*seconds) | {
            figure: 1000 * max(held.longest_s for (_, one), held in self._longest.items() if one == kind)
            for figure, kind in (("scale_longest_callback", LONGEST), ("scale_longest_callback_cpu", LONGEST_CPU))
        }

    def _groups(self) -> dict[str, list[int]]:
        processes = self._scale.cluster.processes.items()
        return {
            service: [p.pid for name, p in processes if name.startswith(service) and p.pid is not None]
            for service in SERVICES
        }

    def _read(self, phase: str) -> dict[str, Samples]:
        """What each process sent and received so far. The longest callback since the last reading is noted for the
        phase. A process that was killed in it, or has just been started, has nothing to say."""
        cluster = self._scale.cluster
        counted: dict[str, Samples] = {}
        for name in cluster.services():
            try:
                seen = cluster.observation(name)
            except ConnectionError:
                continue
            for (kind, labels), value in seen.items():
                if kind in _KINDS:
                    held = Held(value, name, dict(labels)["of"])
                    self._longest[phase, kind] = max(held, self._longest.get((phase, kind), held))
            counted[name] = {
                key: value
                for key, value in seen.items()
                if key[0].startswith((SENT, RECEIVED)) and key[0].endswith("_total")
            }
        return counted


def _print(seconds: list[Second]) -> None:
    """Methods by bytes, the largest first, and CPU by service."""
    table = Table(title="an idle second", title_justify="left")
    table.add_column("sent by Highwater's processes")
    for second in seconds:
        table.add_column(f"messages, {second.partitions:,}", justify="right")
        table.add_column(f"bytes, {second.partitions:,}", justify="right")
        table.add_column("CPU", justify="right")
    large = seconds[-1].bytes
    methods = sorted({method for second in seconds for method in second.bytes}, key=lambda m: -large.get(m, 0.0))
    for method in methods:
        cells = [
            cell
            for second in seconds
            for cell in (f"{second.messages.get(method, 0):,.1f}", f"{second.bytes.get(method, 0):,.0f}", "")
        ]
        table.add_row(method, *cells)
    for service in SERVICES:
        cells = [cell for second in seconds for cell in ("", "", f"{second.cpu[service]:.1f} %")]
        table.add_row(service, *cells)
    Console(stderr=True, width=140).print(table)
