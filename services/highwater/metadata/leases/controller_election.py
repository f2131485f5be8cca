"""The election of the active controller: the one that holds `/controller` (RULES 1.2, 2.2)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from highwater.metadata.leases.leased_key import LeasedKey, boottime_ms
from highwater.metadata.schema.cluster_view import versioned_state
from highwater.metadata.schema.controller_term import ControllerTerm
from highwater.metadata.schema.keys import Keys, StateKey
from highwater.metadata.schema.models import ControllerRegistration
from highwater.metadata.schema.reading import CorruptMetadataError, counter, readable
from highwater.metadata.store.etcd_errors import RETRY_PAUSE_S, StoreError, may_pass
from highwater.metadata.store.store import Store
from highwater.metadata.store.transactions import Delete, Entry, Put, modified_at
from highwater.supervision import uncancelled
from highwater.telemetry.log import get_logger, pairs

_log = get_logger(__name__)


async def read_controller(store: Store, keys: Keys) -> ControllerRegistration | None:
    """The controller that acts now, if there is one. Raises `CorruptMetadataError`."""
    entry = await store.get(keys.controller)
    return None if entry is None else readable(entry, _registration)


def _registration(entry: Entry) -> ControllerRegistration:
    return ControllerRegistration.from_json(entry.value)


async def read_controller_epoch(store: Store, keys: Keys) -> int:
    """The highest controller epoch so far, 0 before the first election. A starting replica-manager reads it before it
    takes instructions (RULES 1.2). Where that cannot be read it is at least that of any partition's state, which the
    next election counts on from."""
    entry = await store.get(keys.controller_epoch)
    if entry is not None:
        try:
            return readable(entry, counter)
        except CorruptMetadataError as error:
            _log.error("%s; the next election counts on from the partitions' states", error)
    return await _highest_epoch_of_states(store, keys)


async def _highest_epoch_of_states(store: Store, keys: Keys) -> int:
    """0 in a new cluster. A controller that wrote no state is not among them: brokers that know a later one refuse the
    next, which is elected again then, under an epoch more."""
    epochs = [0]
    for entry in (await store.get_prefix(keys.topics)).entries:
        if isinstance(keys.parse(entry.key), StateKey):
            with contextlib.suppress(CorruptMetadataError):
                epochs.append(readable(entry, versioned_state).state.controller_epoch)
    return max(epochs)


class ControllerElection:
    """One candidate. `campaign` returns when it is elected, `lost` when it is not any more; then campaign again."""

    def __init__(
        self,
        store: Store,
        keys: Keys,
        *,
        controller_id: int,
        address: str,
        incarnation: str,
        session_timeout_ms: int,
        clock_ms: Callable[[], int] = boottime_ms,
    ) -> None:
        self._store = store
        self._keys = keys
        self._controller_id = controller_id
        self._address = address
        self._incarnation = incarnation
        self._session_timeout_ms = session_timeout_ms
        self._clock_ms = clock_ms
        self._held: LeasedKey | None = None
        self._holding: asyncio.Task[Entry | None] | None = None
        self.acting: ControllerRegistration | None = None
        """The controller that acts, as last seen here; for answers of NOT_CONTROLLER."""
        self._failing_since_ms: int | None = None

    @property
    def stands(self) -> bool:
        """True where this candidate could take over; false where etcd has not let it stand for a session's time-out."""
        since_ms = self._failing_since_ms
        return since_ms is None or self._clock_ms() - since_ms < self._session_timeout_ms

    async def campaign(self) -> ControllerTerm:
        """Waits until there is no controller and this candidate becomes it; through failures of etcd too, even
        refusals: one that has no space left or takes a token for expired refuses until an operator puts that right."""
        assert self._holding is None, "this candidate is elected already"
        while True:
            try:
                term = await self._try_to_win()
            except StoreError as error:
                if not may_pass(error):
                    raise
                self._failed(error)
                await asyncio.sleep(RETRY_PAUSE_S)
                continue
            except Exception as error:  # what stands in etcd cannot be read, or a bug of ours
                self._failed(error)
                raise
            if term is not None:
                self._failing_since_ms = None
                _log.info("elected %s", pairs(controller=term.controller_id, epoch=term.controller_epoch))
                return term

    def _failed(self, error: Exception) -> None:
        if self._failing_since_ms is None:
            self._failing_since_ms = self._clock_ms()
        _log.warning("cannot campaign: %s", error)

    async def lost(self) -> None:
        """Returns when the term has ended. Until then the controller may act; each of its writes is guarded anyway."""
        assert self._holding is not None, "this candidate was not elected"
        holding = self._holding
        await asyncio.wait((holding,))
        if not holding.cancelled() and (error := holding.exception()) is not None:
            _log.error("the controller key cannot be held, the term ends", exc_info=error)
        if self._holding is holding:
            self._held = self._holding = self.acting = None

    async def resign(self) -> None:
        """Ends the term, so that the next candidate takes over at once. (A campaign is left by cancelling it.)"""
        held, holding = self._held, self._holding
        self._held = self._holding = self.acting = None
        if held is not None:
            held.let_go()
        if holding is not None:
            holding.cancel()
            await asyncio.gather(holding, return_exceptions=True)
        if held is not None:
            with contextlib.suppress(StoreError):  # it ends with its lease
                await held.release()

    async def _try_to_win(self) -> ControllerTerm | None:
        keys = self._keys
        entries, revision = await self._store.get_many((keys.controller, keys.controller_epoch))
        reigning = entries.get(keys.controller)
        if reigning is not None:
            self._failing_since_ms = None
            if not await self._see(reigning):
                return None
            await self._until_vacant(revision)
            self.acting = None
            return None
        present = entries.get(keys.controller_epoch)
        epoch = 1 + await self._last_epoch(present)
        registration = ControllerRegistration(self._controller_id, self._address, epoch, self._incarnation)
        held = LeasedKey(
            self._store,
            keys.controller,
            session_timeout_ms=self._session_timeout_ms,
            clock_ms=self._clock_ms,
        )
        won = await held.acquire(
            registration.to_json(),
            (modified_at(keys.controller_epoch, 0 if present is None else present.mod_revision),),
            (Put(keys.controller_epoch, str(epoch).encode()),),
        )
        if not won:
            return None
        self.acting = registration
        self._held = held
        self._holding = asyncio.create_task(self._hold(held))
        return ControllerTerm(self._controller_id, epoch, held.create_revision)

    async def _see(self, reigning: Entry) -> bool:
        """Takes who acts. False: nobody does, and what stood there is gone: no controller's key is without a lease, so
        that what is was written over it and would stand for ever."""
        try:
            self.acting = readable(reigning, _registration)
        except CorruptMetadataError as error:
            self.acting = None
            if reigning.lease:
                _log.error("%s; its owner is waited for", error)
                return True
            _log.error("%s; it has no lease, and is deleted", error)
            key = self._keys.controller
            await self._store.txn((modified_at(key, reigning.mod_revision),), (Delete(key),))
            return False
        return True

    async def _last_epoch(self, present: Entry | None) -> int:
        if present is None:
            return await _highest_epoch_of_states(self._store, self._keys)
        try:
            return readable(present, counter)
        except CorruptMetadataError as error:
            _log.error("%s; it goes on from the partitions' states", error)
            return await _highest_epoch_of_states(self._store, self._keys)

    @staticmethod
    async def _hold(held: LeasedKey) -> Entry | None:
        return await uncancelled(held.hold())

    async def _until_vacant(self, revision: int) -> None:
        async with contextlib.aclosing(self._store.watch(self._keys.controller, revision + 1)) as batches:
            async for batch in batches:
                last = batch.events[-1].entry
                if last is None or not await self._see(last):
                    return
