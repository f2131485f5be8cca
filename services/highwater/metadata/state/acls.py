"""The cluster's ACLs in etcd: a key for each, so that one is added and removed without a look at the others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from typing import NamedTuple

from highwater.metadata.schema.controller_term import ControllerTerm
from highwater.metadata.schema.keys import Keys
from highwater.metadata.state.cluster_watch import watch_listed
from highwater.metadata.state.unreadable_entries import UnreadableEntries
from highwater.metadata.store.etcd_errors import ControllerDeposed
from highwater.metadata.store.store import Store
from highwater.metadata.store.transactions import MAX_TXN_OPERATIONS, Delete, Get, Listing, Put
from highwater.security.acls import Acl

ACL_VALUE = b"{}"
"""Of every ACL's key, which says all."""
AT_ONCE = 480
_PER_TXN = MAX_TXN_OPERATIONS - 1


class VersionedAcls(NamedTuple):
    """All ACLs, as of a revision of etcd; those that cannot be read as what they are taken for."""

    acls: frozenset[Acl]
    revision: int


class StoredAcls(NamedTuple):
    """ACLs by their keys, of which hands may have written several for one, or one that cannot be read."""

    by_key: Mapping[str, tuple[Acl, ...]]

    @property
    def acls(self) -> frozenset[Acl]:
        return frozenset(acl for acls in self.by_key.values() for acl in acls)

    def keys_of(self, acls: Collection[Acl]) -> list[str]:
        """The keys of what is any of these."""
        wanted = frozenset(acls)
        return [key for key, found in self.by_key.items() if not wanted.isdisjoint(found)]


async def read_acls(store: Store, keys: Keys) -> StoredAcls:
    """A linearizable read. Raises `Unavailable`."""
    listing = await store.get_prefix(keys.acls)
    return StoredAcls(await _by_key(keys, [entry.key for entry in listing.entries], UnreadableEntries(quiet=True)))


async def put_acls(store: Store, keys: Keys, term: ControllerTerm, acls: Collection[Acl]) -> None:
    """Adds ACLs; may be repeated, as one that is there stays. Raises `ControllerDeposed`, `Unavailable`,
    `OutcomeUnknown`, `Refused`: some may have been added."""
    await _write(store, keys, term, [Put(keys.acl(acl), ACL_VALUE) for acl in acls])


async def delete_acls(store: Store, keys: Keys, term: ControllerTerm, names: Collection[str]) -> None:
    """Removes ACLs by their keys. Otherwise as `put_acls`."""
    await _write(store, keys, term, [Delete(name) for name in names])


async def _write(store: Store, keys: Keys, term: ControllerTerm, operations: Sequence[Put | Delete]) -> None:
    guard = term.guard(keys)
    for start in range(0, len(operations), _PER_TXN):
        result = await store.txn((guard,), operations[start : start + _PER_TXN], (Get(guard.key),))
        if not result.succeeded:
            raise ControllerDeposed(f"controller epoch {term.controller_epoch} has ended")


async def watch_acls(store: Store, keys: Keys, unreadable: UnreadableEntries) -> AsyncGenerator[VersionedAcls]:
    """All ACLs at first and after every change. Waits out failures of etcd. Raises `StoreClosed`. Use with
    `contextlib.aclosing`."""
    acls: dict[str, tuple[Acl, ...]] = {}
    async with contextlib.aclosing(watch_listed(store, keys.acls)) as updates:
        async for update in updates:
            if isinstance(update, Listing):
                names = [entry.key for entry in update.entries]
                unreadable.listed(frozenset(names))
                acls = await _by_key(keys, names, unreadable)
            else:
                for event in update.events:
                    if event.entry is None:
                        acls.pop(event.key, None)
                        unreadable.read(event.key)
                    else:
                        acls |= await _by_key(keys, (event.key,), unreadable)
            yield VersionedAcls(StoredAcls(acls).acls, update.revision)


async def _by_key(keys: Keys, names: Collection[str], unreadable: UnreadableEntries) -> dict[str, tuple[Acl, ...]]:
    """Other tasks have their turns between pieces of it."""
    found: dict[str, tuple[Acl, ...]] = {}
    for number, name in enumerate(names, 1):
        try:
            found[name] = (keys.parse_acl(name),)
        except ValueError as error:
            found[name] = denied = keys.unreadable_acls(name)
            what = ", ".join(f"{acl.resource_type.name} {acl.name}" for acl in denied)
            unreadable.found(
                name,
                f"an ACL in etcd cannot be read, and nobody but super users may anything on what it may be about "
                f"({what}): repair or delete etcd's key {name[:1000]}: {str(error)[:200]}",
            )
        if number % AT_ONCE == 0:
            await asyncio.sleep(0)
    return found
