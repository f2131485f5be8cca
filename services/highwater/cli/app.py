"""The commands of `highwater`."""

from __future__ import annotations

import typer

from highwater.cli import cluster, consume, health, log, log_dirs, pipeline, produce, replicas, topics, up
from highwater.cli.kube import app as kube

app = typer.Typer(
    name="highwater",
    help="A replicated commit log for Python and Spark people.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command("up")(up.up)
app.add_typer(topics.app, name="topics")
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
app.command("cluster")(cluster.cluster)
app.command("health", context_settings=health.AS_THEY_ARE, add_help_option=False)(health.health)
app.add_typer(log.app, name="log")
app.add_typer(replicas.app, name="replicas")
app.add_typer(log_dirs.app, name="log-dirs")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(kube.app, name="kube")
