"""The endpoint: on its address alone, bounded, and gone when it is closed."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from prometheus_client import generate_latest

from highwater.errors import UserError
from highwater.telemetry import metrics_server
from highwater.telemetry.metrics import Metrics
from highwater.telemetry.metrics_server import exposition

ANSWER_S = 10


@dataclass
class Settings:
    metrics_listen: str = ""
    metrics_reporters: list[str] = field(default_factory=list)
    metrics_interval_s: float = 10.0
    csv_metrics_dir: str = ""
    csv_metrics_reporter_enabled: bool = True


@pytest.fixture
def metrics() -> Iterator[Metrics]:
    made = Metrics("log-storage")
    made.publish(Settings("127.0.0.1:0"), "log-storage-1")  # type: ignore[arg-type]
    with closing(made):
        yield made


def scrape(address: str, path: str = "/metrics", method: str = "GET") -> str:
    with urlopen(Request(f"http://{address}{path}", method=method), timeout=ANSWER_S) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        return str(answer.read().decode())


def test_it_serves_what_there_is_and_what_the_process_costs(metrics: Metrics) -> None:
    metrics.gauge("logs", "Logs").set(3)
    text = scrape(metrics.address)
    assert "\nhighwater_log_storage_logs 3.0\n" in text
    for name in ("process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"):
        assert f"\n{name} " in text


def test_everything_else_is_refused(metrics: Metrics) -> None:
    for path, method, status in (("/", "GET", 404), ("/metrics/x", "GET", 404), ("/metrics", "POST", 501)):
        with pytest.raises(HTTPError) as refusal:
            scrape(metrics.address, path, method)
        assert refusal.value.code == status


def test_it_is_reached_at_its_address_alone(metrics: Metrics) -> None:
    port = int(metrics.address.rpartition(":")[2])
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", port), timeout=ANSWER_S)


def test_without_a_host_it_is_on_loopback() -> None:
    made = Metrics("fetcher")
    made.publish(Settings(":0"), "fetcher-1")  # type: ignore[arg-type]
    with closing(made):
        assert made.address.startswith("127.0.0.1:")


def test_a_taken_port_is_one_sentence(metrics: Metrics) -> None:
    other = Metrics("fetcher")
    with pytest.raises(UserError, match=rf"cannot serve metrics on {metrics.address}: Address already in use"):
        other.publish(Settings(metrics.address), "fetcher-1")  # type: ignore[arg-type]


@pytest.mark.parametrize("listen", ["127.0.0.1:port", "127.0.0.1:70000", "no.such.host.invalid:1"])
def test_a_bad_address_is_one_sentence(listen: str) -> None:
    with pytest.raises(UserError, match="metrics.listen"):
        Metrics("fetcher").publish(Settings(listen), "fetcher-1")  # type: ignore[arg-type]


def test_without_an_address_nothing_listens() -> None:
    made = Metrics("fetcher")
    made.publish(Settings(), "fetcher-1")  # type: ignore[arg-type]
    assert made.address == ""


def test_closed_it_is_gone(metrics: Metrics) -> None:
    address = metrics.address
    metrics.close()
    host, _, port = address.partition(":")
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((host, int(port)), timeout=ANSWER_S)


def test_who_holds_connections_has_few_of_them(metrics: Metrics, monkeypatch: pytest.MonkeyPatch) -> None:
    host, _, port = metrics.address.partition(":")
    before = threading.active_count()
    silent = [socket.create_connection((host, int(port)), timeout=ANSWER_S) for _ in range(50)]
    try:
        # Those beyond the limit are closed at once; of the others nobody hears anything.
        for connection in silent[metrics_server.MAX_REQUESTS :]:
            assert connection.recv(1) == b""
        assert threading.active_count() <= before + metrics_server.MAX_REQUESTS
    finally:
        for connection in silent:
            connection.close()


def test_a_silent_client_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server._Handler, "timeout", 0.05)
    made = Metrics("fetcher")
    made.publish(Settings("127.0.0.1:0"), "fetcher-1")  # type: ignore[arg-type]
    host, _, port = made.address.partition(":")
    with closing(made), socket.create_connection((host, int(port)), timeout=ANSWER_S) as connection:
        assert connection.recv(1) == b""


def test_many_values_are_those_of_one_text() -> None:
    made = Metrics("fetcher")
    lags = [((f't"{number}', str(number)), float(number)) for number in range(1_000)]
    made.read_gauge("partition_lag_records", "Lag", ("topic", "partition"), lambda: lags)
    made.read_counter("bytes", "B", ("topic", "partition"), lambda: lags)
    made.counter("few", "F").inc()
    assert exposition(made.registry) == generate_latest(made.registry)


async def test_ten_thousand_partitions_do_not_hold_the_event_loop() -> None:
    """A thread that is busy all the time would have the loop wait 5 ms for each turn of its own."""
    made = Metrics("fetcher")
    lags = [((f"topic-{number % 100}", str(number)), float(number)) for number in range(10_000)]
    for name in ("partition_lag_records", "partition_size_bytes"):
        made.read_gauge(name, "L", ("topic", "partition"), lambda: lags)
    made.publish(Settings("127.0.0.1:0"), "fetcher-1")  # type: ignore[arg-type]
    with closing(made):
        scraping = asyncio.create_task(asyncio.to_thread(scrape, made.address))
        turns, began_s = 0, time.perf_counter()
        while not scraping.done():
            await asyncio.to_thread(int)  # as what waits for a thread or a socket: it gives the lock away each time
            turns += 1
        took_s = time.perf_counter() - began_s
        assert len((await scraping).splitlines()) > 20_000
    assert turns > took_s / 0.005, (turns, took_s)


def test_csv_alone_may_be_turned_off(tmp_path: Path) -> None:
    made = Metrics("fetcher")
    settings = Settings(metrics_reporters=["csv"], csv_metrics_dir=str(tmp_path), csv_metrics_reporter_enabled=False)
    made.publish(settings, "fetcher-1")  # type: ignore[arg-type]
    made.close()
    assert list(tmp_path.iterdir()) == []
