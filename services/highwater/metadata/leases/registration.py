"""A broker's registration: its lease, its broker epoch, and how it learns that it is no longer registered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from highwater.metadata.leases.leased_key import LeasedKey, boottime_ms
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import BrokerRegistration
from highwater.metadata.schema.reading import CorruptMetadataError, readable
from highwater.metadata.store.etcd_errors import RETRY_PAUSE_S, LeaseNotFound, StoreError, may_pass
from highwater.metadata.store.store import Store
from highwater.metadata.store.transactions import Delete, Entry, Put, created_at
from highwater.supervision import uncancelled
from highwater.telemetry.log import get_logger, pairs

_log = get_logger(__name__)


class DuplicateBrokerIdError(Exception):
    """A process that started later registered under this broker's id. The older one yields."""


class BrokerRegistrar:
    """Registers one broker and keeps it registered (RULES 1.4, 8.1, 8.2).

    `probe` returns when log-storage has answered through its append loop and raises if it cannot: the lease is renewed
    only while it has answered within half of the session's time-out. `on_lost` is called once for each registration
    that was lost (not after `deregister`, nor where `register` is called again): the broker stops leading and registers
    again.
    """

    def __init__(
        self,
        store: Store,
        keys: Keys,
        *,
        session_timeout_ms: int,
        probe: Callable[[], Awaitable[object]],
        on_lost: Callable[[], None],
        clock_ms: Callable[[], int] = boottime_ms,
    ) -> None:
        self._store = store
        self._keys = keys
        self._session_timeout_ms = session_timeout_ms
        self._probe = probe
        self._on_lost = on_lost
        self._clock_ms = clock_ms
        self._held: LeasedKey | None = None
        self._holding: asyncio.Task[None] | None = None
        self._registration: BrokerRegistration | None = None
        self.updated_at = 0  # mod revision of the last `update` that was done
        self._probe_failing = False

    @property
    def broker_epoch(self) -> int | None:
        """Create revision of the registration; None while not registered."""
        return None if self._held is None else self._held.create_revision

    @property
    def registration(self) -> BrokerRegistration | None:
        """The registration as last written; None while not registered."""
        return None if self._held is None else self._registration

    @property
    def confirmed_until_ms(self) -> int:
        """CLOCK_BOOTTIME (ms) until which the lease is confirmed; 0 while not registered. Past it, acks 0 and 1 are
        refused (RULES 8.1)."""
        return 0 if self._held is None else self._held.confirmed_until_ms

    async def register(self, registration: BrokerRegistration) -> int:
        """Registers anew under a fresh lease and returns the new broker epoch; tries until etcd answers.

        The key of an earlier start is deleted first, in a transaction of its own: a put over it would keep its create
        revision, and the restart would be invisible. Raises `DuplicateBrokerIdError` where this registrar held the
        key before and another process's registration stands there now.
        """
        registered_before = self._registration
        await self._let_go()
        key = self._keys.broker(registration.broker_id)
        while True:
            try:
                found = await self._store.get(key)
                if found is not None:
                    self._yield_to_later_process(registered_before, found)
                    await self._store.txn((created_at(key, found.create_revision),), (Delete(key),))
                held = self._leased_key(key)
                if await held.acquire(registration.to_json()):
                    break
            except StoreError as error:
                if not may_pass(error):
                    raise
                _log.warning("cannot register: %s", pairs(broker=registration.broker_id, error=error))
                await asyncio.sleep(RETRY_PAUSE_S)
        self._held = held
        self._registration = registration
        self._holding = asyncio.create_task(self._hold(held))
        _log.info("registered %s", pairs(broker=registration.broker_id, epoch=held.create_revision))
        return held.create_revision

    async def update(self, registration: BrokerRegistration) -> bool:
        """Writes the registration anew (a broker that begins to shut down, say) under the same broker epoch and lease.
        False: this broker is not registered any more. Tries until etcd answers."""
        held = self._held
        if held is None:
            return False
        key = self._keys.broker(registration.broker_id)
        while True:
            try:
                result = await self._store.txn(
                    (created_at(key, held.create_revision),), (Put(key, registration.to_json(), held.lease),)
                )
            except LeaseNotFound:
                return False
            except StoreError as error:
                if not may_pass(error):
                    raise
                await asyncio.sleep(RETRY_PAUSE_S)  # the same value again does no harm
                continue
            if result.succeeded and self._held is held:
                self._registration, self.updated_at = registration, result.revision
            return result.succeeded

    async def deregister(self) -> None:
        """Ends the registration. Where etcd cannot be reached it ends with its lease."""
        held = self._held
        await self._let_go()
        self._registration = None
        if held is not None:
            try:
                await held.release()
            except StoreError as error:
                _log.warning("the registration will end with its lease: %s", error)

    async def close(self) -> None:
        """Stops renewing and leaves the registration to its lease."""
        await self._let_go()

    async def _let_go(self) -> None:
        held, self._held = self._held, None
        holding, self._holding = self._holding, None
        if held is not None:
            held.let_go()
        if holding is not None and holding is not asyncio.current_task():
            holding.cancel()
            await asyncio.gather(holding, return_exceptions=True)

    def _leased_key(self, key: str) -> LeasedKey:
        return LeasedKey(
            self._store,
            key,
            session_timeout_ms=self._session_timeout_ms,
            at_work=self._log_storage_answers,
            clock_ms=self._clock_ms,
        )

    @staticmethod
    def _yield_to_later_process(ours: BrokerRegistration | None, found: Entry) -> None:
        try:
            other = readable(found, lambda each: BrokerRegistration.from_json(each.value))
        except CorruptMetadataError as error:
            _log.error("%s; it is replaced", error)
            return
        if ours is not None and other.incarnation != ours.incarnation:
            raise DuplicateBrokerIdError(
                f"another process registered as broker {other.broker_id} at {other.address}: "
                "give every broker a broker.id of its own, or stop one of the two"
            )

    async def _hold(self, held: LeasedKey) -> None:
        try:
            await uncancelled(held.hold())
        except Exception:
            # A bug of ours: a broker that does not know that it is registered stops leading, and registers anew.
            _log.exception("the registration cannot be held %s", pairs(epoch=held.create_revision))
        if self._held is held:
            self._held = None
            _log.warning("registration lost: %s", pairs(epoch=held.create_revision))
            self._on_lost()

    async def _log_storage_answers(self) -> bool:
        """Probes log-storage. The lease is renewed only while it answers (RULES 8.2)."""
        try:
            async with asyncio.timeout(self._session_timeout_ms / 2000):
                await self._probe()
        except Exception as error:  # whatever it is, log-storage did not answer
            if not self._probe_failing:
                _log.warning("the lease is not renewed, log-storage does not answer: %r", error)
            self._probe_failing = True
            return False
        self._probe_failing = False
        return True
