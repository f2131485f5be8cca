"""A key held under a lease of its own, from the moment it is taken until it is lost."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Awaitable, Callable, Sequence

from highwater.metadata.store.etcd_errors import (
    RETRY_PAUSE_S,
    LeaseNotFound,
    OutcomeUnknown,
    Refused,
    StoreError,
    may_pass,
)
from highwater.metadata.store.store import Store
from highwater.metadata.store.transactions import Compare, Entry, Get, Operation, Put, absent
from highwater.telemetry.log import get_logger

_log = get_logger(__name__)


def boottime_ms() -> int:
    """Milliseconds that go on counting while the machine sleeps (RULES 8.1)."""
    if sys.platform == "linux":
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
    return time.monotonic_ns() // 1_000_000


async def always() -> bool:
    return True


class LeasedKey:
    """Take it with `acquire`, then run `hold` until it returns; then make another. Cancelling `hold` leaves the key to
    its lease, `release` deletes it at once."""

    def __init__(
        self,
        store: Store,
        key: str,
        *,
        session_timeout_ms: int,
        may_renew: Callable[[], Awaitable[bool]] = always,
        clock_ms: Callable[[], int] = boottime_ms,
    ) -> None:
        self._store = store
        self._key = key
        self._ttl_s = max(1, -(-session_timeout_ms // 1000))
        self._may_renew = may_renew
        self._clock_ms = clock_ms
        self.lease = 0
        self.create_revision = 0
        self.confirmed_until_ms = 0
        """The time at which the lease may run out, as far as confirmed: send time of the last answered renewal + TTL
        (RULES 8.1)."""

    async def acquire(
        self, value: bytes, compares: Sequence[Compare] = (), operations: Sequence[Operation] = ()
    ) -> bool:
        """Puts the key if it is absent and the compares hold, with the operations, under a fresh lease. False: not so.

        A write of unknown outcome is settled here: the lease tells whether the key is ours. Raises `StoreError` where
        etcd is out of reach.
        """
        sent_ms = self._clock_ms()
        self.lease, self._ttl_s = await self._store.lease_grant(self._ttl_s)
        self.confirmed_until_ms = sent_ms + self._ttl_s * 1000
        try:
            taken = await self._take(value, compares, operations)
        except BaseException:
            await self._abandon()
            raise
        if not taken:
            await self._abandon()
        return taken

    async def _take(self, value: bytes, compares: Sequence[Compare], operations: Sequence[Operation]) -> bool:
        put = (Put(self._key, value, self.lease), *operations)
        while True:
            try:
                result = await self._store.txn((absent(self._key), *compares), put, (Get(self._key),))
            except OutcomeUnknown:
                # The same write again settles it (RULES 2.4): only one of the two can find the key absent.
                await asyncio.sleep(RETRY_PAUSE_S)
                continue
            if result.succeeded:
                self.create_revision = result.revision
                return True
            found = result.entries[0]
            if found is not None and found.lease == self.lease:
                self.create_revision = found.create_revision
                return True
            return False

    async def _abandon(self) -> None:
        """Revokes the lease, without which a put that is still on its way fails."""
        with contextlib.suppress(StoreError):
            await self._store.lease_revoke(self.lease, timeout_s=1.0)

    async def hold(self) -> Entry | None:
        """Keeps the lease alive every third of its TTL, and returns when the key is lost: with what stands there now
        if it was seen, else None. A failure of etcd is not a loss by itself: the key lives as long as its lease."""
        tasks = [asyncio.ensure_future(self._keep_alive()), asyncio.ensure_future(self._watch())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            # Both may have ended at once; the watch knows more.
            return (tasks[1] if tasks[1] in done else tasks[0]).result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def release(self) -> None:
        """Revokes the lease: the key is gone for everybody at once. Raises `StoreError`; then the lease expires."""
        await self._store.lease_revoke(self.lease)

    async def _keep_alive(self) -> None:
        """Returns when the lease is gone."""
        pause_s = self._ttl_s / 3
        while True:
            await asyncio.sleep(pause_s)
            pause_s = self._ttl_s / 12
            if not await self._may_renew():
                continue
            sent_ms = self._clock_ms()
            try:
                await self._store.lease_keepalive(self.lease, timeout_s=self._ttl_s / 3)
            except LeaseNotFound:
                return
            except StoreError as error:
                _log.warning("cannot renew the lease of %s: %s", self._key, error)
                continue
            self.confirmed_until_ms = sent_ms + self._ttl_s * 1000
            pause_s = self._ttl_s / 3

    async def _watch(self) -> Entry | None:
        """Returns when the key is gone or another's (keepalive answers alone prove nothing, RULES 1.4). Where etcd may
        not be watched, the key is read again and again instead; it counts as lost where that is refused too, for a TTL.
        """
        revision = self.create_revision
        seen_ms = self._clock_ms()
        while True:
            try:
                async with contextlib.aclosing(self._store.watch(self._key, revision + 1)) as batches:
                    async for batch in batches:
                        for event in batch.events:
                            if event.entry is None or event.entry.create_revision != self.create_revision:
                                return event.entry
            except StoreError as error:
                if not may_pass(error):
                    _log.error("cannot watch %s, it counts as lost: %s", self._key, error)
                    return None
            try:
                entries, revision = await self._store.get_many((self._key,))
            except StoreError as error:
                if not may_pass(error) or (
                    isinstance(error, Refused) and self._clock_ms() - seen_ms >= self._ttl_s * 1000
                ):
                    _log.error("cannot read %s, it counts as lost: %s", self._key, error)
                    return None
                await asyncio.sleep(RETRY_PAUSE_S)
                continue
            seen_ms = self._clock_ms()
            found = entries.get(self._key)
            if found is None or found.create_revision != self.create_revision:
                return found
