"""The cluster's ACLs in etcd: a key for each, so that one is added and removed without a look at the others."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Collection, Iterable, Sequence
from typing import NamedTuple

from highwater.metadata.schema.controller_term import ControllerTerm
from highwater.metadata.schema.keys import Keys
from highwater.metadata.state.cluster_watch import watch_listed
from highwater.metadata.store.etcd_errors import ControllerDeposed
from highwater.metadata.store.store import Store
from highwater.metadata.store.transactions import MAX_TXN_OPERATIONS, Delete, Get, Listing, Put
from highwater.security.acls import Acl
from highwater.telemetry.log import get_logger

_log = get_logger(__name__)

ACL_VALUE = b"{}"
"""Of every ACL's key, which says all."""
_PER_TXN = MAX_TXN_OPERATIONS - 1


class VersionedAcls(NamedTuple):
    """All ACLs, as of a revision of etcd."""

    acls: frozenset[Acl]
    revision: int


async def read_acls(store: Store, keys: Keys) -> VersionedAcls:
    """A linearizable read. Raises `Unavailable`."""
    listing = await store.get_prefix(keys.acls)
    return VersionedAcls(frozenset(_readable(keys, (entry.key for entry in listing.entries))), listing.revision)


async def put_acls(store: Store, keys: Keys, term: ControllerTerm, acls: Collection[Acl]) -> None:
    """Adds ACLs; may be repeated, as one that is there stays. Raises `ControllerDeposed`, `Unavailable`,
    `OutcomeUnknown`, `Refused`: some may have been added."""
    await _write(store, keys, term, [Put(keys.acl(acl), ACL_VALUE) for acl in acls])


async def delete_acls(store: Store, keys: Keys, term: ControllerTerm, acls: Collection[Acl]) -> None:
    """Removes ACLs. Otherwise as `put_acls`."""
    await _write(store, keys, term, [Delete(keys.acl(acl)) for acl in acls])


async def _write(store: Store, keys: Keys, term: ControllerTerm, operations: Sequence[Put | Delete]) -> None:
    guard = term.guard(keys)
    for start in range(0, len(operations), _PER_TXN):
        result = await store.txn((guard,), operations[start : start + _PER_TXN], (Get(guard.key),))
        if not result.succeeded:
            raise ControllerDeposed(f"controller epoch {term.controller_epoch} has ended")


async def watch_acls(store: Store, keys: Keys) -> AsyncGenerator[VersionedAcls]:
    """All ACLs at first and after every change. Waits out failures of etcd. Raises `StoreClosed`. Use with
    `contextlib.aclosing`."""
    acls: dict[str, Acl] = {}
    async with contextlib.aclosing(watch_listed(store, keys.acls)) as updates:
        async for update in updates:
            if isinstance(update, Listing):
                acls = _by_key(keys, (entry.key for entry in update.entries))
            else:
                for event in update.events:
                    if event.entry is None:
                        acls.pop(event.key, None)
                    else:
                        acls |= _by_key(keys, (event.key,))
            yield VersionedAcls(frozenset(acls.values()), update.revision)


def _readable(keys: Keys, names: Iterable[str]) -> Iterable[Acl]:
    return _by_key(keys, names).values()


def _by_key(keys: Keys, names: Iterable[str]) -> dict[str, Acl]:
    """Without those that cannot be read, of which the log tells."""
    found = {}
    for name in names:
        try:
            found[name] = keys.parse_acl(name)
        except ValueError as error:
            _log.error("an ACL in etcd cannot be read and does not count, key=%s: %s", name[:1000], error)
    return found
