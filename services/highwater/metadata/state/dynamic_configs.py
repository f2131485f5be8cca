"""Dynamic configurations in etcd: watched into a view, read and written as a whole."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping

from highwater.configuration.entities import ConfigEntity, EntityKind
from highwater.metadata.schema.config_view import ConfigView
from highwater.metadata.schema.controller_term import ControllerTerm
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import config_from_json, config_to_json
from highwater.metadata.schema.reading import readable
from highwater.metadata.state.cluster_watch import RETRY_PAUSE_S, watch_listed
from highwater.metadata.state.topic_configs import VersionedConfig
from highwater.metadata.state.unreadable_entries import UnreadableEntries
from highwater.metadata.store.etcd_errors import ControllerDeposed, StoreError, may_pass
from highwater.metadata.store.store import Store
from highwater.metadata.store.transactions import Delete, Get, Listing, Operation, Put, modified_at
from highwater.supervision import TaskGroup
from highwater.telemetry.log import get_logger

_log = get_logger(__name__)


class WatchedConfigs:
    """A `ConfigView` of some kinds that follows etcd while `follow` runs; it may be begun anew."""

    def __init__(self, store: Store, keys: Keys, kinds: Collection[EntityKind]) -> None:
        self._store = store
        self._keys = keys
        self._unreadable = {kind: UnreadableEntries() for kind in kinds}
        self.view = ConfigView(keys, kinds, _ByKind(keys, self._unreadable))
        self._revisions = dict.fromkeys(kinds, 0)  # of what etcd has told of each
        self._moved = asyncio.Event()

    @property
    def unreadable(self) -> int:
        """The number of entries that are left out, whole or in part."""
        return sum(map(len, self._unreadable.values()))

    async def follow(self) -> None:
        """Waits out failures of etcd. Raises `StoreClosed`."""
        async with TaskGroup() as tasks:
            for kind in self.view.kinds:
                tasks.create_task(self._follow(kind))

    async def listed(self) -> None:
        """Returns when every kind has been listed once."""
        await self.until(lambda: self.view.listed)

    async def caught_up(self, entity: ConfigEntity) -> None:
        """Returns when what stood in etcd at the time of this call counts here: a watch may be behind. Waits out
        failures of etcd. Raises `StoreClosed`."""
        key, kind = self._keys.entity_config(entity), entity.kind
        while True:
            try:
                listing = await self._store.get_prefix(key)
                break
            except StoreError as error:
                if not may_pass(error):
                    raise
                _log.warning("cannot read %s: %s", key, error)
                await asyncio.sleep(RETRY_PAUSE_S)
        entry = next((each for each in listing.entries if each.key == key), None)
        if entry is not None:
            await self.until(lambda: self._revisions[kind] >= entry.mod_revision)
        else:  # nothing tells at which revision it was removed
            await self.until(lambda: not self.view.config(entity) or self._revisions[kind] > listing.revision)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Returns when it holds; asked after everything that etcd tells."""
        while not holds():
            await self._moved.wait()

    async def _follow(self, kind: EntityKind) -> None:
        async with contextlib.aclosing(watch_listed(self._store, self._keys.entity_configs[kind])) as updates:
            async for update in updates:
                if isinstance(update, Listing):
                    self._unreadable[kind].listed({entry.key for entry in update.entries})
                    for _ in self.view.listing(kind, update):
                        await asyncio.sleep(0)
                else:
                    self.view.apply(kind, update.events)
                self._revisions[kind] = update.revision
                self._moved.set()
                self._moved = asyncio.Event()


class _ByKind:
    """Entries that cannot be taken, each told to those of its kind."""

    def __init__(self, keys: Keys, unreadable: Mapping[EntityKind, UnreadableEntries]) -> None:
        self._prefixes = [(keys.entity_configs[kind], found) for kind, found in unreadable.items()]

    def found(self, key: str, why: str) -> None:
        self._of(key).found(key, why)

    def read(self, key: str) -> None:
        self._of(key).read(key)

    def _of(self, key: str) -> UnreadableEntries:
        return next(found for prefix, found in self._prefixes if key.startswith(prefix))


async def read_entity_config(store: Store, keys: Keys, entity: ConfigEntity) -> VersionedConfig:
    """A linearizable read. Raises `Unavailable`, `CorruptMetadataError`."""
    key = keys.entity_config(entity)
    entry = await store.get(key)
    if entry is None:
        return VersionedConfig({}, 0)
    return VersionedConfig(readable(entry, lambda each: config_from_json(each.value)), entry.mod_revision)


async def write_entity_config(
    store: Store,
    keys: Keys,
    term: ControllerTerm,
    entity: ConfigEntity,
    current: VersionedConfig,
    config: Mapping[str, str],
) -> bool:
    """Puts the configuration where it is still `current`; an empty one is deleted. False: it changed meanwhile.

    Raises `ControllerDeposed`, `Unavailable`, `OutcomeUnknown`.
    """
    guard = term.guard(keys)
    key = keys.entity_config(entity)
    write: Operation = Put(key, config_to_json(config)) if config else Delete(key)
    result = await store.txn((guard, modified_at(key, current.revision)), (write,), (Get(guard.key),))
    if not result.succeeded and not guard.holds(result.entries[0]):
        raise ControllerDeposed(f"controller epoch {term.controller_epoch} has ended")
    return result.succeeded
