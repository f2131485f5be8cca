"""`highwater cluster`: who is there and how they are."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from highwater.console.counted import counted
from highwater.console.output import DEFAULT_BOOTSTRAP, MAX_BLOCK_MS, AsJson, Bootstrap, json_line, screen, table

Check = Annotated[
    bool,
    typer.Option(
        "--check", help="try the address of each broker that clients are told who come in by this bootstrap; "
        "exit status 1 where one does not lead to its broker"
    ),
]  # fmt: skip


def cluster(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, check: Check = False, json: AsJson = False) -> None:
    """Show the brokers, the controller and the state of the partitions."""
    from highwater.client.blocking import Admin

    if check:
        return _check(bootstrap, json)
    with Admin(bootstrap, max_block_ms=MAX_BLOCK_MS) as admin:
        found = admin.describe_cluster()
    if json:
        json_line(asdict(found))
        return
    table(
        f"cluster {found.cluster_id}, controller {found.controller_id} (epoch {found.controller_epoch})",
        ["broker", "address", "broker epoch", "leads", "replicas", "state"],
        [
            [
                one.broker_id,
                one.address,
                one.broker_epoch,
                one.leaders,
                one.replicas,
                "shutting down" if one.shutting_down else "tail lost" if one.tail_lost else "live",
            ]
            for one in found.brokers
        ],
    )
    screen.print(
        f"{counted(found.topics, 'topic')}, {counted(found.partitions, 'partition')}: "
        f"{found.offline_partitions} without a leader, {found.under_replicated_partitions} under-replicated"
    )


def _check(bootstrap: str, json: bool) -> None:
    from highwater.client.blocking import Admin

    with Admin(bootstrap, max_block_ms=MAX_BLOCK_MS) as admin:
        found = admin.check_brokers()
    wrong = [one for one in found if one.problem]
    if json:
        for one in found:
            json_line(asdict(one))
    else:
        rows = [
            [
                one.broker_id,
                one.address or "none",
                one.problem or f"answers, after {1000 * (one.seconds or 0):.0f} ms",
            ]
            for one in found
        ]
        table("", ["broker", "address for this client", "from here"], rows)
        if wrong:
            screen.print(
                f"{len(wrong)} of {len(found)} brokers cannot be used from here: mend their advertised.listeners (the "
                "chart's externalAccess.advertised), or the way to them"
            )
    if wrong:
        raise typer.Exit(1)
