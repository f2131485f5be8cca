"""Producer ids, handed out in blocks so that etcd is asked once in a thousand times."""

from __future__ import annotations

import asyncio
import json

from highwater.metadata.schema.keys import Keys
from highwater.metadata.store.etcd_errors import RETRY_PAUSE_S, OutcomeUnknown
from highwater.metadata.store.store import Store
from highwater.metadata.store.transactions import Put, modified_at

BLOCK_SIZE = 1_000


async def allocate_block(store: Store, keys: Keys, size: int = BLOCK_SIZE) -> range:
    """Producer ids that nobody else gets. A block whose allocation has an unknown outcome is given up: ids may be left
    out, never given twice. Raises `Unavailable`."""
    while True:
        entry = await store.get(keys.producer_ids)
        first = 0 if entry is None else int(json.loads(entry.value)["next"])
        value = json.dumps({"next": first + size}).encode()
        compare = modified_at(keys.producer_ids, 0 if entry is None else entry.mod_revision)
        try:
            result = await store.txn((compare,), (Put(keys.producer_ids, value),))
        except OutcomeUnknown:
            await asyncio.sleep(RETRY_PAUSE_S)
            continue
        if result.succeeded:
            return range(first, first + size)


class ProducerIdAllocator:
    """Gives out one id after the other; those left of a block are lost at a restart."""

    def __init__(self, store: Store, keys: Keys, size: int = BLOCK_SIZE) -> None:
        self._store = store
        self._keys = keys
        self._size = size
        self._block = iter(range(0))
        self._lock = asyncio.Lock()

    async def next_id(self) -> int:
        """Raises `Unavailable` where a new block is due and etcd is out of reach."""
        async with self._lock:
            for producer_id in self._block:
                return producer_id
            self._block = iter(await allocate_block(self._store, self._keys, self._size))
            return next(self._block)
