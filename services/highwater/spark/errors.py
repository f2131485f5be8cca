"""Errors of `format("highwater")` that users can mend, and how Spark shows them.

Spark shows what a Python source raised as Python's whole traceback, with the exception it came from above it. For what
a user can mend that is thirty lines of calls around one sentence; so all but the outermost call is taken off. (Without
that one Spark, which leaves its own calls out where there are others, would show those.)
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from highwater.client.exceptions import HighwaterError


class OptionError(ValueError):
    """An option that cannot be used as it is. The message names it, its value, and what it can be."""


class ShortTraceback:
    """Errors of options and of the SDK leave this block with their message and one call; others, which are bugs, as
    they are."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OptionError | HighwaterError):
            error.__traceback__ = trace and TracebackType(None, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)
            error.__cause__ = None
            error.__suppress_context__ = True
