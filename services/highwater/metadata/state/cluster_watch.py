"""The cluster's metadata as a stream: first all of it, then what changes (RULES 1.5, 8.4)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from highwater.metadata.schema.cluster_view import (
    BrokerChange,
    ClusterChanges,
    ClusterSnapshot,
    decode_events,
    decode_snapshot,
    live_broker,
)
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import LiveBroker
from highwater.metadata.store.etcd_errors import StoreError, may_pass
from highwater.metadata.store.store import Store
from highwater.metadata.store.transactions import Listing, WatchBatch
from highwater.telemetry.log import get_logger

_log = get_logger(__name__)

RETRY_PAUSE_S = 0.2


async def watch_cluster(store: Store, keys: Keys) -> AsyncGenerator[ClusterSnapshot | ClusterChanges]:
    """A `ClusterSnapshot` at first, then `ClusterChanges` without a gap; where continuity was lost (compaction), a
    fresh snapshot, to be compared with what was known by (id, create revision) (RULES 1.5).

    Waits out failures of etcd. Raises `CorruptMetadataError` and `StoreClosed`. Use with `contextlib.aclosing`.
    """
    async with contextlib.aclosing(watch_listed(store, keys.everything)) as updates:
        async for update in updates:
            if isinstance(update, Listing):
                yield decode_snapshot(keys, update)
            elif changes := decode_events(keys, update.events):
                yield ClusterChanges(update.revision, changes)


async def watch_brokers(store: Store, keys: Keys) -> AsyncGenerator[dict[int, LiveBroker]]:
    """All registered brokers by id, at first and after every change. A broker that restarted has another broker epoch.
    Otherwise as `watch_cluster`."""
    brokers: dict[int, LiveBroker] = {}
    async with contextlib.aclosing(watch_listed(store, keys.broker_ids)) as updates:
        async for update in updates:
            if isinstance(update, Listing):
                found = map(live_broker, update.entries)
                brokers = {broker.registration.broker_id: broker for broker in found}
            else:
                brokers = dict(brokers)
                for change in decode_events(keys, update.events):
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
