"""The cluster's metadata as a stream: first all of it, then what changes (RULES 1.5, 8.4)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import TypeVar

from highwater.metadata.schema.cluster_view import (
    BrokerChange,
    Change,
    ClusterChanges,
    ClusterSnapshot,
    ListedCluster,
    decode_events,
    decode_snapshot,
)
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import LiveBroker
from highwater.metadata.state.unreadable_entries import UnreadableEntries
from highwater.metadata.store.etcd_errors import StoreError, may_pass
from highwater.metadata.store.store import Store
from highwater.metadata.store.transactions import Listing, WatchBatch
from highwater.telemetry.log import get_logger

_log = get_logger(__name__)

RETRY_PAUSE_S = 0.2
Part = TypeVar("Part")
AT_ONCE = 240
"""Entries, or events, that are read before others have a turn of the event loop: each is some 50 us of it."""


async def watch_cluster(
    store: Store, keys: Keys, unreadable: UnreadableEntries | None = None
) -> AsyncGenerator[ClusterSnapshot | ClusterChanges]:
    """A `ClusterSnapshot` at first, then `ClusterChanges` without a gap; where continuity was lost (compaction), a
    fresh snapshot, to be compared with what was known by (id, create revision) (RULES 1.5).

    Waits out failures of etcd. Entries that cannot be read are left out and told to `unreadable`; without it they raise
    `CorruptMetadataError`. Raises `StoreClosed`. Use with `contextlib.aclosing`.
    """
    async with contextlib.aclosing(watch_listed(store, keys.everything)) as updates:
        async for update in updates:
            if isinstance(update, Listing):
                if unreadable is not None:
                    unreadable.listed({entry.key for entry in update.entries})
                listed = ListedCluster(keys, update.revision, unreadable)
                for entries in _in_pieces(update.entries):
                    listed.take(entries)
                    await asyncio.sleep(0)
                yield listed.snapshot()
                continue
            changes: list[Change] = []
            for number, events in enumerate(_in_pieces(update.events)):
                if number:
                    await asyncio.sleep(0)
                changes += decode_events(keys, events, unreadable)
            if changes:
                yield ClusterChanges(update.revision, tuple(changes))


def _in_pieces(parts: Sequence[Part]) -> Iterator[Sequence[Part]]:
    return (parts[first : first + AT_ONCE] for first in range(0, len(parts), AT_ONCE))


async def watch_brokers(store: Store, keys: Keys) -> AsyncGenerator[dict[int, LiveBroker]]:
    """All registered brokers by id, at first and after every change. A broker that restarted has another broker epoch.
    A registration that cannot be read is left out. Otherwise as `watch_cluster`."""
    brokers: dict[int, LiveBroker] = {}
    unreadable = UnreadableEntries()
    async with contextlib.aclosing(watch_listed(store, keys.broker_ids)) as updates:
        async for update in updates:
            if isinstance(update, Listing):
                unreadable.listed({entry.key for entry in update.entries})
                brokers = dict(decode_snapshot(keys, update, unreadable).brokers)
            else:
                brokers = dict(brokers)
                for change in decode_events(keys, update.events, unreadable):
                    if isinstance(change, BrokerChange) and change.broker is not None:
                        brokers[change.broker_id] = change.broker
                    elif isinstance(change, BrokerChange):
                        brokers.pop(change.broker_id, None)
            yield brokers


async def watch_listed(store: Store, prefix: str) -> AsyncGenerator[Listing | WatchBatch]:
    """A listing of the prefix and then every event after it; another listing after compaction."""
    while True:
        try:
            listing = await store.get_prefix(prefix)
        except StoreError as error:
            if not may_pass(error):
                raise
            _log.warning("cannot list %s: %s", prefix, error)
            await asyncio.sleep(RETRY_PAUSE_S)
            continue
        yield listing
        try:
            async with contextlib.aclosing(store.watch_prefix(prefix, listing.revision + 1)) as batches:
                async for batch in batches:
                    yield batch
        except StoreError as error:
            if not may_pass(error):
                raise
            _log.warning("%s is listed again: %s", prefix, error)
