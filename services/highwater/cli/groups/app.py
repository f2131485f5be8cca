"""`highwater groups list|describe|reset|delete|export`."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from enum import StrEnum
from time import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from highwater.cli.groups.export import export
from highwater.cli.groups.group_argument import Group
from highwater.cli.groups.reset import reset
from highwater.console.counted import counted
from highwater.console.output import DEFAULT_BOOTSTRAP, MAX_BLOCK_MS, AsJson, Bootstrap, json_line, screen, table

if TYPE_CHECKING:
    from highwater.cli.groups.lags import PartitionLag
    from highwater.client import GroupDescription

app = typer.Typer(no_args_is_help=True, help="List, describe, reset, delete and export consumer groups.")
app.command("reset")(reset)
app.command("export")(export)

_LOOKUP_MS = 10_000  # a partition without a leader holds a description up for no longer


class State(StrEnum):
    EMPTY = "empty"
    ASSIGNING = "assigning"
    RECONCILING = "reconciling"
    STABLE = "stable"


@app.command("list")
def list_(
    state: Annotated[list[State] | None, typer.Option(help="only groups in this state; may be repeated")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: AsJson = False,
) -> None:
    """List the groups."""
    from highwater.client.blocking import Admin

    with Admin(bootstrap, max_block_ms=MAX_BLOCK_MS) as admin:
        groups = admin.list_groups([each.value for each in state] if state else None)
    if json:
        for one in groups:
            json_line(asdict(one))
        return
    table("", ["group", "state", "members"], [[one.group, one.state, one.members] for one in groups])


@app.command("describe")
def describe(
    group: Group,
    watch: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0.1, help="again every so many seconds, until Ctrl-C")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: AsJson = False,
) -> None:
    """Show a group's members, what they have, and how far it is behind: in offsets, and in seconds by the age of the
    next record that it has to read."""
    asyncio.run(_describe(group, watch, bootstrap, json=json))


async def _describe(name: str, watch: float | None, bootstrap: str, *, json: bool) -> None:
    from highwater.client import Admin, RetriableError

    async with Admin(bootstrap, max_block_ms=MAX_BLOCK_MS, request_timeout_ms=_LOOKUP_MS) as admin:
        while True:
            try:
                await _describe_once(admin, name, bootstrap, json=json, clear=watch is not None)
            except RetriableError as error:
                if watch is None:
                    raise
                screen.print(str(error), markup=False, soft_wrap=True)  # the coordinator moves, say
            if watch is None:
                return
            await asyncio.sleep(watch)


async def _describe_once(admin: Any, name: str, bootstrap: str, *, json: bool, clear: bool) -> None:
    from highwater.cli.groups.lags import find_lags

    (group,) = await admin.describe_groups([name], include_offsets=True)
    if group.error is not None:
        raise group.error
    lags, said = await find_lags(admin, group, bootstrap)
    now_ms = int(time() * 1000)
    if json:
        json_line(_as_json(group, lags, now_ms))
        return
    if clear:
        screen.clear()  # of a terminal
    _show(group, lags, now_ms)
    for sentence in said:
        screen.print(sentence, markup=False, soft_wrap=True)


def _as_json(group: GroupDescription, lags: list[PartitionLag], now_ms: int) -> dict[str, Any]:
    return {
        "group": group.group,
        "state": group.state,
        "group_epoch": group.group_epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor": group.assignor,
        "members": [asdict(member) for member in group.members],
        "partitions": [
            {
                "topic": one.partition.topic,
                "partition": one.partition.partition,
                "committed": one.committed,
                "end": one.end,
                "lag": one.lag,
                "lag_seconds": one.seconds(now_ms),
                "member_id": one.member_id,
            }
            for one in lags
        ],
    }


def _show(group: GroupDescription, lags: list[PartitionLag], now_ms: int) -> None:
    members = {member.member_id: member for member in group.members}
    table(
        f"group {group.group}  {group.state}, epoch {group.group_epoch}, assignor {group.assignor or 'none'}",
        ["member", "client", "host", "instance", "epoch", "state", "has", "gives up"],
        [
            [
                one.member_id,
                one.client_id,
                one.client_host,
                one.instance_id,
                one.member_epoch,
                one.state,
                _named(one.assignment),
                _named(one.revoking),
            ]
            for one in group.members
        ],
    )
    table(
        "",
        ["topic", "partition", "committed", "end", "lag", "lag in s", "client", "host"],
        [
            [
                *one.partition,
                _known(one.committed),
                _known(one.end),
                _known(one.lag),
                _known(one.seconds(now_ms)),
                *((owner.client_id, owner.client_host) if (owner := members.get(one.member_id)) else ("", "")),
            ]
            for one in lags
        ],
    )
    total = sum(one.lag or 0 for one in lags)
    screen.print(f"{counted(len(group.members), 'member')}, {counted(total, 'offset')} behind")


def _known(number: float | None) -> float | str:
    return "" if number is None else number if isinstance(number, int) else round(number, 1)


def _named(partitions: Any) -> str:
    """`events: 0,1  orders: 2`"""
    by_topic: dict[str, list[str]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(str(partition))
    return "  ".join(f"{topic}: {','.join(numbers)}" for topic, numbers in by_topic.items())


@app.command("delete")
def delete(group: Group, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Delete a group without members, and its committed offsets."""
    from highwater.client.blocking import Admin

    with Admin(bootstrap, max_block_ms=MAX_BLOCK_MS) as admin:
        [outcome] = admin.delete_groups([group]).values()
    if outcome is not None:
        raise outcome
    screen.print(f"deleted {group}", markup=False)
