"""`highwater top`: the cluster, live in a terminal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from highwater.cli.watching.metrics import DATA, DataDirectory
from highwater.console.output import DEFAULT_BOOTSTRAP, MAX_BLOCK_MS, AsJson, Bootstrap, json_line, screen
from highwater.errors import UserError

if TYPE_CHECKING:
    from highwater.cli.groups.lag_rounds import LagRounds
    from highwater.cli.watching.exposition import Sample
    from highwater.cli.watching.top_view import Look, View
    from highwater.client import Admin

MOST_LAGS = 1_000  # partitions of groups in one look
MOST_ENDS = 2_000  # partitions whose ends are asked for, where there are no metrics
LOOK_S = 10.0  # for one look


Addresses = Mapping[int, Sequence[str]]


def top(
    interval: Annotated[float, typer.Option(metavar="SECONDS", min=0.2, help="between two looks")] = 2.0,
    rows: Annotated[int, typer.Option(min=1, max=1000, help="topics, and groups, that are shown")] = 10,
    once: Annotated[bool, typer.Option("--once", help="print one page, of two looks, and end")] = False,
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            metavar="BROKER=HOST:PORT", help="metrics.listen of a replica-manager or a fetcher; may be repeated"
        ),
    ] = None,
    data: DataDirectory = DATA,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: AsJson = False,
) -> None:
    """Show brokers, the hottest topics, the lag of groups and what is throttled, until Ctrl-C.

    Traffic and throttles are known by the metrics of replica-managers, and of fetchers those of followers: of the
    `highwater up` in --data, or those that --metrics names. Without any, topics are ranked by records a second, from
    the ends of their logs."""
    addresses, bootstrap = _found(metrics or [], data, bootstrap)
    if once or json:
        page = asyncio.run(_page(bootstrap, addresses, interval, rows))
        if json:
            json_line(asdict(page))
        else:
            from highwater.cli.watching.top_drawing import drawn

            screen.print(drawn(page))
        return
    asyncio.run(_live(bootstrap, addresses, interval, rows))


def _found(given: list[str], data: Path, bootstrap: str) -> tuple[Addresses, str]:
    """The addresses of replica-managers' and fetchers' metrics, by broker, and a bootstrap."""
    from highwater.cli.watching.exposition import local_addresses, local_cluster

    if given:
        return _together(map(_named, given)), bootstrap
    try:
        told = local_cluster(data)
        if bootstrap == DEFAULT_BOOTSTRAP:
            bootstrap = str(told["bootstrap"])
        if bootstrap != told["bootstrap"]:
            return {}, bootstrap
        addresses = local_addresses(data)
    except UserError:
        if data != DATA:
            raise
        return {}, bootstrap
    wanted = (name for name in addresses if name.startswith(("replica-manager-", "fetcher-")))
    return _together((int(name.rpartition("-")[2]), addresses[name]) for name in wanted), bootstrap


def _together(named: Iterable[tuple[int, str]]) -> Addresses:
    together: dict[int, list[str]] = {}
    for broker, address in named:
        together.setdefault(broker, []).append(address)
    return together


def _named(text: str) -> tuple[int, str]:
    broker, equals, address = text.partition("=")
    if not equals or not broker.isdecimal() or ":" not in address:
        raise typer.BadParameter(f"--metrics {text}: write BROKER=HOST:PORT")
    return int(broker), address


async def _page(bootstrap: str, addresses: Addresses, interval_s: float, most: int) -> View:
    async for page in _pages(bootstrap, addresses, interval_s, most):
        return page
    raise AssertionError("there are pages without end")


async def _live(bootstrap: str, addresses: Addresses, interval_s: float, most: int) -> None:
    from rich.live import Live

    from highwater.cli.watching.top_drawing import drawn

    with Live(console=screen, screen=screen.is_terminal, auto_refresh=False) as live:
        async for page in _pages(bootstrap, addresses, interval_s, most):
            live.update(drawn(page), refresh=True)


async def _pages(bootstrap: str, addresses: Addresses, interval_s: float, most: int) -> AsyncIterator[View]:
    """One after each interval, without end. Raises `HighwaterError` where there is no cluster at first."""
    from highwater.cli.groups.lag_rounds import LagRounds
    from highwater.cli.watching.top_view import view
    from highwater.client import Admin

    async with Admin(bootstrap, max_block_ms=MAX_BLOCK_MS) as admin:
        rounds = LagRounds(admin, bootstrap, None, MOST_LAGS, lambda: int(1000 * time.time()))
        before = await _look(admin, rounds, addresses, time.monotonic)
        while True:
            await asyncio.sleep(interval_s)
            now = await _look(admin, rounds, addresses, time.monotonic)
            yield view(before, now, most=most)
            before = now


async def _look(admin: Admin, rounds: LagRounds, addresses: Addresses, clock_s: Callable[[], float]) -> Look:
    """A look at the cluster; a note says what could not be found out within `LOOK_S`. Its cost does not grow with the
    partitions, but for those of groups, up to `MOST_LAGS`, and for `MOST_ENDS` where there are no metrics."""
    from highwater.cli.watching.top_view import Look
    from highwater.client import HighwaterError

    notes: list[str] = []
    cluster = await admin.describe_cluster()
    metrics = await _metrics(addresses, notes)
    ends: Mapping[str, int] = {}
    if not addresses:
        if cluster.partitions > MOST_ENDS:
            notes.append(f"traffic is not known: there are {cluster.partitions} partitions, and --metrics names none")
        else:
            ends = await _ends(admin, notes)
    at_s = clock_s()
    lags = None
    try:
        lags = await rounds.take(LOOK_S)
    except (HighwaterError, TimeoutError) as error:
        notes.append(f"the lag of groups is not known: {error or 'not told in time'}")
    return Look(at_s, cluster, metrics, ends, lags, notes)


async def _metrics(addresses: Addresses, notes: list[str]) -> dict[int, list[Sample]]:
    """By broker id."""
    from highwater.cli.watching.exposition import NotServedError, parse, scrape

    async def of(broker: int, address: str) -> tuple[int, list[Sample]]:
        try:
            return broker, list(parse(await asyncio.to_thread(scrape, address)))
        except NotServedError as error:
            notes.append(f"broker {broker}: {error}")
            return broker, []

    answers = await asyncio.gather(*(of(broker, address) for broker, each in addresses.items() for address in each))
    together: dict[int, list[Sample]] = {}
    for broker, samples in answers:
        if samples:
            together.setdefault(broker, []).extend(samples)
    return together


async def _ends(admin: Admin, notes: list[str]) -> dict[str, int]:
    from highwater.cli.groups.lags import find_ends
    from highwater.client import TopicPartition

    topics = await admin.describe_topics(await admin.list_topics())
    wanted = [TopicPartition(each.topic, one.partition) for each in topics for one in each.partitions]
    ends, said = await find_ends(admin, wanted)
    notes += said[:3]
    together: dict[str, int] = {}
    for partition, end in ends.items():
        together[partition.topic] = together.get(partition.topic, 0) + end
    return together
