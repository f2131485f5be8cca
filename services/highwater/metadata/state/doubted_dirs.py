"""Log directories of which a disk may have lost what had been written, kept where no disk can lose it (RULES 7.2)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from highwater.metadata.schema.keys import Keys
from highwater.metadata.store.store import Store
from highwater.metadata.store.transactions import MAX_TXN_OPERATIONS, Delete, Put, modified_at


async def remember_doubted(store: Store, keys: Keys, directory_ids: Collection[str]) -> None:
    """Puts a key for each; may be repeated. Raises `StoreError`."""
    puts = [Put(keys.doubted_dir(directory_id), b"") for directory_id in sorted(directory_ids)]
    for start in range(0, len(puts), MAX_TXN_OPERATIONS):
        await store.txn((), puts[start : start + MAX_TXN_OPERATIONS])


async def doubted_dirs(store: Store, keys: Keys) -> dict[str, int]:
    """Directory ids, of all brokers, and the revision at which each was last put. Raises `StoreError`."""
    listing = await store.get_prefix(keys.doubted_dirs)
    return {entry.key.removeprefix(keys.doubted_dirs): entry.mod_revision for entry in listing.entries}


async def forget_doubted(store: Store, keys: Keys, settled: Mapping[str, int]) -> None:
    """Deletes those that have not been put again since `doubted_dirs` gave these revisions. Raises `StoreError`."""
    for directory_id, revision in settled.items():
        key = keys.doubted_dir(directory_id)
        await store.txn((modified_at(key, revision),), (Delete(key),))
