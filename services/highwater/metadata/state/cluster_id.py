"""The cluster's own id: tells an etcd that lost everything from one in which everything was deleted (RULES 9.3)."""

from __future__ import annotations

import asyncio
import re

from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.reading import CorruptMetadataError
from highwater.metadata.store.etcd_errors import RETRY_PAUSE_S, OutcomeUnknown
from highwater.metadata.store.store import Store
from highwater.metadata.store.transactions import Entry, Get, Put, absent

_CLUSTER_ID = re.compile(r"[!-~]{1,255}")
_REMEDY = "put that of the log directories back (cluster.id in meta.properties); no log is deleted till then"


async def ensure_cluster_id(store: Store, keys: Keys, candidate: str) -> str:
    """The cluster's id; `candidate` (a fresh UUID) becomes it where there is none yet.

    Raises `Unavailable`, and `CorruptMetadataError` where there is none though there are topics, or none that can be
    read: a new one would tell brokers that their logs are another cluster's.
    """
    while True:
        entries, _ = await store.get_many((keys.cluster_id,))
        found = entries.get(keys.cluster_id)
        if found is None and await store.has_prefix(keys.topics):
            raise CorruptMetadataError(f"etcd's key {keys.cluster_id} is missing: {_REMEDY}")
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
        cluster_id = cluster_id_of(found)
        if not cluster_id:
            raise CorruptMetadataError(f"etcd's key {keys.cluster_id} is no cluster id: {_REMEDY}")
        return cluster_id


def cluster_id_of(entry: Entry | None) -> str:
    """ "" where there is none, or none that can be read."""
    text = "" if entry is None else entry.value.decode(errors="replace")
    return text if _CLUSTER_ID.fullmatch(text) else ""
