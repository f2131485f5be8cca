"""The logs of a release's containers as one, by the time at which the node took each line."""

from __future__ import annotations

import heapq
import queue
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from highwater.errors import UserError
from highwater.kube.kubernetes_api import KubernetesError
from highwater.kube.pod import Container, Pod
from highwater.kube.release import Release

MAX_BYTES = 16 * 2**20
"""Of each container, where the logs are not followed."""
_AT_ONCE = 8
_QUEUED = 10_000
_TOO_MANY = 429
_AGAIN_S = 1.0
_LOOK_S = 2.0  # for containers that have been started since


@dataclass(frozen=True, order=True, slots=True)
class LogLine:
    time: str
    """RFC 3339 with nanoseconds."""
    pod: str
    container: str
    text: str


class MergedLogs:
    """`complaints` are what could not be read, once the lines have been."""

    def __init__(self, release: Release, wanted: Sequence[str]) -> None:
        self.complaints: list[str] = []
        self._release = release
        self._wanted = wanted

    def read(self, since_s: float | None, tail_lines: int, *, previous: bool = False) -> Iterator[LogLine]:
        """Yields what there is now. Raises `UserError`."""
        sources = [
            (pod.name, one.name)
            for pod, one in self._sources(self._release.pods())
            if (one.restarts > 0 if previous else one.running or one.last_end)
        ]

        def read(source: tuple[str, str]) -> list[LogLine]:
            try:
                data = self._release.logs(
                    *source, previous=previous, since_s=since_s, tail_lines=tail_lines, last_bytes=MAX_BYTES,
                    timestamps=True,
                )  # fmt: skip
            except KubernetesError as error:
                self.complaints.append(f"{'/'.join(source)}: {error}")
                return []
            return list(_lines(source, data.splitlines()))

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            yield from heapq.merge(*pool.map(read, sources))

    def follow(self, since_s: float | None, tail_lines: int) -> Iterator[LogLine]:
        """Yields what comes, as it comes; of containers that are started meanwhile, too. Ends when it is closed. Raises
        `UserError`."""
        lines: queue.Queue[LogLine] = queue.Queue(_QUEUED)
        followed: set[tuple[str, str, str]] = set()

        def follow(source: tuple[str, str], since_s: float | None, tail_lines: int | None) -> None:
            last, rest, read = "", b"", time.monotonic()
            while True:
                try:
                    for piece in self._release.follow_logs(*source, since_s=since_s, tail_lines=tail_lines):
                        *whole, rest = (rest + piece).split(b"\n")
                        read = time.monotonic()
                        for line in _lines(source, whole):
                            if line.time > last:
                                lines.put(line)
                                last = line.time
                except KubernetesError as error:
                    if 400 <= error.status < 500 and error.status != _TOO_MANY:
                        lines.put(LogLine("", *source, f"(no more of it: {error})"))
                        return
                    # It broke off, or the API is away for a while: on from there, what is told twice is left out.
                    time.sleep(_AGAIN_S)
                    since_s, tail_lines, rest = time.monotonic() - read + 2 * _AGAIN_S, None, b""
                    continue
                return

        looked = -_LOOK_S
        first = True
        while True:
            if time.monotonic() - looked >= _LOOK_S:
                looked = time.monotonic()
                for pod, one in self._sources(self._pods_now(first)):
                    incarnation = (pod.uid, one.name, one.started)
                    if not one.running or incarnation in followed:
                        continue
                    followed.add(incarnation)
                    bounds = (since_s, tail_lines) if first else (None, None)
                    threading.Thread(target=follow, args=((pod.name, one.name), *bounds), daemon=True).start()
                first = False
            try:
                yield lines.get(timeout=0.2)
            except queue.Empty:
                continue

    def _pods_now(self, first: bool) -> list[Pod]:
        try:
            return self._release.pods()
        except KubernetesError:
            if first:
                raise
            return []  # looked for again soon

    def _sources(self, pods: Iterable[Pod]) -> Iterator[tuple[Pod, Container]]:
        """Raises `UserError` where nothing is called what is wanted."""
        pods = list(pods)
        chosen = [
            (pod, one)
            for pod in pods
            for one in pod.containers
            if not self._wanted or pod.component in self._wanted or one.name in self._wanted
        ]
        if pods and not chosen:
            names = sorted({pod.component for pod in pods} | {one.name for pod in pods for one in pod.containers})
            raise UserError(f"nothing here is called {' or '.join(self._wanted)}: there are {', '.join(names)}")
        yield from chosen


def _lines(source: tuple[str, str], data: Iterable[bytes]) -> Iterator[LogLine]:
    for line in data:
        when, _, text = line.decode(errors="replace").partition(" ")
        yield LogLine(when, *source, text.rstrip("\r"))
