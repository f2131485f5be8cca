"""The one place where an error of a command becomes a sentence and an exit status."""

from __future__ import annotations

import os
import sys
from typing import Any

import typer
from rich.text import Text

from highwater.client.exceptions import HighwaterError
from highwater.console import INTERRUPTED
from highwater.console.output import errors
from highwater.errors import UserError
from highwater.validation import problem

# What typer raises for a wrong command line has no public name; `BadParameter` is the nearest kin that has one.
_WrongCommandLine: type[Exception] = typer.BadParameter.__bases__[0]


def exit_status(app: typer.Typer, arguments: list[str] | None = None) -> int:
    """Runs a command, by default with the arguments of the process. What the user can mend is one sentence on stderr,
    with exit status 1, or 2 where the command line itself is wrong; Ctrl-C (130) and a pipe that its reader closed
    (`highwater consume … | head`) end quietly."""
    try:
        status = int(app(args=arguments, standalone_mode=False) or 0)
        sys.stdout.flush()  # where the pipe is found closed now, Python would say so when it exits
        return status
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for Python's own flush
        return 1
    except _WrongCommandLine as error:
        _complain(_what_is_wrong(error))
        return 2
    except Exception as error:
        if not isinstance(error, (HighwaterError, UserError)):
            raise
        _complain(str(error))
        return 1


def _what_is_wrong(error: Any) -> str:
    cause = error.__cause__
    if hasattr(cause, "errors"):  # pydantic's, with which typer reads values
        error.message = "; ".join(problem(one) for one in cause.errors())
    sentence = error.format_message().rstrip(".")
    if not sentence:
        return ""  # a command without its subcommand: the help was printed
    command = error.ctx.command_path if error.ctx is not None else "highwater"
    return f"{sentence[:1].lower()}{sentence[1:]}; see {command} --help"


def _complain(sentence: str) -> None:
    if sentence:
        errors.print(Text("highwater:", "red"), sentence, soft_wrap=True)
