"""`highwater replicas verify`."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn

from highwater.cli.topic_argument import Topic
from highwater.console.output import (
    DEFAULT_BOOTSTRAP,
    MAX_BLOCK_MS,
    AsJson,
    Bootstrap,
    errors,
    json_line,
    screen,
    table,
)

if TYPE_CHECKING:
    from highwater.client import PartitionVerification, ReplicaVerification

app = typer.Typer(no_args_is_help=True, help="Replicas: whether they hold the same.")


@app.callback()
def replicas() -> None:
    """Replicas: whether they hold the same."""


@app.command("verify")
def verify(
    topic: Topic,
    partition: Annotated[list[int] | None, typer.Option(help="only this partition; may be repeated")] = None,
    check_crcs: Annotated[
        bool, typer.Option("--check-crcs", help="read the payloads too: finds what is damaged on a disk")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: AsJson = False,
) -> None:
    """Compare all replicas, batch by batch, up to the high watermark. Exit status 1 where one differs from the leader,
    is damaged, or cannot be read."""
    from highwater.client.blocking import Admin

    found = []
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), MofNCompleteColumn())
    with ExitStack() as stack:
        admin = stack.enter_context(Admin(bootstrap, max_block_ms=MAX_BLOCK_MS))
        numbers = partition or range(len(admin.describe_topics([topic])[0].partitions))
        bars = stack.enter_context(Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal))
        whole = bars.add_task("partitions", total=len(numbers))
        bar = bars.add_task(topic, total=None)
        for number in numbers:
            bars.reset(bar, description=f"{topic}-{number}", total=None)

            def moved(offset: int, high_watermark: int) -> None:
                bars.update(bar, completed=offset, total=high_watermark)

            verified = admin.verify_replicas(topic, number, check_crcs=check_crcs, progress=moved)
            found.append(verified)
            bars.advance(whole)
            if json:
                json_line(_plain(verified))
    if not json:
        _show(topic, found)
    if not all(verified.ok for verified in found):
        raise typer.Exit(1)


def _plain(verified: PartitionVerification) -> dict[str, Any]:
    plain = asdict(verified)
    for replica, shown in zip(verified.replicas, plain["replicas"], strict=True):
        shown["error"] = None if replica.error is None else str(replica.error)
        shown["ok"] = replica.ok
    return plain | {"ok": verified.ok}


def _show(topic: str, found: list[PartitionVerification]) -> None:
    table(
        topic,
        ["partition", "up to", "broker", "role", "log start", "log end", "batches compared", "result"],
        [
            [
                verified.partition,
                verified.high_watermark,
                replica.broker_id,
                _role(replica),
                replica.log_start_offset,
                replica.log_end_offset,
                "reference" if replica.broker_id == verified.reference else replica.compared,
                _result(replica),
            ]
            for verified in found
            for replica in verified.replicas
        ],
    )
    for verified in found:
        for replica in verified.replicas:
            where = f"{topic}-{verified.partition}, broker {replica.broker_id}"
            if replica.error is not None:
                screen.print(f"{where}: {replica.error}", soft_wrap=True)
            for problem in replica.problems:
                screen.print(f"{where}: {problem}", soft_wrap=True)
            if replica.more_problems:
                screen.print(f"{where}: and {replica.more_problems} more")
            for damaged in replica.damaged:
                offsets = f"offsets {damaged.first_offset} to {damaged.last_offset}"
                screen.print(f"{where}: {offsets} are damaged: {damaged.problem}", soft_wrap=True)


def _role(replica: ReplicaVerification) -> str:
    if replica.leads:
        return "leader"
    return "in sync" if replica.in_sync else "out of sync"


def _result(replica: ReplicaVerification) -> str:
    if replica.error is not None:
        return "not read"
    if replica.damaged:
        return "damaged"
    if replica.problems:
        return "differs"
    return f"the same, {replica.behind} behind" if replica.behind else "the same"
