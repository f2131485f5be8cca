"""Things that have to be told again until they are answered: one entry a key, however often it changes. Pure.

Level-triggered: an entry says that the receiver may not know the present state of its key; the state itself is looked
up when it is sent. Bounded by the number of keys.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Generic, TypeVar

FIRST_BACKOFF_MS = 50
MAX_BACKOFF_MS = 1_000


def backoff_ms(failures: int) -> int:
    """The pause after that many failures before the last one."""
    return min(FIRST_BACKOFF_MS << min(failures, 16), MAX_BACKOFF_MS)


Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True)
class _Entry:
    version: int  # grows with every change
    put_ms: int  # of the first change that nothing was sent for
    due_ms: int  # not to be sent (again) before
    sent_ms: int | None = None  # first; from then on the receiver owes an answer. None: it waits to be sent
    failures: int = 0
    reported: bool = False  # as overdue


class Redelivery(Generic[Key]):
    def __init__(self) -> None:
        self._entries: dict[Key, _Entry] = {}
        self._urgent: dict[Key, None] = {}  # those of them that are sent before the others
        self._versions = 0
        self._answered_ms = 0  # whatever the receiver answered last

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    @property
    def keys(self) -> Collection[Key]:
        return self._entries.keys()

    def put(self, keys: Iterable[Key], now_ms: int, urgent: Collection[Key] = ()) -> None:
        """The state of these keys changed: due at once, also where an older one is being sent. The `urgent` ones among
        them are taken before all others."""
        for key in keys:
            if key in urgent:
                self._urgent[key] = None
            else:
                self._urgent.pop(key, None)
            self._versions += 1
            entry = self._entries.get(key)
            if entry is None:
                self._entries[key] = _Entry(self._versions, now_ms, now_ms)
            else:
                entry.version = self._versions
                entry.due_ms = now_ms

    def discard(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._remove(key)

    def _remove(self, key: Key) -> None:
        self._entries.pop(key, None)
        self._urgent.pop(key, None)

    def take(self, now_ms: int, limit: int) -> dict[Key, int]:
        """Up to `limit` keys that are due, with their versions, to be sent now: for `answered` or `failed`."""
        taken: dict[Key, int] = {}
        for key in chain(self._urgent, self._entries):
            if len(taken) == limit:
                break
            entry = self._entries[key]
            if entry.due_ms <= now_ms:
                taken[key] = entry.version
                if entry.sent_ms is None:
                    entry.sent_ms = now_ms
        return taken

    def answered(self, taken: Mapping[Key, int], refused: Collection[Key], now_ms: int) -> None:
        """An answer came; the `refused` keys are tried again, after a back-off."""
        self._answered_ms = now_ms
        for key, version in taken.items():
            entry = self._entries.get(key)
            if entry is None:
                continue
            if key in refused:
                self._back_off(key, entry, version, now_ms)
            elif entry.version == version:
                self._remove(key)
            else:
                entry.put_ms, entry.sent_ms = now_ms, None
                entry.failures = 0
                entry.reported = False

    def failed(self, taken: Mapping[Key, int], now_ms: int) -> None:
        """No answer came: all of them are tried again, after a back-off."""
        for key, version in taken.items():
            entry = self._entries.get(key)
            if entry is not None:
                self._back_off(key, entry, version, now_ms)

    def _back_off(self, key: Key, entry: _Entry, version: int, now_ms: int) -> None:
        # Behind all that wait: those would wait for ever where as many fail as a request takes.
        urgent = key in self._urgent and not entry.failures
        self._remove(key)
        self._entries[key] = entry
        if urgent:
            self._urgent[key] = None
        if entry.version == version:  # else it changed meanwhile and is due as it is
            entry.due_ms = now_ms + backoff_ms(entry.failures)
            entry.failures += 1

    def next_due_ms(self) -> int | None:
        return min((entry.due_ms for entry in self._entries.values()), default=None)

    def overdue(self, now_ms: int, limit_ms: int) -> tuple[Key, ...]:
        """Keys unanswered for `limit_ms` since they were first sent; each is reported once until an answer comes. One
        that waits its turn behind others is not the receiver's fault, while it answers for those: it counts from
        the last answer of any kind."""
        found = []
        for key, entry in self._entries.items():
            since_ms = max(entry.put_ms, self._answered_ms) if entry.sent_ms is None else entry.sent_ms
            if not entry.reported and now_ms - since_ms >= limit_ms:
                entry.reported = True
                found.append(key)
        return tuple(found)
