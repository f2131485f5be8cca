"""The entry point of `highwater`: the commands, and the one place where an error becomes a sentence."""

from __future__ import annotations

import os
import sys

import typer

from highwater.cli import cluster, consume, log, produce, topics, up
from highwater.cli.output import errors

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
app.add_typer(log.app, name="log")


def main() -> None:
    """Runs a command. What the user can mend is one sentence on stderr and exit status 1; a pipe closed by the reader
    (`highwater consume … | head`) and Ctrl-C end quietly, as a shell user expects."""
    from highwater.client.exceptions import HighwaterError
    from highwater.rpc.server import UserError

    try:
        app()
    except (HighwaterError, UserError) as error:
        errors.print(f"[red]highwater:[/red] {error}", markup=True, highlight=False, soft_wrap=True)
        sys.exit(1)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
