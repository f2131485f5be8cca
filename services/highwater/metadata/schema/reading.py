"""Values of etcd's entries, checked as they are read: others may have written there, and a disk may have lied. Pure.

What does not fit raises `ValueError`; `readable` makes of whatever is wrong with an entry one error that names its key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from highwater.metadata.store.etcd_errors import StoreError
from highwater.metadata.store.transactions import Entry
from highwater.model.written_json import parse_json

MAX_BROKER_ID = 2**31 - 1
MAX_NUMBER = 2**63 - 1  # of protobuf's int64, in which it is passed on
MOST_SAID = 200  # characters of an error: some have the whole value in them

_Value = TypeVar("_Value")


class CorruptMetadataError(StoreError):
    """A key of ours holds what we cannot read: somebody edited etcd by hand, or a newer version wrote it."""


def readable(entry: Entry, decode: Callable[[Entry], _Value]) -> _Value:
    """The entry's value. Raises `CorruptMetadataError`, with the key and what to do, where it cannot be decoded."""
    try:
        return decode(entry)
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        said = repr(error)
        said = said if len(said) <= MOST_SAID else f"{said[:MOST_SAID]}..."
        raise CorruptMetadataError(f"etcd's key {entry.key} cannot be read ({said}): repair or delete it") from error


def json_object(text: bytes | str) -> dict[str, Any]:
    value = parse_json(text)
    if not isinstance(value, dict):
        raise ValueError(f"it is not an object of JSON but a {type(value).__name__}")
    return value


def number(value: object, name: str, *, least: int = 0, most: int = MAX_NUMBER) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{name} is not a number of {least} to {most}")
    return value


def counter(entry: Entry) -> int:
    """A key's plain number, as etcdctl shows it."""
    if len(entry.value) > len(str(MAX_NUMBER)):
        raise ValueError(f"it has {len(entry.value)} bytes, and is to be a number")
    return number(int(entry.value), "it")


def text_of(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} is not a text")
    value.encode()  # what is no Unicode cannot be sent on
    return value


def broker_ids(value: object, name: str) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{name} is not a list of broker ids")
    found = tuple(number(each, name, most=MAX_BROKER_ID) for each in value)
    if len(set(found)) != len(found):
        raise ValueError(f"{name} names a broker twice")
    return found
