"""A topic's own configuration in etcd, read and written as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from highwater.metadata.schema.controller_term import ControllerTerm
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import config_from_json, config_to_json
from highwater.metadata.schema.reading import readable
from highwater.metadata.store.etcd_errors import ControllerDeposed
from highwater.metadata.store.store import Store
from highwater.metadata.store.transactions import Get, Put, absent, created_at, modified_at


@dataclass(frozen=True, slots=True)
class VersionedConfig:
    config: Mapping[str, str]
    revision: int  # mod revision, 0 where there is no such key


async def read_topic_config(store: Store, keys: Keys, topic: str) -> VersionedConfig:
    """A linearizable read. Raises `Unavailable`, `CorruptMetadataError`."""
    entries, _ = await store.get_many((keys.topic_config(topic),))
    entry = entries.get(keys.topic_config(topic))
    if entry is None:
        return VersionedConfig({}, 0)
    return VersionedConfig(readable(entry, lambda each: config_from_json(each.value)), entry.mod_revision)


async def write_topic_config(
    store: Store,
    keys: Keys,
    term: ControllerTerm,
    topic: str,
    create_revision: int,
    current: VersionedConfig,
    config: Mapping[str, str],
) -> bool:
    """Puts the configuration where it is still `current`, and the topic still the one created at `create_revision` and
    not being deleted (RULES 1.1, 9.2). False: something of this changed meanwhile.

    Raises `ControllerDeposed`, `Unavailable`, `OutcomeUnknown`.
    """
    guard = term.guard(keys)
    key = keys.topic_config(topic)
    result = await store.txn(
        (
            guard,
            created_at(keys.topic(topic), create_revision),
            absent(keys.delete_topic(topic)),
            modified_at(key, current.revision),
        ),
        (Put(key, config_to_json(config)),),
        (Get(guard.key),),
    )
    if not result.succeeded and not guard.holds(result.entries[0]):
        raise ControllerDeposed(f"controller epoch {term.controller_epoch} has ended")
    return result.succeeded
