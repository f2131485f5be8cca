"""A key held under a lease of its own, from the moment it is taken until it is lost."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Awaitable, Callable, Sequence

from highwater.metadata.leases.lease_renewal import LeaseRenewal
from highwater.metadata.store.etcd_errors import (
    RETRY_PAUSE_S,
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
    """Take it with `acquire`, then run `hold` until it returns; then make another. Cancelling `hold`, or `let_go` where
    it may not have begun, leaves the key to its lease; `release` deletes it at once.

    The lease is renewed by a thread, from the grant on. `at_work` is asked on the event loop while the key is held, and
    says whether the process does what it holds the key for: the lease is renewed only where that was so within half of
    the session's time-out, counted from the question (RULES 8.2).
    """

    def __init__(
        self,
        store: Store,
        key: str,
        *,
        session_timeout_ms: int,
        at_work: Callable[[], Awaitable[bool]] = always,
        clock_ms: Callable[[], int] = boottime_ms,
    ) -> None:
        self._store = store
        self._key = key
        self._ttl_s = max(1, -(-session_timeout_ms // 1000))
        self._patience_ms = session_timeout_ms // 2
        self._at_work = at_work
        self._clock_ms = clock_ms
        self._renewal: LeaseRenewal | None = None
        self.lease = 0
        self.create_revision = 0

    @property
    def confirmed_until_ms(self) -> int:
        """The time at which the lease may run out, as far as confirmed: send time of the last answered renewal + TTL
        (RULES 8.1); 0 before `acquire`, and once etcd has said that it is gone."""
        return 0 if self._renewal is None else self._renewal.confirmed_until_ms

    async def acquire(
        self, value: bytes, compares: Sequence[Compare] = (), operations: Sequence[Operation] = ()
    ) -> bool:
        """Puts the key if it is absent and the compares hold, with the operations, under a fresh lease. False: not so.

        A write of unknown outcome is settled here: the lease tells whether the key is ours. Raises `StoreError` where
        etcd is out of reach.
        """
        sent_ms = self._clock_ms()
        self.lease, self._ttl_s = await self._store.lease_grant(self._ttl_s)
        try:
            self._renewal = LeaseRenewal(
                self._store.blocking_leases(),
                self.lease,
                key=self._key,
                ttl_s=self._ttl_s,
                patience_ms=self._patience_ms,
                granted_ms=sent_ms,
                clock_ms=self._clock_ms,
            )
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
        self.let_go()
        with contextlib.suppress(StoreError):
            await self._store.lease_revoke(self.lease, timeout_s=1.0)

    async def hold(self) -> Entry | None:
        """Returns when the key is lost: with what stands there now if it was seen, else None. A failure of etcd is not
        a loss by itself: the key lives as long as its lease."""
        renewal = self._renewal
        assert renewal is not None, "the key was not taken"
        tasks = [
            asyncio.ensure_future(renewal.ended()),
            asyncio.ensure_future(self._watch()),
            asyncio.ensure_future(self._show_life(renewal)),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            # Several may have ended at once; the watch knows most.
            return (tasks[1] if tasks[1] in done else done.pop()).result()
        finally:
            self.let_go()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def let_go(self) -> None:
        """Begins no renewal any more."""
        if self._renewal is not None:
            self._renewal.close()

    async def release(self) -> None:
        """Revokes the lease: the key is gone for everybody at once. Raises `StoreError`; then the lease expires."""
        self.let_go()
        await self._store.lease_revoke(self.lease)

    async def _show_life(self, renewal: LeaseRenewal) -> None:
        while True:
            asked_ms = self._clock_ms()
            if await self._at_work():
                renewal.show_life(asked_ms)
            await asyncio.sleep(self._patience_ms / 4000)

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
