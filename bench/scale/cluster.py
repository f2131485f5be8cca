"""A cluster of three brokers whose processes serve their metrics, and may be observed."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from urllib.request import urlopen

from bench.scale.samples import Samples, samples_of
from bench.scale.sizes import BROKERS
from highwater.cli.local_cluster import SERVICES, LocalCluster, LocalClusterSettings, controller_name
from highwater.rpc.process.local_process import free_ports

CONTROLLERS = 2
"""One acts, the other takes over."""
_LONGEST_DELAY = "_loop_longest_delay_seconds"
_ANSWER_TIMEOUT_S = 30  # a loop that is busy for seconds is what is looked for: it is waited for


class ScaleCluster(LocalCluster):
    """`observed`: each service runs under `bench.scale.observed`, which costs it a few per cent."""

    def __init__(self, data: Path, *, observed: bool = False) -> None:
        super().__init__(LocalClusterSettings(data, brokers=BROKERS, port=0, controllers=CONTROLLERS))
        self.observed = observed
        self._ports = free_ports(BROKERS * len(SERVICES) + CONTROLLERS)
        self._observers: dict[str, str] = {}

    def _add_service(self, name: str, package: str, settings: dict[str, str]) -> None:
        super()._add_service(name, package, settings)
        if self.observed:
            observer = f"127.0.0.1:{self._ports.pop()}"
            self._observers[name] = observer
            command = self.processes[name].command
            command[1:3] = ["-m", "bench.scale.observed", observer, command[2]]
            assert command[0] == sys.executable

    def metrics(self, name: str) -> Samples:
        """What a process tells Prometheus. Raises `ConnectionError` where it does not answer."""
        return _scraped(name, self.metrics_addresses[name])

    def longest_delay(self) -> tuple[float, str]:
        """Seconds of the longest delay of an event loop since this was asked before, and the process whose it is; of
        those that answer."""
        found = [(0.0, "")]
        for name in self.services():
            with contextlib.suppress(ConnectionError):
                told = self.metrics(name).items()
                found += [(value, name) for (metric, _), value in told if metric.endswith(_LONGEST_DELAY)]
        return max(found)

    def observation(self, name: str) -> Samples:
        """What `bench.scale.observed` saw of a process; the longest callback is that since this was last asked. Raises
        `ConnectionError` where it does not answer."""
        return _scraped(name, self._observers[name])

    def services(self) -> list[str]:
        """The processes that serve metrics: all but etcd."""
        return list(self.metrics_addresses)

    def controllers(self) -> list[str]:
        return [controller_name(controller) for controller in range(CONTROLLERS)]

    def pids(self, broker: int) -> list[int]:
        """Of the three processes of a broker. Raises `RuntimeError` where one of them has ended."""
        found = []
        for process in self.broker_processes(broker):
            if not process.running or process.pid is None:
                raise RuntimeError(f"{process.name} has ended: {process.last_words(3)}")
            found.append(process.pid)
        assert len(found) == len(SERVICES)
        return found


def _scraped(name: str, address: str) -> Samples:
    try:
        with urlopen(f"http://{address}/metrics", timeout=_ANSWER_TIMEOUT_S) as answer:
            return samples_of(answer.read().decode())
    except OSError as error:
        raise ConnectionError(f"{name} does not tell its metrics: {error}") from error
