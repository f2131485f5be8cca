"""Transactions as plain values: compares, operations, entries and results. Pure: no etcd in here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

MAX_TXN_OPERATIONS = 128
"""etcd's limit, for the compares and for the operations of a transaction each (RULES 2.6)."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A key as it stood at some revision."""

    key: str
    value: bytes
    create_revision: int  # grows when the key is deleted and put again, not when it is put over
    mod_revision: int
    lease: int = 0  # 0: none


class Target(Enum):
    """The part of a key that is compared."""

    CREATE_REVISION = "create revision"
    MOD_REVISION = "mod revision"
    VALUE = "value"


@dataclass(frozen=True, slots=True)
class Compare:
    """Holds where the target equals `expected`. Revision 0 means that the key is absent."""

    key: str
    target: Target
    expected: int | bytes

    def holds(self, entry: Entry | None) -> bool:
        """True where it held for the key as read (None: absent)."""
        if self.target is Target.VALUE:
            return entry is not None and entry.value == self.expected
        if entry is None:
            return self.expected == 0
        return self.expected == (entry.create_revision if self.target is Target.CREATE_REVISION else entry.mod_revision)


def absent(key: str) -> Compare:
    return Compare(key, Target.CREATE_REVISION, 0)


def created_at(key: str, revision: int) -> Compare:
    """The key is the very one that was created at `revision`, whatever was put over it since (0: absent)."""
    return Compare(key, Target.CREATE_REVISION, revision)


def modified_at(key: str, revision: int) -> Compare:
    """Nobody wrote the key since `revision` (0: absent)."""
    return Compare(key, Target.MOD_REVISION, revision)


def value_is(key: str, value: bytes) -> Compare:
    return Compare(key, Target.VALUE, value)


@dataclass(frozen=True, slots=True)
class Put:
    key: str
    value: bytes
    lease: int = 0  # 0: none


@dataclass(frozen=True, slots=True)
class Delete:
    key: str


@dataclass(frozen=True, slots=True)
class DeletePrefix:
    prefix: str


@dataclass(frozen=True, slots=True)
class Get:
    key: str


Operation = Put | Delete | DeletePrefix | Get


@dataclass(frozen=True, slots=True)
class TxnResult:
    """`succeeded`: every compare held and `then` was done, else `otherwise` was. `revision` is the store's after it:
    with a write in it, the mod revision of every key that it put. `entries` has one item for each `Get` of the branch
    that was done, in order."""

    succeeded: bool
    revision: int
    entries: tuple[Entry | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Listing:
    """Entries in key order, all as of `revision`: a watch from `revision + 1` misses nothing."""

    entries: tuple[Entry, ...]
    revision: int


@dataclass(frozen=True, slots=True)
class Event:
    """A key was put (`entry`) or deleted, also by its lease (`entry` is None), at `revision`."""

    key: str
    entry: Entry | None
    revision: int


@dataclass(frozen=True, slots=True)
class WatchBatch:
    """Events in the order of their revisions; those of one revision are never spread over two batches."""

    events: tuple[Event, ...]
    revision: int  # of the last event


def check_size(compares: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation]) -> None:
    """Raises `ValueError` where etcd would refuse the transaction as too large."""
    largest = max(len(compares), len(then), len(otherwise))
    if largest > MAX_TXN_OPERATIONS:
        raise ValueError(f"a transaction holds at most {MAX_TXN_OPERATIONS} compares or operations, this one {largest}")
