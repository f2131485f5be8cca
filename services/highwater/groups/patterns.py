"""Patterns of topics' names: regular expressions that match in bounded time (RULES 11.9). Pure.

Python's `re` backtracks, and a pattern of a client runs on the coordinator's loop. So only what cannot blow up is
taken: of the constructs that repeat, each may repeat one character, class or `.`; a group may be optional and no more;
at most three repeat without or beyond a fixed number. No look-around, no references, no flags. Names are of 249
characters at most, so a match takes some n³ steps at worst, and in practice n.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

MOST_CHARACTERS = 255
MOST_REPETITIONS = 3


class PatternError(ValueError):
    """A pattern that is no regular expression, or one that is not taken. The message says why, and what would be."""


@lru_cache(maxsize=1024)
def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Raises `PatternError`."""
    if len(pattern) > MOST_CHARACTERS:
        raise PatternError(f"a pattern of {len(pattern)} characters: {MOST_CHARACTERS} are the most")
    _check(pattern)
    try:
        return re.compile(pattern, re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        raise PatternError(f"the pattern {pattern!r} is no regular expression: {error}") from error


def matching(pattern: str, names: Iterable[str]) -> frozenset[str]:
    """Those of the names that the pattern matches as a whole. Raises `PatternError`."""
    matches = compile_pattern(pattern).fullmatch
    return frozenset(name for name in names if matches(name) is not None)


_TOKEN = re.compile(
    r"""
    (?P<escape>\\.)
    | (?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])
    | (?P<special>\(\?(?!:))
    | (?P<open>\((?:\?:)?)
    | (?P<close>\))
    | (?P<repeat>[*+?]|\{\d*,?\d*\})
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)


def _check(pattern: str) -> None:
    before, repetitions = "", 0
    for token in _TOKEN.finditer(pattern):
        kind, text = token.lastgroup or "", token[0]
        if kind == "special":
            raise PatternError(
                f"the pattern {pattern!r} has a group that begins with '(?': only '(' and '(?:' are taken"
            )
        if kind == "escape" and text[1].isdigit():
            raise PatternError(f"the pattern {pattern!r} refers to a group ({text}): references are not taken")
        if kind == "repeat":
            if before == "repeat":
                if text != "?":
                    raise PatternError(f"the pattern {pattern!r} repeats what repeats already ({text})")
                continue  # a lazy repetition matches the same names
            if text != "?":
                if before == "close":
                    raise PatternError(f"the pattern {pattern!r} repeats a group ({text}): only '?' may follow ')'")
                repetitions += not re.fullmatch(r"\{\d+\}", text)
        before = kind
    if repetitions > MOST_REPETITIONS:
        raise PatternError(f"the pattern {pattern!r} repeats in {repetitions} places: {MOST_REPETITIONS} are the most")
