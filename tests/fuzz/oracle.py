"""Watches the servers while they are fuzzed. Wrong is

- a process that has ended, or a registration or a controller's term that is another one than before;
- an event loop that one callback held for more than 100 ms (`PAUSE_S`);
- memory above `MEMORY_BYTES` more than the process had at first;
- a traceback in a log. Lines at ERROR alone are counted: that a partition cannot be hosted is one.

**Pauses.** A service's own metric says how late its loop came round (docs/metrics.md): what a callback held it,
and also what the machine did. The machine's share is measured over the same time, and the larger of both is taken
off: the delay of the loop of a process that does nothing else (`reference_pause`); and how long the kernel let a thread
of the service wait for a core though it could run (`/proc/<pid>/task/*/schedstat`; another than the loop's may have had
the interpreter's lock meanwhile), with how long a core did not run at all, its host having others to run
(`steal` in `/proc/stat`). Whatever is left is the service's.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from highwater.cli.local_cluster import CLUSTER
from highwater.metadata.schema.keys import Keys
from highwater.metadata.state.brokers import read_brokers
from highwater.metadata.store.store import Store

from .cluster import FuzzedCluster

PAUSE_S = 0.1
_UNSEEN = 0.25  # of the machine's share that was measured: as much more of it may be there
MEMORY_BYTES = 384 << 20
_ROOT = Path(__file__).parents[2]
_KEYS = Keys(CLUSTER)
_DELAY = re.compile(r"^highwater_\w+_loop_longest_delay_seconds (\S+)$", re.M)
_ERROR = re.compile(r" ERROR (.*?)(?: \w+=.*)?$")
_BEGUN = re.compile(r"\d{4}-\d\d-\d\dT")  # a line of the log, not of what is logged beside it
_TRACEBACK = "Traceback (most recent call last)"
# gRPC prints this by itself where a client has hung up before it was told of an error.
_HUNG_UP = "grpc._cython.cygrpc.ExecuteBatchError"
_LINES_SHOWN = 60


@dataclass
class _Watched:
    """One process, as it was found at first."""

    pid: int
    log: Path
    read: int = 0
    memory_bytes: int = 0
    waited_s: dict[str, float] = field(default_factory=dict)  # by thread


class Oracle:
    """`look` says what is wrong since the look before."""

    def __init__(self, cluster: FuzzedCluster, store: Store) -> None:
        self._cluster = cluster
        self._store = store
        self._watched: dict[str, _Watched] = {}
        self._terms: dict[str, int] = {}
        self._reference: asyncio.subprocess.Process | None = None
        self._stolen_s: list[float] = []  # of each core
        self.error_lines: Counter[str] = Counter()
        self.longest_s: dict[str, float] = {}
        self.most_memory_bytes: dict[str, int] = {}

    async def __aenter__(self) -> Oracle:
        self._reference = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.fuzz.reference_pause"),
            cwd=_ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        await self._reference_s()
        for name, process in self._cluster.processes.items():
            assert process.pid is not None
            watched = self._watched[name] = _Watched(process.pid, process.log_file)
            watched.read = process.log_file.stat().st_size
            watched.memory_bytes, watched.waited_s = _memory_bytes(process.pid), _waited_s(process.pid)
        for address in self._cluster.metrics_addresses.values():
            await asyncio.to_thread(_longest_delay_s, address)  # what the start took is begun anew
        self._stolen_s = _stolen_s()
        self._terms = await self._read_terms()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._reference is not None
        assert self._reference.stdin is not None
        self._reference.stdin.close()
        await self._reference.wait()

    async def look(self) -> list[str]:
        found = [*self._ended()]
        if found:
            return found
        found += await self._terms_changed()
        found += await self._paused()
        found += self._memory()
        for name, watched in self._watched.items():
            found += self._logged(name, watched)
        return found

    def _ended(self) -> Iterator[str]:
        for name, process in self._cluster.processes.items():
            if not process.running:
                yield f"{name} has ended with status {process.exit_status}: {process.last_words(_LINES_SHOWN)}"

    async def _read_terms(self) -> dict[str, int]:
        brokers = await read_brokers(self._store, _KEYS)
        found = {f"broker {number}": broker.broker_epoch for number, broker in brokers.items()}
        entry = await self._store.get(_KEYS.controller)
        found["controller"] = 0 if entry is None else entry.create_revision
        return found

    async def _terms_changed(self) -> list[str]:
        now = await self._read_terms()
        if now == self._terms:
            return []
        before, self._terms = self._terms, now
        return [f"registrations have changed: {before} before, {now} now"]

    async def _paused(self) -> list[str]:
        found = []
        reference_s = await self._reference_s()
        stolen_s = _stolen_s()
        most_stolen_s = max(now - before for now, before in zip(stolen_s, self._stolen_s, strict=True))
        self._stolen_s = stolen_s
        for name, address in self._cluster.metrics_addresses.items():
            watched = self._watched[name]
            delay_s = await asyncio.to_thread(_longest_delay_s, address)
            waited_s = _waited_s(watched.pid)
            most_waited_s = max(now - watched.waited_s.get(thread, 0.0) for thread, now in waited_s.items())
            of_machine_s = max(reference_s, most_waited_s + most_stolen_s)
            watched.waited_s = waited_s
            own_s = delay_s - of_machine_s
            self.longest_s[name] = max(self.longest_s.get(name, 0.0), own_s)
            if own_s > PAUSE_S + _UNSEEN * of_machine_s:
                found.append(
                    f"the event loop of {name} was held for {own_s * 1000:.0f} ms: late by {delay_s * 1000:.0f} ms, "
                    f"of which the machine's are {of_machine_s * 1000:.0f} ms"
                )
        return found

    async def _reference_s(self) -> float:
        process = self._reference
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"\n")
        return float(await process.stdout.readline())

    def _memory(self) -> Iterator[str]:
        for name, watched in self._watched.items():
            now = _memory_bytes(watched.pid)
            self.most_memory_bytes[name] = max(self.most_memory_bytes.get(name, 0), now)
            if now - watched.memory_bytes > MEMORY_BYTES:
                yield f"{name} has {now >> 20} MiB, at first it had {watched.memory_bytes >> 20} MiB"
                watched.memory_bytes = now

    def _logged(self, name: str, watched: _Watched) -> Iterator[str]:
        with watched.log.open("rb") as log:
            log.seek(watched.read)
            new = log.read()
        new = new[: new.rfind(b"\n") + 1]
        watched.read += len(new)
        lines = new.decode(errors="replace").splitlines()
        for line in lines:
            if (error := _ERROR.search(line)) is not None:
                self.error_lines[f"{name}: {error[1][:120]}"] += 1
        for number, line in enumerate(lines):
            if _TRACEBACK in line and not _BEGUN.match(line):
                end = next((n for n in range(number, len(lines)) if _BEGUN.match(lines[n])), len(lines))
                if _HUNG_UP in lines[end - 1]:
                    continue
                yield f"{name} has logged a traceback:\n" + "\n".join(lines[max(0, number - 1) : end])


def _longest_delay_s(metrics_address: str) -> float:
    with urllib.request.urlopen(f"http://{metrics_address}/metrics", timeout=10) as answer:
        found = _DELAY.search(answer.read().decode())
    assert found is not None
    return float(found[1])


def _memory_bytes(pid: int) -> int:
    (line,) = (each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if each.startswith("VmRSS:"))
    return int(line.split()[1]) << 10


def _waited_s(pid: int) -> dict[str, float]:
    """How long each of its threads could run and was not let, since it was started."""
    found = {}
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # it has ended
            found[thread.name] = int((thread / "schedstat").read_text().split()[1]) / 1e9
    return found


def _stolen_s() -> list[float]:
    """How long each core stood still for others of its host, since it was started."""
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    lines = Path("/proc/stat").read_text().splitlines()
    return [int(line.split()[8]) * tick_s for line in lines if re.match(r"cpu\d", line)]
