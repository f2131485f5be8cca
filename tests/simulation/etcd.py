"""etcd as the cluster sees it: revisions, transactions, leases, watches that lag, and answers that get lost.

Keys are tuples, values the objects of `metadata.schema.models`. The store itself is one and linearizable; what is
simulated is everything between it and those who ask it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from highwater.metadata.store.etcd_errors import Refused

from .network import Network
from .scheduler import Future, Process, Scheduler

Key = tuple[Any, ...]
ETCD = 200  # its place


class Entry(NamedTuple):
    key: Key
    value: Any
    create_revision: int
    mod_revision: int
    lease: int


REFUSED = Refused("etcd refused the request")


class Event(NamedTuple):
    key: Key
    entry: Entry | None
    revision: int


class Compare(NamedTuple):
    key: Key
    field: str  # "create", "mod" or "value"
    expected: Any


class Put(NamedTuple):
    key: Key
    value: Any
    lease: int = 0


class Delete(NamedTuple):
    key: Key


class TxnResult(NamedTuple):
    succeeded: bool
    revision: int
    entries: dict[Key, Entry | None]  # what was compared, as it stood, where it did not succeed


@dataclass(slots=True)
class Lease:
    ttl_ms: int
    expires_ms: int
    keys: dict[Key, None]


class Watch:
    """Events of some keys for one process, in order and late."""

    def __init__(self, etcd: Etcd, owner: Process, wanted: Callable[[Key], bool], seen: Callable[[list[Event]], None]):
        self._etcd = etcd
        self.owner = owner
        self.wanted = wanted
        self._seen = seen
        self._waiting: list[Event] = []
        self.closed = False

    def add(self, event: Event) -> None:
        self._waiting.append(event)
        if len(self._waiting) == 1:
            self._etcd.scheduler.after(self._etcd.watch_lag_ms(), self._deliver)

    def _deliver(self) -> None:
        if self.closed or not self.owner.alive:
            return
        if self._etcd.paused or not self._etcd.network.reaches(ETCD, self.owner.place):
            self._etcd.scheduler.after(200, self._deliver)  # it resumes where it stopped
            return
        events, self._waiting = self._waiting, []
        self.owner.run(self._take, events)

    def _take(self, events: list[Event]) -> None:
        if not self.closed:
            self._seen(events)


class Etcd(Process):
    """`written(key, old, new, compares, writer)` hears of every change before anybody else does."""

    def __init__(self, scheduler: Scheduler, network: Network, written: Callable[..., None]) -> None:
        super().__init__(scheduler, ETCD, "etcd")
        self.network = network
        self.entries: dict[Key, Entry] = {}
        self.revision = 1
        self.late = 0.0  # the part of requests that are carried out after their sender has given them up
        self.lag_ms = 5
        self.full = False  # its alarm NOSPACE: whatever would grow it is refused
        self.not_permitted: set[int] = set()  # places whose token has expired: all that they ask is refused
        self._written = written
        self._leases: dict[int, Lease] = {}
        self._next_lease = 1
        self._watches: list[Watch] = []
        self._history: list[Event] = []

    def watch_lag_ms(self) -> int:
        return 1 + int(self.scheduler.random.random() * self.lag_ms)

    # What a process asks for. None: no answer; whether it was done nobody knows. `Refused`: it was not done.

    def ask(self, asker: Process, timeout_ms: int, what: Callable[..., Any], *args: Any) -> Future:
        random = self.scheduler.random.random
        if self.late and random() < self.late:
            future = Future()
            asker.after(timeout_ms, future.set, None)
            self.scheduler.after(timeout_ms + int(random() * 1500), self.run, what, asker, *args)
            return future
        return self.network.call(asker, ETCD, lambda: self, "on_ask", what, asker, args, timeout_ms=timeout_ms)

    def on_ask(self, reply: Callable[[Any], None], what: Callable[..., Any], asker: Process, args: Any) -> None:
        reply(REFUSED if self._refuses(what, asker, args) else what(asker, *args))

    def _refuses(self, what: Callable[..., Any], asker: Process, args: Any) -> bool:
        if asker.place in self.not_permitted:
            return True
        if not self.full:
            return False
        return what == self.grant or (what == self.txn and any(isinstance(each, Put) for each in args[1]))

    def get(self, asker: Process, keys: Sequence[Key]) -> tuple[list[Entry | None], int]:
        return [self.entries.get(key) for key in keys], self.revision

    def list(self, asker: Process) -> tuple[list[Entry], int]:
        return list(self.entries.values()), self.revision

    def txn(self, asker: Process, compares: Sequence[Compare], operations: Sequence[Put | Delete]) -> TxnResult:
        if not all(self._holds(compare) for compare in compares):
            return TxnResult(False, self.revision, {each.key: self.entries.get(each.key) for each in compares})
        if any(isinstance(each, Put) and each.lease and each.lease not in self._leases for each in operations):
            return TxnResult(False, self.revision, {each.key: self.entries.get(each.key) for each in compares})
        changes = [each for each in operations if isinstance(each, Put) or each.key in self.entries]
        if changes:
            self.revision += 1
            self._apply(changes, compares, asker.name)
        return TxnResult(True, self.revision, {})

    def grant(self, asker: Process, ttl_ms: int) -> int:
        lease = self._next_lease
        self._next_lease += 1
        self._leases[lease] = Lease(ttl_ms, self.now_ms + ttl_ms, {})
        self.scheduler.after(ttl_ms, self.run, self._expire, lease)
        return lease

    def keep_alive(self, asker: Process, lease: int) -> bool:
        """False: there is no such lease (any more)."""
        if lease not in self._leases:
            return False
        self._leases[lease].expires_ms = self.now_ms + self._leases[lease].ttl_ms
        return True

    def revoke(self, asker: Process, lease: int) -> bool:
        held = self._leases.pop(lease, None)
        if held is not None and held.keys:
            self.revision += 1
            self._apply([Delete(key) for key in held.keys], (), asker.name)
        return True

    def watch(
        self, owner: Process, wanted: Callable[[Key], bool], seen: Callable[[list[Event]], None], after_revision: int
    ) -> Watch:
        watch = Watch(self, owner, wanted, seen)
        self._watches.append(watch)
        for event in self._missed(after_revision):
            if wanted(event.key):
                watch.add(event)
        return watch

    def resume(self) -> None:
        for lease in self._leases.values():
            lease.expires_ms = max(lease.expires_ms, self.now_ms + lease.ttl_ms)  # as a new etcd leader extends them
        super().resume()

    # Inside

    def _missed(self, after_revision: int) -> list[Event]:
        start = len(self._history)
        while start and self._history[start - 1].revision > after_revision:
            start -= 1
        return self._history[start:]

    def _holds(self, compare: Compare) -> bool:
        entry = self.entries.get(compare.key)
        if compare.field == "value":
            return entry is not None and bool(entry.value == compare.expected)
        if entry is None:
            return bool(compare.expected == 0)
        return bool(compare.expected == (entry.create_revision if compare.field == "create" else entry.mod_revision))

    def _expire(self, lease: int) -> None:
        held = self._leases.get(lease)
        if held is None:
            return
        left_ms = held.expires_ms - self.now_ms
        if left_ms > 0:
            self.scheduler.after(left_ms, self.run, self._expire, lease)
        else:
            self.revoke(self, lease)

    def _apply(self, operations: Iterable[Put | Delete], compares: Sequence[Compare], writer: str) -> None:
        for operation in operations:
            key = operation.key
            old = self.entries.pop(key, None)
            new = None
            if old is not None and old.lease in self._leases:
                self._leases[old.lease].keys.pop(key, None)
            if isinstance(operation, Put):
                created = self.revision if old is None else old.create_revision
                new = self.entries[key] = Entry(key, operation.value, created, self.revision, operation.lease)
                if operation.lease:
                    self._leases[operation.lease].keys[key] = None
            self._written(key, old, new, compares, writer)
            event = Event(key, new, self.revision)
            self._history.append(event)
            self._watches = [watch for watch in self._watches if not watch.closed and watch.owner.alive]
            for watch in self._watches:
                if watch.wanted(key):
                    watch.add(event)
