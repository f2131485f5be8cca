"""What it costs to operate a cluster: two clusters, one plain and one with it, in alternation in one run.

    python -m bench.operating [--only tls,guarded,traced] [--rounds 5]

tls      mutual TLS and ACLs at every port, as `highwater up --secure` has them; the plain one has TCP between its
         brokers, too
guarded  ACLs, quotas, metrics and their scrapes, without TLS
traced   1 % of the requests traced, by a collector that takes everything

Of each the rate of `produce_table` in per cent of the plain cluster's, the time that all its processes and the client's
take of the processors for it, likewise, and what `latency_p50` is more, in ms: medians over the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import urlopen

import psutil

from bench.highwater_side import HighwaterSide
from bench.results import publish, results
from bench.work import Work
from highwater.cli.local_cluster import LocalCluster, LocalClusterSettings
from highwater.client import Admin, ConfigResource

GUARDED = {"authorizer.class.name": "acls", "allow.everyone.if.no.acl.found": "true"}
QUOTAS = {"producer_byte_rate": "100000000000", "consumer_byte_rate": "100000000000", "request_percentage": "10000"}
SCRAPE_INTERVAL_S = 5.0


class Collector(BaseHTTPRequestHandler):
    """Takes whatever spans it is sent."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextlib.contextmanager
def collector() -> Iterator[str]:
    """The URL of one in this process."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


@contextlib.contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """As clients that are made within read it."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def scraped(cluster: LocalCluster) -> Iterator[None]:
    """Reads the metrics of all its processes again and again."""
    ended = threading.Event()

    def scrape() -> None:
        while not ended.wait(SCRAPE_INTERVAL_S):
            for address in cluster.metrics_addresses.values():
                with urlopen(f"http://{address}/metrics", timeout=10) as response:
                    response.read()

    scraping = threading.Thread(target=scrape)
    scraping.start()
    try:
        yield
    finally:
        ended.set()
        scraping.join()


class Case:
    """One of the things that are measured: the cluster that has it, and its clients' environment."""

    def __init__(self, name: str, data: Path, collector_url: str) -> None:
        self.name = name
        settings, self._variables = {}, {}
        if name == "guarded":
            settings = GUARDED
        elif name == "traced":
            settings = {"tracing.enabled": "true", "otlp.endpoint": collector_url}
            self._variables = {"HIGHWATER_TRACING_ENABLED": "true", "HIGHWATER_OTLP_ENDPOINT": collector_url}
        wanted = LocalClusterSettings(
            data,
            port=0,
            settings=settings,
            secure=name == "tls",
            metrics_port=0 if name == "guarded" else None,
        )
        self.side = HighwaterSide(LocalCluster(wanted), Work())

    @contextlib.contextmanager
    def clients(self) -> Iterator[None]:
        with environment({**self._variables, **self.side.cluster.client_environment}):
            yield

    async def prepare(self) -> None:
        if self.name == "guarded":
            async with Admin(self.side.cluster.bootstrap) as admin:
                await admin.alter_configs(ConfigResource.user(), QUOTAS)


@dataclass(frozen=True, slots=True)
class Found:
    rate: float  # records a second, of tables
    cpu_s: float  # of all processes, for these
    p50_ms: float  # of lone records


def measured(side: HighwaterSide, number: int) -> Found:
    table, lone = f"table-{number}", f"lone-{number}"
    side.create(table)
    before_s = _cpu_s(side)
    rate = side.produce_table(table)
    cpu_s = _cpu_s(side) - before_s
    side.create(lone)
    return Found(rate, cpu_s, side.latency(lone)[0])


def _cpu_s(side: HighwaterSide) -> float:
    """Of the cluster's processes, etcd's too, and of this one."""
    pids = [process.pid for process in side.cluster.processes.values() if process.pid is not None]
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in (*pids, os.getpid()))


def run(name: str, rounds: int) -> dict[str, float]:
    ratios, cpu, more = [], [], []
    with tempfile.TemporaryDirectory(prefix="highwater-bench-") as data, collector() as url:
        plain_settings = LocalClusterSettings(
            Path(data) / "plain", port=0, metrics_port=None, tcp_between_brokers=name == "tls"
        )
        plain = HighwaterSide(LocalCluster(plain_settings), Work())
        case = Case(name, Path(data) / name, url)
        try:
            plain.startup()
            case.side.startup()
            with case.clients():
                case.side.run(case.prepare())
            with scraped(case.side.cluster) if name == "guarded" else contextlib.nullcontext():
                for number in range(rounds):
                    found: dict[str, Found] = {}
                    for which in ("plain", name) if number % 2 == 0 else (name, "plain"):
                        print(f"{name}: {which} …", file=sys.stderr, flush=True)
                        with contextlib.nullcontext() if which == "plain" else case.clients():
                            found[which] = measured(plain if which == "plain" else case.side, number)
                    ratios.append(100 * found[name].rate / found["plain"].rate)
                    cpu.append(100 * found[name].cpu_s / found["plain"].cpu_s)
                    more.append(found[name].p50_ms - found["plain"].p50_ms)
        finally:
            case.side.stop()
            plain.stop()
    rates, costs, longer = ([round(each, 2) for each in found] for found in (ratios, cpu, more))
    print(f"{name}, of each pair: {rates} % of the rate, {costs} % of the CPU, {longer} ms more", file=sys.stderr)
    return {
        f"{name}_produce_table": statistics.median(ratios),
        f"{name}_cpu": statistics.median(cpu),
        f"{name}_latency_p50": statistics.median(more),
    }


CASES = ("tls", "guarded", "traced")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(CASES), help=f"some of {','.join(CASES)}")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # by way of what stops the clusters
    found: dict[str, float] = defaultdict(float)
    for name in arguments.only.split(","):
        if name not in CASES:
            parser.error(f"--only {name}: the cases are {','.join(CASES)}")
        found |= run(name, arguments.rounds)
    publish(results(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
