"""`highwater groups reset`: where a group without members goes on."""

from __future__ import annotations

from collections.abc import Sequence
from time import time
from typing import TYPE_CHECKING, Annotated

import typer

from highwater.cli.groups.group_argument import Group
from highwater.console.counted import counted
from highwater.console.output import DEFAULT_BOOTSTRAP, MAX_BLOCK_MS, AsJson, Bootstrap, json_line, screen, table
from highwater.errors import ErrorCode, UserError

if TYPE_CHECKING:
    from highwater.cli.groups.reset_positions import NamedPartitions, Reset, ResetPosition
    from highwater.client import TopicPartition
    from highwater.client.blocking import Admin


def reset(
    group: Group,
    to: Annotated[
        str | None, typer.Option(metavar="POSITION", help="earliest, latest, latest-N or earliest+N, N offsets on")
    ] = None,
    to_offset: Annotated[int | None, typer.Option(metavar="N", min=0, help="this offset")] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            "--to-datetime",
            "--to-time",
            metavar="TIME",
            help="the first record at or after it: a time before now (-1h) or a time (2026-11-25T10:00:00Z)",
        ),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC[:0,1]", help="of this topic, or of these partitions of it; may be repeated"),
    ] = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="of all partitions of which the group has committed something")
    ] = False,
    execute: Annotated[bool, typer.Option("--execute", help="do it, and not only show what would be done")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: AsJson = False,
) -> None:
    """Set where a group goes on, while it has no members; without --execute show what that would do. A group that does
    not exist is made."""
    from highwater.cli.groups.reset_positions import parse_named_partitions, parse_reset_position
    from highwater.client.blocking import Admin

    if bool(topic) == all_topics:
        raise typer.BadParameter("say what to reset: --topic, or --all-topics")
    wanted = parse_reset_position(to, to_offset, to_datetime)
    named = [parse_named_partitions(each) for each in topic or ()]
    with Admin(bootstrap, max_block_ms=MAX_BLOCK_MS) as admin:
        _check_no_members(admin, group)
        resets = _planned(admin, group, wanted, named)
        if execute:
            _execute(admin, group, resets)
    _show(group, resets, execute=execute, json=json)


def _check_no_members(admin: Admin, group: str) -> None:
    """Raises `UserError` where the group has members. One that does not exist has none."""
    (found,) = admin.describe_groups([group])
    if found.error is not None and found.error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
        raise found.error
    if found.members:
        whose = ", ".join(sorted({member.client_id for member in found.members})[:3])
        raise UserError(
            f"group {group!r} has {counted(len(found.members), 'member')} ({whose}), which would go on where they are: "
            "stop them first"
        )


def _planned(admin: Admin, group: str, wanted: ResetPosition, named: Sequence[NamedPartitions]) -> list[Reset]:
    from highwater.cli.groups.reset_positions import planned, time_asked
    from highwater.client.scan.bounds import LogEnds
    from highwater.client.topic_partition import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP

    committed = {one: each.offset for one, each in admin.list_group_offsets(group).items()}
    partitions = _partitions(admin, named) if named else sorted(committed)
    if not partitions:
        raise UserError(f"group {group!r} has committed nothing: name what to reset by --topic")
    starts = admin.list_offsets(dict.fromkeys(partitions, EARLIEST_TIMESTAMP))
    ends = admin.list_offsets(dict.fromkeys(partitions, LATEST_TIMESTAMP))
    logs = {one: LogEnds(starts[one].offset, max(ends[one].offset, starts[one].offset)) for one in partitions}
    asked = time_asked(wanted, int(time() * 1000))
    of_times = {} if asked is None else admin.list_offsets(dict.fromkeys(partitions, asked))
    found = {one: None if each.offset < 0 else each.offset for one, each in of_times.items()}
    return planned(wanted, partitions, committed, logs, found)


def _partitions(admin: Admin, named: Sequence[NamedPartitions]) -> list[TopicPartition]:
    from highwater.client import TopicPartition

    described = admin.describe_topics(list(dict.fromkeys(each.topic for each in named)))
    totals = {each.topic: len(each.partitions) for each in described}
    # A partition that there is not: `list_offsets` says so.
    return list(
        dict.fromkeys(
            TopicPartition(each.topic, number)
            for each in named
            for number in (range(totals[each.topic]) if each.partitions is None else each.partitions)
        )
    )


def _execute(admin: Admin, group: str, resets: Sequence[Reset]) -> None:
    outcomes = admin.alter_offsets(group, {each.partition: each.after for each in resets})
    failed = [str(error) for error in outcomes.values() if error is not None]
    if failed:
        raise UserError(
            f"group {group!r}: {len(failed)} of {counted(len(resets), 'partition')} not reset: {'; '.join(failed[:3])}"
        )


def _show(group: str, resets: Sequence[Reset], *, execute: bool, json: bool) -> None:
    if json:
        for each in resets:
            topic, partition = each.partition
            json_line(
                {
                    "topic": topic,
                    "partition": partition,
                    "before": each.before,
                    "after": each.after,
                    "log_start": each.log.start,
                    "log_end": each.log.end,
                    "executed": execute,
                }
            )
        return
    table(
        group,
        ["topic", "partition", "before", "after", "log start", "log end"],
        [
            [*each.partition, "none" if each.before is None else each.before, each.after, each.log.start, each.log.end]
            for each in resets
        ],
    )
    changed = counted(sum(each.changes for each in resets), "partition")
    screen.print(
        f"reset {changed} of group {group}" if execute else f"{changed} would change; nothing was done: add --execute",
        markup=False,
    )
