"""Producer ids, handed out in blocks so that etcd is asked once in a thousand times."""

from __future__ import annotations

import asyncio
import json
import secrets

from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.reading import CorruptMetadataError, json_object, number, readable
from highwater.metadata.store.etcd_errors import RETRY_PAUSE_S, OutcomeUnknown
from highwater.metadata.store.store import Store
from highwater.metadata.store.transactions import Entry, Put, modified_at
from highwater.telemetry.log import get_logger

BLOCK_SIZE = 1_000
# Where nothing says which ids were given out, the next one is anywhere below: none of those is met again. Tools that
# show JSON have floats of 53 bits.
MOST_BLOCKS = 2**52 // BLOCK_SIZE

_log = get_logger(__name__)


async def allocate_block(store: Store, keys: Keys, size: int = BLOCK_SIZE) -> range:
    """Producer ids that nobody else gets. A block whose allocation has an unknown outcome is given up: ids may be left
    out, never given twice. Raises `Unavailable`."""
    while True:
        entry = await store.get(keys.producer_ids)
        first = _next(entry)
        value = json.dumps({"next": first + size}).encode()
        compare = modified_at(keys.producer_ids, 0 if entry is None else entry.mod_revision)
        try:
            result = await store.txn((compare,), (Put(keys.producer_ids, value),))
        except OutcomeUnknown:
            await asyncio.sleep(RETRY_PAUSE_S)
            continue
        if result.succeeded:
            return range(first, first + size)


def _next(entry: Entry | None) -> int:
    if entry is not None:
        try:
            return readable(entry, lambda each: number(json_object(each.value)["next"], "next", most=2**62))
        except CorruptMetadataError as error:
            _log.error("%s; producers' ids begin anew at a random number", error)
    return secrets.randbelow(MOST_BLOCKS) * BLOCK_SIZE


class ProducerIdAllocator:
    """Gives out the ids of a block in any order: of one's own, others' cannot be told. Those left of a block are lost
    at a restart."""

    def __init__(self, store: Store, keys: Keys, size: int = BLOCK_SIZE) -> None:
        self._store = store
        self._keys = keys
        self._size = size
        self._block = iter(list[int]())
        self._lock = asyncio.Lock()

    async def next_id(self) -> int:
        """Raises `Unavailable` where a new block is due and etcd is out of reach."""
        async with self._lock:
            for producer_id in self._block:
                return producer_id
            block = list(await allocate_block(self._store, self._keys, self._size))
            secrets.SystemRandom().shuffle(block)
            self._block = iter(block)
            return next(self._block)
