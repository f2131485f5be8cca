"""`highwater groups export`: the lags of groups, for Prometheus."""

from __future__ import annotations

import asyncio
import re
from time import monotonic, time
from typing import TYPE_CHECKING, Annotated

import typer

from highwater.console.output import DEFAULT_BOOTSTRAP, Bootstrap, errors, screen
from highwater.errors import UserError
from highwater.extras import needing

if TYPE_CHECKING:
    from highwater.cli.groups.lag_metrics import LagMetrics

_LOOKUP_MS = 5_000  # a partition without a leader holds a round up for no longer
_STALE_ROUNDS = 3


def export(
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="where /metrics is served")] = "127.0.0.1:9308",
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, help="from one look at the groups to the next")
    ] = 30,
    groups: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="a regular expression for whole ids; else: all groups")
    ] = None,
    by_partition: Annotated[
        bool, typer.Option("--by-partition", help="lags of each partition too, not of topics alone")
    ] = False,
    max_partitions: Annotated[
        int, typer.Option(min=1, help="offsets that are looked at; groups beyond, by id, are left out and counted")
    ] = 10_000,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Serve the lags of groups to Prometheus, until Ctrl-C: in offsets, and in seconds since the next record that is to
    be read came."""
    with needing("server", "highwater groups export"):
        from highwater.cli.groups.lag_metrics import LagMetrics
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise UserError(f"--listen is {listen!r}: write HOST:PORT, such as 0.0.0.0:9308")
    try:
        pattern = None if groups is None else re.compile(groups)
    except re.error as error:
        raise UserError(f"--groups {groups!r} is no regular expression: {error}") from None
    metrics = LagMetrics(by_partition=by_partition, stale_s=_STALE_ROUNDS * interval, clock_s=monotonic)
    try:
        metrics.metrics.serve(f"{host or '127.0.0.1'}:{port}")
    except OSError as error:
        raise UserError(f"--listen {listen}: {error.strerror or error}") from None
    screen.print(f"metrics at http://{host or '127.0.0.1'}:{port}/metrics, every {interval:g} s. Ctrl-C stops it.")
    asyncio.run(_export(metrics, bootstrap, pattern, interval, max_partitions))


async def _export(
    metrics: LagMetrics, bootstrap: str, pattern: re.Pattern[str] | None, interval: float, max_partitions: int
) -> None:
    from highwater.cli.groups.lag_rounds import LagRounds
    from highwater.client import Admin, HighwaterError

    async with Admin(bootstrap, request_timeout_ms=_LOOKUP_MS) as admin:
        rounds = LagRounds(admin, bootstrap, pattern, max_partitions, lambda: int(time() * 1000))
        while True:
            began = monotonic()
            try:
                metrics.took(await rounds.take(interval), monotonic() - began)
            except (HighwaterError, TimeoutError) as error:
                metrics.failed()
                errors.print(str(error) or "the groups were not told in time", soft_wrap=True)
            # As long as it took at least: a slow cluster is not asked all the time.
            await asyncio.sleep(max(interval - (monotonic() - began), min(monotonic() - began, interval)))
