"""A pipeline as a command of `highwater pipeline` and of `spark-submit`.

def run(options: CopyOptions) -> None: ...

command = pipeline_command(CopyOptions, run, "Copy topics.")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import MISSING, fields
from inspect import Parameter, Signature, get_annotations
from typing import Any, TypeVar, get_type_hints

import typer

from highwater.console.exit_status import exit_status
from highwater.errors import UserError
from highwater.spark.errors import OptionError
from highwater.spark.pipelines.command import termination
from highwater.spark.pipelines.command.pipeline_options import PipelineOptions

Options = TypeVar("Options", bound=PipelineOptions)


def pipeline_command(options: type[Options], run: Callable[[Options], None], description: str) -> Callable[..., None]:
    """`run` as a function that typer makes a command of: a parameter for each field of `options`."""

    def command(**values: Any) -> None:
        given = options(**values)
        try:
            with termination.heeded() if given.stoppable else nullcontext():
                run(given)
        except OptionError as error:
            raise UserError(str(error)) from None

    hints = get_type_hints(options, include_extras=True)
    parameters = [
        Parameter(
            one.name,
            Parameter.KEYWORD_ONLY,
            default=one.default_factory()
            if one.default_factory is not MISSING
            else Parameter.empty
            if one.default is MISSING
            else one.default,
            annotation=hints[one.name],
        )
        for one in sorted(fields(options), key=lambda one: _depth(options, one.name))
    ]
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    command.__doc__ = description
    return command


def _depth(options: type[PipelineOptions], name: str) -> int:
    """A pipeline's own options come before those that it shares."""
    return next(depth for depth, owner in enumerate(options.__mro__) if name in get_annotations(owner))


def submitted(command: Callable[..., None], argv: Sequence[str]) -> int:
    """Runs a command as `spark-submit` does; its exit status. What the user can mend is one sentence on stderr."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
    app.command()(command)
    return exit_status(app, list(argv))
