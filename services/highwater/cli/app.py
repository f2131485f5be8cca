"""The commands of `highwater`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from highwater import __version__
from highwater.cli import consume, health, log, pipeline, produce, up
from highwater.cli.administration import acls, cluster, configs, log_dirs, replicas, tokens, topics
from highwater.cli.groups import app as groups
from highwater.cli.kube import app as kube
from highwater.cli.watching import metrics, top
from highwater.client.cluster.tls_options import (
    CA_VARIABLE,
    CERTIFICATE_VARIABLE,
    KEY_VARIABLE,
    PROTOCOL_VARIABLE,
    VARIABLES,
)
from highwater.client.cluster.token_options import TOKEN_FILE_VARIABLE, TOKEN_VARIABLE

app = typer.Typer(
    name="highwater",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


@app.callback()
def highwater(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
    security_protocol: Annotated[
        str | None,
        typer.Option(
            metavar="PLAINTEXT|SSL",
            envvar=PROTOCOL_VARIABLE,
            help="SSL for brokers that speak TLS. This and the files of TLS go before the command",
        ),
    ] = None,
    ssl_ca_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", envvar=CA_VARIABLE, help="PEM of the authorities that signed the brokers' certificates"
        ),
    ] = None,
    ssl_certificate_file: Annotated[
        str | None,
        typer.Option(metavar="FILE", envvar=CERTIFICATE_VARIABLE, help="PEM of the certificate to show to brokers"),
    ] = None,
    ssl_key_file: Annotated[
        str | None, typer.Option(metavar="FILE", envvar=KEY_VARIABLE, help="PEM of that certificate's key")
    ] = None,
    token_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            envvar=TOKEN_FILE_VARIABLE,
            help=f"A file with the token to show to brokers; {TOKEN_VARIABLE} in the environment is the token itself",
        ),
    ] = None,
) -> None:
    """A replicated commit log for Python and Spark people."""
    # `highwater --version` itself is answered by `main`, before anything else is loaded.
    if version:
        typer.echo(f"highwater {__version__}")
        raise typer.Exit
    # Every client that a command makes reads them, and so do those of the processes that it starts.
    given = (security_protocol, ssl_ca_file, ssl_certificate_file, ssl_key_file)
    for name, value in zip(("ssl_ca_file", "ssl_certificate_file", "ssl_key_file"), given[1:], strict=True):
        source = context.get_parameter_source(name)
        if value is not None and security_protocol != "SSL" and source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"--{name.replace('_', '-')} is for --security-protocol SSL: give both")
    source = context.get_parameter_source("token_file")
    if token_file is not None and source is not None and source.name == "COMMANDLINE":
        os.environ.pop(TOKEN_VARIABLE, None)
    for variable, value in zip((*VARIABLES, TOKEN_FILE_VARIABLE), (*given, token_file), strict=True):
        if value is not None:
            os.environ[variable] = value


app.command("up")(up.up)
app.add_typer(topics.app, name="topics")
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
app.add_typer(groups.app, name="groups")
app.command("cluster")(cluster.cluster)
app.command("top")(top.top)
app.command("metrics")(metrics.metrics)
app.command("health", context_settings=health.AS_THEY_ARE, add_help_option=False)(health.health)
app.add_typer(log.app, name="log")
app.add_typer(configs.app, name="configs")
app.add_typer(acls.app, name="acls")
app.add_typer(tokens.app, name="tokens")
app.add_typer(replicas.app, name="replicas")
app.add_typer(log_dirs.app, name="log-dirs")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(kube.app, name="kube")
