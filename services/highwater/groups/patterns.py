"""Patterns of topics' names: regular expressions that match in linear time (RULES 11.9). Pure.

A pattern of a client runs on the coordinator's loop, and Python's `re` backtracks: `(a|a)*b` takes it years. So a
pattern is parsed here and becomes an automaton of one state for each character that it may match, which is in several
states at once and reads a name once. Kafka's RE2/J has the same bound, and the same is left out of the syntax:
look-around, and references to groups.

    alternatives  = sequence { "|" sequence }
    sequence      = { atom [ ( "*" | "+" | "?" | "{m}" | "{m,}" | "{m,n}" ) [ "?" ] ] }
    atom          = "(" [ "?:" ] alternatives ")" | "[" [ "^" ] members "]" | "." | escape | character
    escape        = "\\d" | "\\w" | "\\D" | "\\W" | "\\" character that is no letter or digit

A pattern matches a name as a whole: "^" in front and "$" behind say nothing more, and are taken nowhere else.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TypeAlias

from highwater.model.topic_name import LONGEST_TOPIC_NAME

MOST_CHARACTERS = 255
MOST_STATES = 500  # with a{3} counted as aaa
MOST_PARTS = 10_000  # counted like that, with those that match nothing: ((){9}){9} has 90
DEEPEST = 20  # groups within groups
MOST_MOVES = 1_000  # that a pattern keeps
MOST_MATCHED_BYTES = 4 << 20  # of names that a pattern of a group stands for: they are one record of the group's log

# What names of topics consist of (`model.topic_name`): nothing else need ever match.
ALPHABET = frozenset(string.ascii_letters + string.digits + "._-")
_CLASSES = {
    "d": frozenset(string.digits),
    "w": frozenset(string.ascii_letters + string.digits + "_"),
    "D": ALPHABET - frozenset(string.digits),
    "W": ALPHABET - frozenset(string.ascii_letters + string.digits + "_"),
}
_COUNT = re.compile(r"\{(\d{1,4})(,(\d{0,4}))?\}")


class PatternError(ValueError):
    """A pattern that is no regular expression, or one that is not taken. The message says why."""


class Pattern:
    """An automaton without empty moves: state n stands for the n-th character of the pattern that was matched last.
    Sets of states are the bits of an int. Moves from set to set are kept, up to a bound: names have much in common, and
    a coordinator may match ten thousand of them at once."""

    __slots__ = ("_first", "_following", "_last", "_matched", "_moves", "_nullable")

    def __init__(self, nullable: bool, first: int, last: int, follow: list[int], matched: dict[str, int]) -> None:
        self._nullable = nullable
        self._first = first  # states that a name may begin in
        self._last = last  # states that it may end in
        self._following = [_unions(follow[begin : begin + 4]) for begin in range(0, len(follow), 4)]
        self._matched = matched  # by character: states that stand for it
        self._moves: dict[tuple[int, str], int] = {}

    def matches(self, name: str) -> bool:
        if not name:
            return self._nullable
        states, moves = self._first & self._matched.get(name[0], 0), self._moves
        for character in name[1:]:
            if not states:
                return False
            following = moves.get((states, character))
            states = self._move(states, character) if following is None else following
        return bool(states & self._last)

    def _move(self, states: int, character: str) -> int:
        following = 0
        for number, four in enumerate(f"{states:x}"[::-1]):
            if four != "0":
                following |= self._following[number][int(four, 16)]
        following &= self._matched.get(character, 0)
        if len(self._moves) == MOST_MOVES:
            self._moves.clear()
        self._moves[states, character] = following
        return following


def _unions(follow: list[int]) -> list[int]:
    """Gives the states that follow each set of these four."""
    unions = [0]
    for each in follow:
        unions += [union | each for union in unions]
    return unions


@lru_cache(maxsize=128)  # of 0.5 MB at the most
def compile_pattern(pattern: str) -> Pattern:
    """Raises `PatternError`."""
    if len(pattern) > MOST_CHARACTERS:
        raise PatternError(f"the pattern has {len(pattern)} characters: {MOST_CHARACTERS} are the most")
    return _Parser(pattern).parsed()


def matching(pattern: str, names: Iterable[str]) -> frozenset[str]:
    """Those of the names that the pattern matches. Raises `PatternError`."""
    matches = compile_pattern(pattern).matches
    return frozenset(name for name in names if matches(name))


def within_bound(names: frozenset[str], kept: frozenset[str]) -> frozenset[str]:
    """As many of the names as `MOST_MATCHED_BYTES` have room for: those that are `kept`, which have, then by name."""
    if len(names) * LONGEST_TOPIC_NAME <= MOST_MATCHED_BYTES or sum(map(len, names)) <= MOST_MATCHED_BYTES:
        return names
    found = set(names & kept)
    size = sum(map(len, found))
    for name in sorted(names - kept):
        size += len(name)
        if size > MOST_MATCHED_BYTES:
            break
        found.add(name)
    return frozenset(found)


# Whether it matches the empty name, and the states that what it matches may begin and end in.
_Part: TypeAlias = tuple[bool, int, int]
# Adds a part's states to the automaton; twice makes them twice, which is how a{2} is made.
_Maker: TypeAlias = Callable[[], _Part]
_NOTHING: _Part = (True, 0, 0)


class _Parser:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._depth = 0
        self._parts = 0
        self._follow: list[int] = []
        self._sets: list[frozenset[str]] = []

    def parsed(self) -> Pattern:
        if self._peek() == "^":
            self._at += 1
        maker = self._alternatives()
        if self._pattern[self._at :] == "$":
            self._at += 1
        if self._at < len(self._pattern):
            raise self._error(f"{self._peek()!r} is not expected")
        nullable, first, last = maker()
        matched: dict[str, int] = {}
        for state, characters in enumerate(self._sets):
            for character in characters:
                matched[character] = matched.get(character, 0) | 1 << state
        return Pattern(nullable, first, last, self._follow, matched)

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _error(self, why: str) -> PatternError:
        return PatternError(f"the pattern {self._pattern!r} cannot be taken: {why}, at character {self._at + 1}")

    # The syntax

    def _alternatives(self) -> _Maker:
        makers = [self._sequence()]
        while self._peek() == "|":
            self._at += 1
            makers.append(self._sequence())
        return makers[0] if len(makers) == 1 else lambda: self._either(makers)

    def _sequence(self) -> _Maker:
        makers: list[_Maker] = []
        while self._peek() not in ("", "|", ")") and self._pattern[self._at :] != "$":
            makers.append(self._repeated(self._atom()))
        return lambda: self._in_order(makers)

    def _repeated(self, maker: _Maker) -> _Maker:
        found = _COUNT.match(self._pattern, self._at)
        if found:
            least = int(found[1])
            most = least if found[2] is None else int(found[3]) if found[3] else None
            self._at = found.end()
            if most is not None and most < least:
                raise self._error(f"{found[0]} has no number")
        elif self._peek() in ("*", "+", "?"):
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[self._peek()]
            self._at += 1
        else:
            return maker
        if self._peek() == "?":
            self._at += 1  # a lazy repetition matches the same names
        if self._peek() in ("*", "+", "?", "{"):
            raise self._error("it repeats what repeats already")
        return lambda: self._times(maker, least, most)

    def _atom(self) -> _Maker:
        character = self._peek()
        self._at += 1
        if character == "(":
            return self._group()
        if character == "[":
            characters = self._members()
        elif character == ".":
            characters = ALPHABET
        elif character == "\\":
            characters = self._escaped()
        elif character in "*+?{}]^$":
            self._at -= 1
            raise self._error(f"{character!r} is not expected")
        else:
            characters = frozenset(character)
        return lambda: self._state(characters)

    def _group(self) -> _Maker:
        if self._peek() == "?":
            if self._pattern[self._at : self._at + 2] != "?:":
                raise self._error("of the groups that begin with '(?' only '(?:' is taken")
            self._at += 2
        self._depth += 1
        if self._depth > DEEPEST:
            raise self._error(f"more than {DEEPEST} groups within one another")
        maker = self._alternatives()
        if self._peek() != ")":
            raise self._error("a ')' is missing")
        self._at += 1
        self._depth -= 1
        return maker

    def _escaped(self) -> frozenset[str]:
        character = self._peek()
        if character not in _CLASSES and (not character or character.isalnum()):
            raise self._error(f"'\\{character}' is not taken")
        self._at += 1
        return _CLASSES.get(character, frozenset(character))

    def _members(self) -> frozenset[str]:
        inverted = self._peek() == "^"
        self._at += inverted
        found: set[str] = set()
        begin = self._at
        while self._peek() != "]" or self._at == begin:
            one = self._member()
            if self._peek() == "-" and self._pattern[self._at + 1 : self._at + 2] not in ("", "]"):
                self._at += 1
                other = self._member()
                if len(one) != 1 or len(other) != 1 or min(one) > min(other):
                    raise self._error("a range that is none")
                one = frozenset(each for each in ALPHABET if min(one) <= each <= min(other))
            found |= one
        self._at += 1
        return ALPHABET - found if inverted else frozenset(found)

    def _member(self) -> frozenset[str]:
        character = self._peek()
        if not character:
            raise self._error("a ']' is missing")
        self._at += 1
        return self._escaped() if character == "\\" else frozenset(character)

    # The automaton

    def _state(self, characters: frozenset[str]) -> _Part:
        if len(self._sets) == MOST_STATES:
            raise self._error(f"more than {MOST_STATES} characters, with what is repeated counted as often")
        self._sets.append(characters)
        self._follow.append(0)
        bit = 1 << len(self._sets) - 1
        return (False, bit, bit)

    def _may_follow(self, last: int, first: int) -> None:
        while last:
            state = last & -last
            self._follow[state.bit_length() - 1] |= first
            last ^= state

    def _in_order(self, makers: Iterable[_Maker]) -> _Part:
        nullable, first, last = _NOTHING
        for maker in makers:
            self._count_part()
            next_nullable, next_first, next_last = maker()
            self._may_follow(last, next_first)
            first |= next_first if nullable else 0
            last = next_last | (last if next_nullable else 0)
            nullable = nullable and next_nullable
        return (nullable, first, last)

    def _count_part(self) -> None:
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise self._error(f"more than {MOST_PARTS} parts, with what is repeated counted as often")

    def _either(self, makers: Iterable[_Maker]) -> _Part:
        nullable, first, last = False, 0, 0
        for maker in makers:
            self._count_part()
            part = maker()
            nullable, first, last = nullable or part[0], first | part[1], last | part[2]
        return (nullable, first, last)

    def _times(self, maker: _Maker, least: int, most: int | None) -> _Part:
        def optional() -> _Part:
            return (True, *maker()[1:])

        def endless() -> _Part:
            _, first, last = maker()
            self._may_follow(last, first)
            return (True, first, last)

        more = [endless] if most is None else [optional] * (most - least)
        return self._in_order([maker] * least + more)
