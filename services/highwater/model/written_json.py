"""JSON that stands in a file or in etcd, read as the dataclass that was written. Whoever uses the value trusts its
types, far from where it was read: so what it is declared to be is checked here, where it can be refused. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

_Value = TypeVar("_Value")
_INT64 = 1 << 63


def parse_json(text: bytes | str) -> Any:
    """Raises `ValueError`, for what is nested too deeply as well."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def checked(value: _Value) -> _Value:
    """This dataclass, each field of which is what it is declared to be. Raises `TypeError`.

    An int fits into 64 bits, a str can be encoded as UTF-8: what is written can be sent."""
    kind: Any = type(value)
    for name, fits in _checks(kind):
        found = getattr(value, name)
        if not fits(found):
            raise TypeError(f"{name} cannot be {found!r:.100}")
    return value


@cache
def _checks(kind: type[Any]) -> tuple[tuple[str, Callable[[Any], bool]], ...]:
    declared = get_type_hints(kind)
    return tuple((field.name, _check(declared[field.name])) for field in fields(kind))


def _check(declared: Any) -> Callable[[Any], bool]:
    origin, arguments = get_origin(declared), get_args(declared)
    if declared is int:
        return _is_int64
    if declared is str:
        return _is_text
    if origin is tuple and arguments[-1] is Ellipsis:
        each = _check(arguments[0])
        return lambda value: isinstance(value, tuple) and all(map(each, value))
    if origin is dict:
        key, item = map(_check, arguments)
        return lambda value: isinstance(value, dict) and all(map(key, value)) and all(map(item, value.values()))
    if origin in (Union, UnionType):
        checks = [_check(each) for each in arguments]
        return lambda value: any(fits(value) for fits in checks)
    if declared in (bool, bytes, NoneType):
        return lambda value: type(value) is declared
    return lambda value: isinstance(value, origin or declared)


def _is_int64(value: Any) -> bool:
    return type(value) is int and -_INT64 <= value < _INT64


def _is_text(value: Any) -> bool:
    if type(value) is not str:
        return False
    try:
        return value.isascii() or bool(value.encode())
    except UnicodeEncodeError:
        return False
