"""Options that several commands have, as one dataclass: a field of it is an option."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, get_type_hints

_Result = TypeVar("_Result")


def with_shared_options(command: Callable[..., _Result]) -> Callable[..., _Result]:
    """The command as Typer is to see it: in the place of each parameter that is a dataclass stand its fields, which
    are annotated as options are and have defaults. The command gets the dataclass."""
    hints = get_type_hints(command, include_extras=True)
    shared: dict[str, type[Any]] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        kind = hints[parameter.name]
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            shared[parameter.name] = kind
            parameters += _options(kind)
        else:
            # By name alone: an option with a default may stand before an argument without.
            parameters.append(parameter.replace(annotation=kind, kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def run(**given: Any) -> _Result:
        for name, kind in shared.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in dataclasses.fields(kind)})
        return command(**given)

    result = hints.get("return", inspect.Signature.empty)
    vars(run)["__signature__"] = inspect.Signature(parameters, return_annotation=result)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters} | {"return": result}
    return run


def _options(kind: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in dataclasses.fields(kind)
    ]
