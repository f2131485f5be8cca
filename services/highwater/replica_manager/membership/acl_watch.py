"""The cluster's ACLs, as etcd has them, for the broker's authorizer."""

from __future__ import annotations

import asyncio
import contextlib

from highwater.metadata.schema.keys import Keys
from highwater.metadata.state.acls import watch_acls
from highwater.metadata.state.unreadable_entries import UnreadableEntries
from highwater.metadata.store.store import Store
from highwater.security.access import Authorization
from highwater.telemetry.log import get_logger

logger = get_logger("replica_manager.acl_watch")


class AclWatch:
    """Until the first answer of etcd no call of a client is taken. Later, while etcd cannot be reached, what was known
    last counts."""

    def __init__(self, store: Store, keys: Keys, authorization: Authorization) -> None:
        self._store = store
        self._keys = keys
        self._authorization = authorization
        self.unreadable = UnreadableEntries()

    async def run(self) -> None:
        """Runs for ever."""
        async with contextlib.aclosing(watch_acls(self._store, self._keys, self.unreadable)) as updates:
            async for acls, revision in updates:
                for _ in self._authorization.authorizer.changing(acls, revision):
                    await asyncio.sleep(0)
                logger.info("ACLs revision=%d count=%d", revision, len(acls))
                for tell in self._authorization.listening():  # each may have much to look at
                    for _ in tell() or ():
                        await asyncio.sleep(0)
                    await asyncio.sleep(0)
