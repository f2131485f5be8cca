"""The cluster's own id: tells an etcd that lost everything from one in which everything was deleted (RULES 9.3)."""

from __future__ import annotations

import asyncio

from highwater.metadata.schema.keys import Keys
from highwater.metadata.store.etcd_errors import RETRY_PAUSE_S, OutcomeUnknown
from highwater.metadata.store.store import Store
from highwater.metadata.store.transactions import Get, Put, absent


async def ensure_cluster_id(store: Store, keys: Keys, candidate: str) -> str:
    """The cluster's id; `candidate` (a fresh UUID) becomes it where there is none yet. Raises `Unavailable`."""
    while True:
        try:
            result = await store.txn(
                (absent(keys.cluster_id),), (Put(keys.cluster_id, candidate.encode()),), (Get(keys.cluster_id),)
            )
        except OutcomeUnknown:
            await asyncio.sleep(RETRY_PAUSE_S)
            continue
        if result.succeeded:
            return candidate
        found = result.entries[0]
        assert found is not None
        return found.value.decode()
