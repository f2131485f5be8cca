"""What every reader of bytes is held to, and how what it reads is broken."""

from __future__ import annotations

import dataclasses
import itertools
import json
import time
import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from . import batches

SECONDS = 2.0
"""Of CPU, for the largest that a reader takes: a batch that expands to 256 MiB."""
_LEAVES = (
    None,
    True,
    0,
    -1,
    1.5,
    2**31,
    2**63,
    2**70,
    1e999,
    "",
    "x",
    "\ud800",
    "0" * 999,
    [],
    [[]],
    {},
    {"a": 1},
    [None],
)
_DEEP = b"[" * 100_000


@dataclass(frozen=True)
class Decoder:
    """`read` is given a whole input and an empty directory."""

    name: str
    read: Callable[[bytes, Path], object]
    refusals: tuple[type[Exception], ...]
    bodies: tuple[bytes, ...]
    envelope: Callable[[bytes], bytes] = bytes
    json: bool = False

    @property
    def seeds(self) -> tuple[bytes, ...]:
        """As a writer leaves them."""
        return tuple(map(self.envelope, self.bodies))

    def draw(self, random: Random) -> bytes:
        kind = random.randrange(8)
        if kind == 0:
            return random.choice((b"", bytes(100), b"\xff" * 100, random.randbytes(random.choice((1, 8, 100, 1000)))))
        body = random.choice(self.bodies)
        if self.json and kind < 5:
            return self.envelope(_other_json(random, body))
        broken = batches.mutated(random, body)
        return batches.mutated(random, self.envelope(broken)) if kind == 1 else self.envelope(broken)

    def problem(self, data: bytes, directory: Path) -> str | None:
        """What is wrong with how it takes these bytes; None: nothing."""
        begun = time.process_time()
        try:
            found = self.read(data, directory)
        except self.refusals:
            found = None
        except Exception as error:
            return f"{self.name}: {type(error).__name__}: {error}"
        if (took := time.process_time() - begun) > SECONDS:
            return f"{self.name}: it took {took:.1f} s"
        return None if found is None else wrongly_typed(found, self.name)


def read_for(
    seconds: float, seed: int, decoders: Iterable[Decoder], directory: Path
) -> Iterator[tuple[str, str, bytes]]:
    """Gives each in turn what is drawn, for so long: (problem, name, data) of what is wrong."""
    end, known = time.monotonic() + seconds, list(decoders)
    for number in itertools.count():
        for decoder in known:
            if time.monotonic() >= end:
                return
            data = decoder.draw(Random(f"{seed}:{decoder.name}:{number}"))
            if (problem := decoder.problem(data, directory)) is not None:
                yield problem, decoder.name, data


def wrongly_typed(value: Any, where: str) -> str | None:
    """The first value in a dataclass that is not what it is declared to be: who uses it does not look again."""
    if dataclasses.is_dataclass(value):
        declared = typing.get_type_hints(type(value))
        for field in dataclasses.fields(value):
            found, name = getattr(value, field.name), f"{where}.{field.name}"
            if not _fits(found, declared[field.name]):
                return f"{name} is {found!r}, it is declared to be {declared[field.name]}"
            if (inner := wrongly_typed(found, name)) is not None:
                return inner
    elif isinstance(value, dict):
        return next((wrong for each in value.values() if (wrong := wrongly_typed(each, where)) is not None), None)
    return None


def _fits(value: Any, declared: Any) -> bool:
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    if origin is tuple:
        each = arguments if arguments[-1] is not Ellipsis else arguments[:1] * len(value)
        return isinstance(value, tuple) and len(value) == len(each) and all(map(_fits, value, each))
    if origin is dict:
        return isinstance(value, dict) and all(
            _fits(k, arguments[0]) and _fits(v, arguments[1]) for k, v in value.items()
        )
    if origin is not None:  # a union
        return any(_fits(value, each) for each in arguments)
    if declared in (int, str, bool, bytes):
        return type(value) is declared
    return isinstance(value, declared) if isinstance(declared, type) else True


def _other_json(random: Random, body: bytes) -> bytes:
    """Of a text of JSON documents, one a line: one value in one of them is another, is gone, or is nested deeply."""
    lines = body.split(b"\n")
    number = random.choice([index for index, line in enumerate(lines) if line])
    if random.random() < 0.05:
        lines[number] = random.choice((_DEEP, b'{"a":' * 100_000, b"1" * 5000, b"NaN", b"null", b"{}", b"[]", b'""'))
        return b"\n".join(lines)
    document = json.loads(lines[number])
    places: list[tuple[Any, Any]] = []

    def note(value: Any) -> None:
        for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
            places.append((value, key))
            note(value[key])

    note(document)
    if not places:
        document = random.choice(_LEAVES)
    for holder, key in random.sample(places, min(len(places), random.choice((1, 1, 2)))):
        if isinstance(holder, dict) and random.random() < 0.2:
            holder.pop(key, None)
            holder[random.choice(("", "x", "__class__", "self"))] = random.choice(_LEAVES)
        elif isinstance(holder, dict) or key < len(holder):
            holder[key] = random.choice(_LEAVES)
    lines[number] = json.dumps(document).encode()
    return b"\n".join(lines)
