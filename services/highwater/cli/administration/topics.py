"""`highwater topics create|apply|list|describe|alter|elect-leaders|delete`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from highwater.cli.topic_argument import Topic
from highwater.console.counted import counted
from highwater.console.output import DEFAULT_BOOTSTRAP, MAX_BLOCK_MS, AsJson, Bootstrap, json_line, screen, table
from highwater.console.record_text import escaped_text

app = typer.Typer(no_args_is_help=True, help="Create, list, describe, alter and delete topics.")


@app.command("create")
def create(
    topic: Topic,
    partitions: Annotated[int | None, typer.Option(help="default: num.partitions of the cluster")] = None,
    replication_factor: Annotated[int | None, typer.Option(help="default: default.replication.factor")] = None,
    config: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="e.g. min.insync.replicas=2; may be repeated")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Create a topic and wait until it takes records."""
    from highwater.client.blocking import Admin

    settings = key_values(config)
    with Admin(bootstrap, max_block_ms=MAX_BLOCK_MS) as admin:
        made = admin.create_topic(topic, partitions, replication_factor, config=settings)
    screen.print(
        f"created {topic}: {counted(made.partitions, 'partition')}, replication factor {made.replication_factor}"
    )


@app.command("apply")
def apply(
    file: Annotated[
        Path, typer.Argument(help='JSON: [{"name": …, "partitions": …, "replicationFactor": …, "config": {…}}, …]')
    ],
    wait: Annotated[float, typer.Option(min=0, help="seconds that the cluster may take to answer")] = 0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Make topics as a file declares them: create those that are missing, add partitions, set configuration. Nothing is
    ever deleted or taken away."""
    from highwater.cli.administration import declared_topics
    from highwater.client.blocking import Admin

    declared = declared_topics.read_declared(file)
    failed = False
    with Admin(bootstrap, max_block_ms=wait * 1000) as admin:
        for said, error in declared_topics.apply(admin, declared):
            screen.print(said)
            failed = failed or error is not None
    if failed:
        raise typer.Exit(1)


def key_values(items: list[str] | None) -> dict[str, str]:
    settings = {}
    for item in items or []:
        key, equals, value = item.partition("=")
        if not equals:
            raise typer.BadParameter(f"{item!r}: write --config key=value")
        settings[key] = value
    return settings


@app.command("list")
def list_(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: AsJson = False) -> None:
    """List the topics."""
    from highwater.client.blocking import Admin

    with Admin(bootstrap, max_block_ms=MAX_BLOCK_MS) as admin:
        names = admin.list_topics()
        topics = admin.describe_topics(names) if names else []
    if json:
        for one in topics:
            json_line({"topic": one.topic, "partitions": len(one.partitions), "topic_id": one.topic_id})
        return
    table(
        "",
        ["topic", "partitions", "replication factor", "without leader", "under-replicated"],
        [
            [
                one.topic,
                len(one.partitions),
                max((len(p.replicas) for p in one.partitions), default=0),
                sum(p.leader is None for p in one.partitions),
                sum(len(p.isr) < len(p.replicas) for p in one.partitions),
            ]
            for one in topics
        ],
    )


@app.command("describe")
def describe(
    topic: Topic,
    config: Annotated[bool, typer.Option("--config", help="its configuration instead, defaults too")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: AsJson = False,
) -> None:
    """Show a topic's partitions: leader, leader epoch, replicas, in-sync replicas."""
    from highwater.client.blocking import Admin

    if config:
        _describe_config(topic, bootstrap, json=json)
        return
    with Admin(bootstrap, max_block_ms=MAX_BLOCK_MS) as admin:
        (found,) = admin.describe_topics([topic])
    if json:
        json_line(asdict(found))
        return
    settings = " ".join(f"{key}={value}" for key, value in sorted(found.config.items()))
    table(
        f"{found.topic}  id {found.topic_id.hex()}  {settings}",
        ["partition", "leader", "leader epoch", "replicas", "in sync", "offline"],
        [
            [
                p.partition,
                "none" if p.leader is None else p.leader,
                p.leader_epoch,
                p.replicas,
                p.isr,
                p.offline_replicas or "",
            ]
            for p in found.partitions
        ],
    )


def _describe_config(topic: str, bootstrap: str, *, json: bool) -> None:
    from highwater.client.blocking import Admin

    with Admin(bootstrap, max_block_ms=MAX_BLOCK_MS) as admin:
        found = admin.describe_topic_config(topic)
    if json:
        for key, entry in found.items():
            json_line({"key": key, "value": entry.value, "source": entry.source})
        return
    table(
        topic,
        ["key", "value", "set by"],
        [[key, "" if entry.value is None else entry.value, entry.source] for key, entry in found.items()],
    )


@app.command("alter")
def alter(
    topic: Topic,
    partitions: Annotated[
        int | None, typer.Option(help="how many it is to have; more than it has, and keys may move to other partitions")
    ] = None,
    config: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="e.g. retention.ms=3600000; may be repeated")
    ] = None,
    delete_config: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="back to the cluster's default; may be repeated")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Change a topic's configuration, or add partitions to it and wait until they take records."""
    from highwater.client.blocking import Admin

    settings = key_values(config)
    if partitions is None and not settings and not delete_config:
        raise typer.BadParameter("nothing to alter: give --partitions, --config or --delete-config")
    with Admin(bootstrap, max_block_ms=MAX_BLOCK_MS) as admin:
        if settings or delete_config:
            admin.alter_topic_config(topic, settings, delete_config or ())
        if partitions is not None:
            admin.create_partitions(topic, partitions)
        (altered,) = admin.describe_topics([topic])
    own = escaped_text(" ".join(f"{key}={value}" for key, value in sorted(altered.config.items())))
    screen.print(f"altered {topic}: {counted(len(altered.partitions), 'partition')}{own and ', '}{own}")


@app.command("elect-leaders")
def elect_leaders(
    topics: Annotated[list[str] | None, typer.Argument(help="default: all topics", show_default=False)] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: AsJson = False,
) -> None:
    """Give partitions back to their preferred leaders, the first of their replicas."""
    from highwater.client.blocking import Admin

    with Admin(bootstrap, max_block_ms=MAX_BLOCK_MS) as admin:
        partitions = None
        if topics:
            partitions = [
                (one.topic, each.partition) for one in admin.describe_topics(topics) for each in one.partitions
            ]
        outcomes = admin.elect_leaders(partitions)
    failed = {partition: error for partition, error in outcomes.items() if error is not None}
    if json:
        for (topic, partition), error in outcomes.items():
            json_line({"topic": topic, "partition": partition, "error": None if error is None else str(error)})
    else:
        for error in failed.values():
            screen.print(str(error))
        moved = ("partition moved to its preferred leader", "partitions moved to their preferred leaders")
        screen.print(counted(len(outcomes) - len(failed), *moved))
    if failed:
        raise typer.Exit(1)


@app.command("delete")
def delete(topic: Topic, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Delete a topic and its records."""
    from highwater.client.blocking import Admin

    with Admin(bootstrap, max_block_ms=MAX_BLOCK_MS) as admin:
        admin.delete_topic(topic)
    screen.print(f"deleted {topic}")
