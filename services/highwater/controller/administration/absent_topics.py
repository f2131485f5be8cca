"""The question which topics do not exist, put to etcd for all who ask: one read at a time, however many do (RULES 9.5).

Clients that send to a topic which nobody made ask again and again, and etcd keeps the leases of all brokers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from itertools import islice
from time import monotonic

from highwater.metadata.schema.keys import Keys
from highwater.metadata.state.topics import read_absent_topics
from highwater.metadata.store.etcd_errors import StoreError, Unavailable
from highwater.metadata.store.store import Store

MAX_NAMES = 64  # of one read: a transaction of etcd, with two keys each
READ_TIMEOUT_S = 1.0
READ_INTERVAL_S = 0.01  # between the beginnings of two reads
PATIENCE_S = 2.0  # of one question, for the reads before its own and that

_Outcome = frozenset[str] | StoreError


class AbsentTopics:
    """Of one controller, whatever its terms: what etcd says does not depend on them."""

    def __init__(self, store: Store, keys: Keys) -> None:
        self._store = store
        self._keys = keys
        self._waiting: dict[asyncio.Future[_Outcome], Collection[str]] = {}  # at most MAX_NAMES each
        self._wake = asyncio.Event()
        self._began_s = float("-inf")

    async def among(self, names: Collection[str]) -> frozenset[str]:
        """Those of the names that no topic has, or one that is being deleted, by reads that begin after this call.
        Raises `StoreError` where etcd does not say so within `PATIENCE_S`."""
        absent: set[str] = set()
        left = iter(names)
        try:
            async with asyncio.timeout(PATIENCE_S):
                while some := list(islice(left, MAX_NAMES)):
                    absent |= await self._ask(some)
        except TimeoutError:
            message = f"etcd was not read within {PATIENCE_S:g} s, as others asked before: try again"
            raise Unavailable(message) from None
        return frozenset(absent)

    async def _ask(self, names: Collection[str]) -> frozenset[str]:
        asked: asyncio.Future[_Outcome] = asyncio.get_running_loop().create_future()
        self._waiting[asked] = names
        self._wake.set()
        try:
            outcome = await asked
        finally:
            self._waiting.pop(asked, None)  # nobody reads for a caller that has left
        if isinstance(outcome, StoreError):
            raise Unavailable(str(outcome)) from outcome
        return outcome & frozenset(names)

    async def answer(self) -> None:
        """Runs for ever. Whoever waits when a read begins has its answer, and nobody else."""
        while True:
            await self._wake.wait()
            while self._waiting:
                await asyncio.sleep(max(0.0, self._began_s + READ_INTERVAL_S - monotonic()))
                self._began_s = monotonic()
                await self._read_once()
            self._wake.clear()

    async def _read_once(self) -> None:
        names, asked = self._next()
        outcome: _Outcome = Unavailable("the read of etcd has failed")
        try:
            outcome = await read_absent_topics(self._store, self._keys, names, timeout_s=READ_TIMEOUT_S)
        except StoreError as error:
            outcome = error
        finally:
            for each in asked:
                if not each.done():
                    each.set_result(outcome)

    def _next(self) -> tuple[set[str], list[asyncio.Future[_Outcome]]]:
        """Takes questions in the order in which they came, as many as fit into one read."""
        names: set[str] = set()
        asked = []
        for each, wanted in self._waiting.items():
            if len(names.union(wanted)) > MAX_NAMES:
                break
            names.update(wanted)
            asked.append(each)
        for each in asked:
            del self._waiting[each]
        return names, asked
