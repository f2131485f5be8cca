"""`highwater up`: a whole cluster in the foreground."""

from __future__ import annotations

import shlex
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from highwater.console.output import errors, screen, table
from highwater.extras import needing


def up(
    brokers: Annotated[int, typer.Option(min=1, max=64, help="how many brokers")] = 3,
    data: Annotated[Path, typer.Option(help="where everything is kept")] = Path("highwater-data"),
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="of the first broker, the others follow; 0: free ones")
    ] = 9092,
    metrics_port: Annotated[
        int,
        typer.Option(
            min=-1, max=65535, help="of the first process's metrics, the others follow; 0: free ones, -1: no metrics"
        ),
    ] = 0,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="a setting for every service that knows it, e.g. log.segment.bytes=…"
        ),
    ] = None,
    secure: Annotated[
        bool,
        typer.Option("--secure", help="mutual TLS at every port, by certificates that are made in the data directory"),
    ] = False,
) -> None:
    """Start etcd, a controller and some brokers, and stop them all on Ctrl-C.

    A process that ends by itself is started again."""
    with needing("local", "highwater up"):
        from highwater.cli.local_authority import ENVIRONMENT
        from highwater.cli.local_cluster import LocalCluster, LocalClusterSettings

    stop = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    cluster = LocalCluster(
        LocalClusterSettings(
            data=data,
            brokers=brokers,
            port=port,
            settings=parse_settings(setting or []),
            secure=secure,
            metrics_port=None if metrics_port < 0 else metrics_port,
        )
    )
    started = time.monotonic()
    try:
        with errors.status("starting etcd …") as status:
            cluster.start(progress=lambda what: status.update(f"starting {what} …"), cancelled=stop.is_set)
    except KeyboardInterrupt:
        errors.print("interrupted while it was starting: everything is stopped")
        raise
    table(
        "",
        ["broker", "address", "log-storage", "replica-manager", "fetcher"],
        [
            [broker, address, *(f"pid {process.pid}" for process in cluster.broker_processes(broker))]
            for broker, address in enumerate(cluster.bootstrap.split(","), start=1)
        ],
    )
    if cluster.metrics_addresses:
        first = next(iter(cluster.metrics_addresses.values()))
        screen.print(
            f"metrics for Prometheus: http://{first}/metrics and those of the other processes, all in "
            f"{cluster.metrics_file} (file_sd_configs)"
        )
    screen.print(f"ready in {time.monotonic() - started:.1f} s, data in {data}. Ctrl-C stops everything.")
    if secure:
        screen.print(f"it takes those who show a certificate: . {shlex.quote(str(cluster.security / ENVIRONMENT))}")
    sys.stdout.flush()
    while not stop.wait(0.2):
        for name in cluster.restart_dead():
            errors.print(f"{name} ended (status {cluster.processes[name].exit_status}); starting it again")
    with errors.status("stopping …"):
        cluster.stop()
    screen.print(f"stopped after {_duration(time.monotonic() - started)}; the data stays in {data}")


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def parse_settings(items: list[str]) -> dict[str, str]:
    """`key=value` items, each key one that some service knows; raises `typer.BadParameter` otherwise."""
    from highwater.cli.local_cluster import OWN_SETTINGS, known_settings
    from highwater.configuration.kafka_keys import MEANINGLESS_KEYS
    from highwater.rpc.settings import field_name

    known = set().union(
        *(known_settings(package) for package in ("log_storage", "replica_manager", "fetcher", "controller"))
    )
    found = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals:
            raise typer.BadParameter(f"{item!r}: write --set key=value")
        field = field_name(key)
        if key in MEANINGLESS_KEYS:
            errors.print(f"{key} means nothing here, and is left out: {MEANINGLESS_KEYS[key]}")
            continue
        if field not in known and field not in OWN_SETTINGS:
            raise typer.BadParameter(f"no service has a setting named {key}")
        if field == "metrics_listen":
            raise typer.BadParameter("every process serves its metrics at a port of its own: see --metrics-port")
        if field in OWN_SETTINGS:
            raise typer.BadParameter(f"{key} is set by `highwater up` itself, for each process another")
        found[key] = value
    return found
