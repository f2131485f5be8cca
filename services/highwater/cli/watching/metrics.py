"""`highwater metrics`: the metrics of any process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from highwater.console.output import AsJson, json_line, table

DATA = Path("highwater-data")
DataDirectory = Annotated[Path, typer.Option(help="of the `highwater up` whose processes are meant")]


def metrics(
    process: Annotated[
        str, typer.Argument(metavar="[NAME]", help="a process of `highwater up`, `fetcher-1` say, or host:port")
    ] = "",
    match: Annotated[str, typer.Option(metavar="REGEX", help="only metrics with this in their names")] = "",
    buckets: Annotated[bool, typer.Option(help="the buckets of histograms, and when counters began, too")] = False,
    data: DataDirectory = DATA,
    json: AsJson = False,
) -> None:
    """Print a process's metrics; without a name, what processes there are.

    A process on another host, or in Kubernetes, is named by the host:port of its setting metrics.listen."""
    from highwater.cli.watching.exposition import local_addresses, parse, scrape

    try:
        wanted = re.compile(match)
    except re.error as error:
        raise typer.BadParameter(f"{match!r} is no regular expression: {error}") from None
    if not process:
        addresses = local_addresses(data)
        if json:
            for name, address in addresses.items():
                json_line({"process": name, "address": address})
        else:
            table(
                "", ["process", "metrics"], [[name, f"http://{address}/metrics"] for name, address in addresses.items()]
            )
        return
    shown = [
        sample
        for sample in parse(scrape(_address(process, data)))
        if wanted.search(sample.name) and (buckets or not sample.name.endswith(("_bucket", "_created")))
    ]
    if json:
        for sample in shown:
            json_line({"metric": sample.name, "labels": dict(sample.labels), "value": sample.value})
        return
    rows = [
        [sample.name, " ".join(f"{name}={value}" for name, value in sample.labels.items()), f"{sample.value:.12g}"]
        for sample in shown
    ]
    table("", ["metric", "labels", "value"], rows)


def _address(process: str, data: Path) -> str:
    from highwater.cli.watching.exposition import local_addresses

    if ":" in process:
        return process
    addresses = local_addresses(data)
    if process not in addresses:
        raise typer.BadParameter(f"there is no process {process!r}: there are {', '.join(addresses)}")
    return addresses[process]
