"""A page of `highwater top`, for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from highwater.cli.watching.top_view import View
from highwater.console.counted import counted
from highwater.console.record_text import escaped_text

_WORDS = ("address", "state", "user", "client", "topic")


def drawn(page: View) -> RenderableType:
    cluster = page.cluster
    controller = "no controller" if cluster.controller_id is None else f"controller {cluster.controller_id}"
    parts: list[RenderableType] = [
        Text(f"cluster {cluster.cluster_id}, {controller} (epoch {cluster.controller_epoch})", style="bold"),
        Text(
            f"{counted(cluster.topics, 'topic')}, {counted(cluster.partitions, 'partition')}: "
            f"{cluster.offline_partitions} without a leader, {cluster.under_replicated_partitions} under-replicated",
            style="red" if cluster.offline_partitions else "yellow" if cluster.under_replicated_partitions else "",
        ),
        _table(
            ["broker", "address", "state", "leads", "replicas", "under-repl.", "ISR changes/s", "in/s", "out/s"],
            [
                [
                    row.broker,
                    row.address,
                    row.state,
                    row.leaders,
                    row.replicas,
                    row.under_replicated,
                    None if row.isr_changes is None else f"{row.isr_changes:.2g}",
                    _bytes(row.bytes_in),
                    _bytes(row.bytes_out),
                ]
                for row in page.brokers
            ],
        ),
        _table(
            ["topic", "records/s", "in/s", "out/s"],
            [
                [row.topic, f"{row.messages_in:,.0f}", _bytes(row.bytes_in), _bytes(row.bytes_out)]
                for row in page.topics
            ],
            more=page.more_topics,
        ),
        _table(
            ["group", "members", "lag", "seconds behind"],
            [[row.group, row.members, f"{row.lag:,}", f"{row.lag_s:,.1f}"] for row in page.groups],
            more=page.more_groups,
        ),
        *([_throttled(page)] if page.throttles else []),
        *(Text(escaped_text(note), style="yellow") for note in page.notes),
    ]
    return Group(*parts)


def _throttled(page: View) -> Table:
    return _table(
        ["throttled by", "user", "client", "topic", "told to pause", "partitions held back"],
        [
            [
                row.throttle,
                *(name or None for name in (row.user, row.client, row.topic)),
                None if row.paused is None else f"{row.paused:.0%}",
                row.partitions,
            ]
            for row in page.throttles
        ],
        more=page.more_throttles,
    )


def _table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, more: int = 0) -> Table:
    table = Table(header_style="bold", caption=f"and {more} more" if more else None, caption_justify="left")
    for index, column in enumerate(columns):
        named = index == 0 and column != "broker"
        table.add_column(column, justify="left" if named or column in _WORDS else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text("–" if cell is None else escaped_text(str(cell))) for cell in row))
    return table


def _bytes(value: float | None) -> str | None:
    """With a unit: `1.5 MB`."""
    if value is None:
        return None
    for unit in ("B", "kB", "MB"):
        if abs(value) < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"
