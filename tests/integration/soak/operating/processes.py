"""What the cluster's processes take, which is bounded, and whether one ends by itself."""

from __future__ import annotations

import asyncio
import os
import re
from collections import Counter
from contextlib import suppress
from pathlib import Path
from time import monotonic
from urllib.request import urlopen

from highwater.cli.child_process import ChildProcess
from soak.cluster import machine_of
from soak.operating.state import Operating

SAMPLE_S = 3.0
LATE_S = 0.5
_TICK_S = 0.2
MOST_MEMORY = 350 << 20  # bytes; three times what one needs here
MOST_FILES = 300  # beside segments, of which log-storage may have a share of its limit
MOST_LINES = 200  # a minute, beside what it is told to say at DEBUG
_FIRST_LINES = 100
_PAGE = 4096
_STARTED_BETWEEN = re.compile("is not the key of")
_SEGMENTS = (".log", ".index", ".timeindex")
_THROTTLED = re.compile(r'throttled_requests_total\{.*?quota="(\w+)".*?\} (\S+)')
_LEVEL = re.compile(rb"^\S+ (\w+) ")


class Processes:
    def __init__(self, operating: Operating) -> None:
        self._operating = operating
        self._soak = operating.soak
        self._told: Counter[tuple[str, str]] = Counter()

    async def keep_time(self) -> None:
        """A machine that has no time for the soak has none for the cluster."""
        while not self._soak.stopped.is_set():
            begun = monotonic()
            await asyncio.sleep(_TICK_S)
            late_s = monotonic() - begun - _TICK_S
            self._operating.note("the soak itself was late, s", late_s)
            if late_s > LATE_S:
                self._operating.disturbances.begin({"etcd"}, begun).ended = monotonic()

    async def watch(self) -> None:
        while not self._soak.stopped.is_set():
            for name, process in self._operating.cluster.processes.items():
                self._sample(name, process)
            await asyncio.sleep(SAMPLE_S)

    def _sample(self, name: str, process: ChildProcess) -> None:
        if not process.running:
            if not self._operating.disturbances.now(machine_of(name)):
                self._start_again(name, process)
            return
        memory, files = _memory(process.pid), _files(process.pid)
        kind = name.rstrip("-0123456789")
        self._operating.note(f"memory of a {kind}, MB", memory / 1e6)
        self._operating.note(f"open files of a {kind}", files)
        self._bounded(name, "memory", memory, MOST_MEMORY)
        self._bounded(name, "open files", files, MOST_FILES)

    def _start_again(self, name: str, process: ChildProcess) -> None:
        """As whoever runs services does."""
        words = process.last_words(3)
        if _STARTED_BETWEEN.search(words):
            self._operating.acts["started between two files"] += 1
        else:
            self._soak.problem(f"{name} ended by itself with status {process.exit_status}: {words}")
        process.start()

    def _bounded(self, name: str, what: str, value: float, most: float) -> None:
        if value > most:
            self._told[name, what] += 1
            if self._told[name, what] == 1:
                self._soak.problem(f"{name}: {what} {value:.0f}, more than {most:.0f}")

    def note_throttled(self) -> None:
        """As the metrics of those that run have it."""
        for name, address in self._operating.cluster.metrics_addresses.items():
            if name.startswith("replica-manager"):
                with urlopen(f"http://{address}/metrics", timeout=10) as response:
                    for kind, count in _THROTTLED.findall(response.read().decode()):
                        self._operating.acts[f"requests throttled by {kind}"] += int(float(count))

    def check_logs(self, seconds: float) -> None:
        """Lines that say something to whoever runs the cluster are few, however long it is broken."""
        for name, process in self._operating.cluster.processes.items():
            if name == "etcd":
                continue
            lines = _lines(process.log_file)
            a_minute = 60 * max(0, lines - _FIRST_LINES) / seconds
            self._operating.note("log lines a minute of a process", a_minute)
            self._bounded(name, "log lines a minute", a_minute, MOST_LINES)


def _memory(pid: int | None) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except OSError:
        return 0


def _files(pid: int | None) -> int:
    """Those that are open, without segments that are there."""
    found = 0
    with suppress(OSError):
        for each in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                found += not os.readlink(each).endswith(_SEGMENTS)
    return found


def _lines(file: Path) -> int:
    count = 0
    with file.open("rb") as log:
        for line in log:
            match = _LEVEL.match(line)
            count += match is None or match[1] != b"DEBUG"
    return count
