"""`highwater cluster`: who is there and how they are."""

from __future__ import annotations

from dataclasses import asdict

from highwater.cli.output import DEFAULT_BOOTSTRAP, MAX_BLOCK_MS, AsJson, Bootstrap, json_line, screen, table


def cluster(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: AsJson = False) -> None:
    """Show the brokers, the controller and the state of the partitions."""
    from highwater.client.blocking import Admin

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
        f"{found.topics} topics, {found.partitions} partitions: {found.offline_partitions} without a leader, "
        f"{found.under_replicated_partitions} under-replicated"
    )
