"""The entry point of `highwater`: the commands, and the one place where an error becomes a sentence."""

from __future__ import annotations

import sys
from typing import Any

import typer
from rich.markup import escape

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


# What typer raises for a wrong command line has no public name; `BadParameter` is the nearest kin that has one.
_WrongCommandLine: type[Exception] = typer.BadParameter.__bases__[0]


def main() -> None:
    """Runs a command. What the user can mend is one sentence on stderr, with exit status 1, or 2 where the command line
    itself is wrong; Ctrl-C (130) and a pipe that its reader closed (`highwater consume … | head`) end quietly."""
    try:
        sys.exit(app(standalone_mode=False))
    except KeyboardInterrupt:
        sys.exit(130)
    except _WrongCommandLine as error:
        _complain(_what_is_wrong(error))
        sys.exit(2)
    except Exception as error:
        if not _user_can_mend(error):
            raise
        _complain(str(error))
        sys.exit(1)


def _user_can_mend(error: Exception) -> bool:
    # The SDK takes a third of a second to import, which a command that does not use it need not spend.
    from highwater.client.exceptions import HighwaterError
    from highwater.rpc.server import UserError

    return isinstance(error, (HighwaterError, UserError))


def _what_is_wrong(error: Any) -> str:
    sentence = error.format_message().rstrip(".")
    if not sentence:
        return ""  # a command without its subcommand: the help was printed
    command = error.ctx.command_path if error.ctx is not None else "highwater"
    return f"{sentence[:1].lower()}{sentence[1:]}; see {command} --help"


def _complain(sentence: str) -> None:
    if sentence:
        errors.print("[red]highwater:[/red]", escape(sentence), soft_wrap=True)


if __name__ == "__main__":
    main()
