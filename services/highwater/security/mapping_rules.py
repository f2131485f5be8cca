"""Rules that make a user's name of a certificate's distinguished name, as Kafka's `ssl.principal.mapping.rules`. Pure.

    RULE:^CN=([a-z0-9]+),OU=Ops.*$/$1/L,DEFAULT

The first rule whose pattern is for the whole name makes the user's name of it: `$1` stands for what the first group
holds, `L` and `U` turn it to lower and upper case. `DEFAULT` is the distinguished name as it is.
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

DEFAULT = "DEFAULT"
_MAX_NAMES = 10_000  # whose outcome is remembered
_RULE = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|$)")
_REFERENCE = re.compile(r"\$(\d)")


class _Rule(NamedTuple):
    pattern: re.Pattern[str] | None  # None: DEFAULT
    replacement: str = ""
    case: str = ""

    def name_of(self, distinguished_name: str) -> str | None:
        if self.pattern is None:
            return distinguished_name
        found = self.pattern.fullmatch(distinguished_name)
        if found is None:
            return None
        name = _REFERENCE.sub(lambda reference: found[int(reference[1])] or "", self.replacement)
        return {"L": name.lower(), "U": name.upper()}.get(self.case, name)


class MappingRules:
    """Raises `ValueError` where the text is no rules."""

    def __init__(self, text: str = DEFAULT) -> None:
        self.text = text
        self._rules = _parse(text)
        self.name_of = functools.lru_cache(_MAX_NAMES)(self._name_of)
        """The user's name; None where no rule is for the distinguished name."""

    def _name_of(self, distinguished_name: str) -> str | None:
        for rule in self._rules:
            name = rule.name_of(distinguished_name)
            if name is not None:
                return name
        return None


def _parse(text: str) -> tuple[_Rule, ...]:
    rules: list[_Rule] = []
    at = 0
    while at < len(text):
        found = _RULE.match(text, at)
        if found is None:
            raise ValueError(
                f"{text[at:]!r} is no rule: write DEFAULT or RULE:pattern/replacement/ with L or U behind it"
            )
        at = found.end()
        if found[1]:
            rules.append(_Rule(None))
            continue
        try:
            pattern = re.compile(found[2].replace("\\/", "/"))
        except re.error as error:
            raise ValueError(f"the pattern {found[2]!r} of a mapping rule is no regular expression: {error}") from None
        highest = max((int(reference[1]) for reference in _REFERENCE.finditer(found[3])), default=0)
        if highest > pattern.groups:
            raise ValueError(f"the replacement {found[3]!r} names ${highest}: its pattern has {pattern.groups} groups")
        rules.append(_Rule(pattern, found[3].replace("\\/", "/"), found[4]))
    if not rules:
        raise ValueError("there is no mapping rule: write DEFAULT")
    return tuple(rules)
