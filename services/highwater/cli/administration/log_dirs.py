"""`highwater log-dirs describe|move`: the log directories of brokers, and moves of replicas between them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

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
from highwater.errors import UserError

if TYPE_CHECKING:
    from highwater.client.admin.descriptions import LogDirDescription, LogDirReplica
    from highwater.client.blocking import Admin

app = typer.Typer(no_args_is_help=True, help="Log directories: what is in them, and moves between them.")

_POLL_S = 0.5


@app.command("describe")
def describe(
    broker: Annotated[list[int] | None, typer.Option(help="only this broker; may be repeated")] = None,
    topic: Annotated[str | None, typer.Option(help="only this topic's replicas")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: AsJson = False,
) -> None:
    """Show the log directories, whether they are in order, and the replicas in them."""
    from highwater.client.blocking import Admin

    with Admin(bootstrap, max_block_ms=MAX_BLOCK_MS) as admin:
        found = admin.describe_log_dirs(broker)
    if json:
        for log_dir in found:
            wanted = [asdict(replica) for replica in log_dir.replicas if topic in (None, replica.topic)]
            json_line(asdict(log_dir) | {"replicas": wanted})
        return
    table(
        "",
        ["broker", "directory", "state", "replicas", "MiB in logs", "GiB free", "GiB"],
        [
            [
                one.broker_id,
                one.path,
                _state(one),
                sum(1 for replica in one.replicas if not replica.is_future),
                round(sum(replica.size_bytes for replica in one.replicas) / 2**20, 1),
                round(one.usable_bytes / 2**30, 1),
                round(one.total_bytes / 2**30, 1),
            ]
            for one in found
        ],
    )
    if topic is not None:
        table(
            "",
            ["partition", "broker", "directory", "bytes", "state"],
            sorted(
                [replica.partition, one.broker_id, one.path, replica.size_bytes, _replica_state(replica)]
                for one in found
                for replica in one.replicas
                if replica.topic == topic
            ),
        )
    for one in found:
        if one.error:
            screen.print(f"broker {one.broker_id}: {one.error}", soft_wrap=True)


def _state(log_dir: LogDirDescription) -> str:
    return "offline" if log_dir.error else "full" if log_dir.full else "online"


def _replica_state(replica: LogDirReplica) -> str:
    if replica.is_future:
        return f"copy, {replica.offset_lag} offsets behind"
    return "offline" if replica.error else "online"


@app.command("move")
def move(
    topic: Topic,
    partition: Annotated[int, typer.Argument(help="the partition")],
    broker: Annotated[int, typer.Option(help="the broker whose replica it is")],
    to: Annotated[str, typer.Option(help="the directory, as in its log.dirs, or its directory.id")],
    wait: Annotated[bool, typer.Option(help="come back when the move is done")] = True,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Move a replica to another log directory of its broker. It serves all the while. To the directory where it is:
    end a move that is under way."""
    from highwater.client.blocking import Admin

    with Admin(bootstrap, max_block_ms=MAX_BLOCK_MS) as admin:
        [outcome] = admin.alter_replica_log_dirs({((topic, partition), broker): to}).values()
        if outcome is not None:
            raise outcome
        if not wait:
            screen.print(f"{topic}-{partition} of broker {broker} moves to {to}")
            return
        place = _follow(admin, topic, partition, broker)
    if to not in place:
        raise UserError(f"{topic}-{partition} stays in {place[0]}: the move was given up, see log-storage's log")
    screen.print(f"{topic}-{partition} of broker {broker} is in {place[0]}")


def _follow(admin: Admin, topic: str, partition: int, broker: int) -> tuple[str, str]:
    """Waits for the end of a move; path and id of the directory where the replica is then. Raises `UserError` where
    the replica is gone meanwhile."""
    from rich.progress import DownloadColumn, Progress, TransferSpeedColumn

    columns = [*Progress.get_default_columns(), DownloadColumn(), TransferSpeedColumn()]
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as progress:
        task = progress.add_task(f"{topic}-{partition}", total=None)
        while True:
            dirs = admin.describe_log_dirs([broker])
            current = _find(dirs, topic, partition, future=False)
            copy = _find(dirs, topic, partition, future=True)
            if current is None:
                raise UserError(
                    f"broker {broker} has no replica of {topic}-{partition} any more: was the topic deleted?"
                )
            if copy is None:
                return current[0].path, current[0].directory_id
            progress.update(task, completed=copy[1].size_bytes, total=current[1].size_bytes)
            time.sleep(_POLL_S)


def _find(
    dirs: Iterable[LogDirDescription], topic: str, partition: int, *, future: bool
) -> tuple[LogDirDescription, LogDirReplica] | None:
    for log_dir in dirs:
        for replica in log_dir.replicas:
            if (replica.topic, replica.partition, replica.is_future) == (topic, partition, future):
                return log_dir, replica
    return None
