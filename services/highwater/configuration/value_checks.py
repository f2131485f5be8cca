"""Checks of values that are given as text. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable

Check = Callable[[str], str | None]
"""What is wrong with a value, as the end of a sentence; None where it is good."""

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
MAX_SHOWN = 100  # characters of what was given, in what is said of it
_INTEGER = re.compile(r"-?[0-9]{1,19}")
_NUMBER = re.compile(r"[0-9]{1,400}(\.[0-9]{1,400})?([eE][+-]?[0-9]{1,3})?")


def shown(text: str) -> str:
    """As much of it as a sentence can have."""
    return repr(text) if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]!r}…"


def integer(lowest: int, highest: int) -> Check:
    def check(value: str) -> str | None:
        if _INTEGER.fullmatch(value) is None:  # `int` takes more than others read as the same number
            return "is not an integer"
        return None if lowest <= int(value) <= highest else f"is not between {lowest} and {highest}"

    return check


def decimal(lowest: float, highest: float, *, above_lowest: bool = False) -> Check:
    """`above_lowest`: the lowest itself is not allowed."""

    def check(value: str) -> str | None:
        if _NUMBER.fullmatch(value) is None:
            return "is not a number"
        number = float(value)
        if lowest <= number <= highest and not (above_lowest and number == lowest):
            return None
        least = f"above {lowest:g}" if above_lowest else f"{lowest:g} at least"
        return f"is not {least}" if number <= lowest else f"is above {highest:g}"

    return check


def fraction(value: str) -> str | None:
    try:
        number = float(value)
    except ValueError:
        return "is not a number"
    return None if 0 <= number <= 1 else "is not between 0 and 1"


def one_of(*choices: str) -> Check:
    return lambda value: None if value in choices else f"is not one of {', '.join(choices)}"


def policies(value: str) -> str | None:
    """Of `cleanup.policy`."""
    given = [policy.strip() for policy in value.split(",")]
    good = all(policy in ("compact", "delete") for policy in given) and len(set(given)) == len(given)
    return None if good else "is not delete, compact, or both with a comma between"


boolean = one_of("true", "false")
