"""The dynamic configurations of the cluster, of brokers, clients and users, as etcd holds them. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Protocol

from highwater.configuration.dynamic_keys import DELETING_KEYS, KEEP_ALL_RECORDS, KEYS
from highwater.configuration.entities import ConfigEntity, EntityKind
from highwater.metadata.schema.cluster_view import Unreadable
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import MAX_CONFIG_BYTES, MAX_CONFIG_VALUE_BYTES, config_from_json
from highwater.metadata.schema.reading import CorruptMetadataError, readable
from highwater.metadata.store.transactions import Entry, Event, Listing

MOST_ENTITIES = 20_000
"""Configurations of one kind; what stands in etcd beyond them is left out."""
AT_ONCE = 240
"""Configurations of one piece."""
_NOTHING: Mapping[str, str] = {}


class ConfigListener(Protocol):
    """Applies configurations. It is told of each that is there, and of every change after that."""

    def on_change(self, entity: ConfigEntity, config: Mapping[str, str]) -> None:
        """Takes the configuration that the entity has now, of known keys with good values; empty: it has none."""


class ConfigView:
    """The configurations of some kinds, each that can be read: other entries, unknown keys and bad values are told to
    `unreadable` and left out.

    Invariant: `_doubted` are the brokers and the cluster of whose entries something is left out that may say how long
    records are to be kept; `KEEP_ALL_RECORDS` goes before everything else there."""

    def __init__(self, keys: Keys, kinds: Collection[EntityKind], unreadable: Unreadable) -> None:
        self._keys = keys
        self._unreadable = unreadable
        self._configs: dict[EntityKind, dict[ConfigEntity, Mapping[str, str]]] = {kind: {} for kind in kinds}
        self._missing = set(kinds)
        self._doubted: set[ConfigEntity] = set()
        self._listeners: list[tuple[ConfigListener, frozenset[EntityKind]]] = []

    @property
    def kinds(self) -> Collection[EntityKind]:
        return self._configs.keys()

    @property
    def listed(self) -> bool:
        """Tells whether all kinds have been listed once."""
        return not self._missing

    def config(self, entity: ConfigEntity) -> Mapping[str, str]:
        """The entity's own; empty where it has none."""
        return self._configs[entity.kind].get(entity, _NOTHING)

    def entities(self, kind: EntityKind) -> Mapping[ConfigEntity, Mapping[str, str]]:
        return self._configs[kind]

    def keeps_all(self, entities: Iterable[ConfigEntity]) -> bool:
        """Tells whether what decides about deletion may be missing of one of these."""
        return not self._doubted.isdisjoint(entities)

    def subscribe(self, listener: ConfigListener, kinds: Collection[EntityKind]) -> None:
        """The listener is told of what is there at once."""
        self._listeners.append((listener, frozenset(kinds)))
        for kind in kinds:
            for entity, config in self._configs[kind].items():
                listener.on_change(entity, config)

    def list(self, kind: EntityKind, listing: Listing) -> None:
        """Takes all that there is of a kind in place of what was known. A listener hears of what differs."""
        for _ in self.listing(kind, listing):
            pass

    def listing(self, kind: EntityKind, listing: Listing) -> Iterator[None]:
        """The same a piece at a time, without an `apply` of the kind between them: what was known before counts until
        all is read, and listeners hear of it then."""
        found: dict[ConfigEntity, Mapping[str, str]] = {}
        doubts: set[ConfigEntity] = set()
        for number, entry in enumerate(listing.entries, 1):
            if number % AT_ONCE == 0:
                yield
            entity = self._entity(kind, entry.key)
            if entity is None:
                continue
            if len(found) >= MOST_ENTITIES:
                self._above_most(entry.key)
            elif config := self._read(entity, entry, doubts):
                found[entity] = config
        before, doubted = self._configs[kind], {entity for entity in self._doubted if entity.kind is kind}
        self._configs[kind] = found
        self._doubted = (self._doubted - doubted) | doubts
        gone = (entity for entity in before if entity not in found)
        left_out = (entity for entity in doubted ^ doubts if entity not in found and entity not in before)
        for number, entity in enumerate(itertools.chain(gone, found, left_out), 1):
            if number % AT_ONCE == 0:
                yield
            if before.get(entity) != found.get(entity) or (entity in doubted) != (entity in doubts):
                self._tell(entity, found.get(entity, _NOTHING))
        self._missing.discard(kind)

    def apply(self, kind: EntityKind, events: Iterable[Event]) -> None:
        """Takes what has changed of a kind."""
        configs = self._configs[kind]
        for event in events:
            entity = self._entity(kind, event.key)
            if entity is None:
                continue
            self._doubted.discard(entity)
            config: Mapping[str, str] = _NOTHING
            if event.entry is None:
                self._unreadable.read(event.key)
            elif entity not in configs and len(configs) >= MOST_ENTITIES:
                self._above_most(event.key)
                continue
            else:
                config = self._read(entity, event.entry, self._doubted)
            if config:
                configs[entity] = config
            else:
                configs.pop(entity, None)
            self._tell(entity, config)

    def _above_most(self, key: str) -> None:
        self._unreadable.found(key, f"etcd's key {key} is above the {MOST_ENTITIES} of its kind that are taken")

    def _tell(self, entity: ConfigEntity, config: Mapping[str, str]) -> None:
        for listener, kinds in self._listeners:
            if entity.kind in kinds:
                listener.on_change(entity, config)

    def _entity(self, kind: EntityKind, key: str) -> ConfigEntity | None:
        entity = self._keys.parse_entity_config(key)
        if entity is None or entity.kind is not kind:
            self._unreadable.found(key, f"etcd's key {key} names nothing that has a configuration: delete it")
            return None
        return entity

    def _read(self, entity: ConfigEntity, entry: Entry, doubted: set[ConfigEntity]) -> Mapping[str, str]:
        """`doubted`: the entity is added where what is left out may say how long records are to be kept."""
        try:
            config, left_out = readable(entry, lambda each: _usable(each, entity.kind))
        except CorruptMetadataError as error:
            self._unreadable.found(entry.key, str(error))
            _doubt(entity, doubted)
            return _NOTHING
        if left_out:
            named = "; ".join(left_out)[:MAX_CONFIG_VALUE_BYTES]
            self._unreadable.found(entry.key, f"of etcd's key {entry.key} is left out: {named}")
            if any(each.startswith(f"{key} ") for each in left_out for key in DELETING_KEYS):
                _doubt(entity, doubted)
        else:
            self._unreadable.read(entry.key)
        return config


def _doubt(entity: ConfigEntity, doubted: set[ConfigEntity]) -> None:
    if entity.kind in (EntityKind.BROKERS, EntityKind.CLUSTER):
        doubted.add(entity)


def _usable(entry: Entry, kind: EntityKind) -> tuple[dict[str, str], list[str]]:
    """The known keys with good values, and what is wrong with the others, each beginning with its key."""
    if len(entry.value) > MAX_CONFIG_BYTES:
        raise ValueError(f"it has {len(entry.value)} bytes, {MAX_CONFIG_BYTES} are the most")
    config, left_out = {}, []
    for key, value in config_from_json(entry.value).items():
        check = KEYS[kind].get(key)
        problem = "is no key of this version" if check is None else check(value)
        if problem is None:
            config[key] = value
        else:
            left_out.append(f"{key[:100]} {problem}")
    return config, left_out


def overlaid(view: ConfigView, levels: Iterable[ConfigEntity]) -> dict[str, str]:
    """The values that count of these entities, of which each goes before those behind it."""
    merged: dict[str, str] = {}
    entities = list(levels)
    for entity in reversed(entities):
        merged |= view.config(entity)
    return {**merged, **KEEP_ALL_RECORDS} if view.keeps_all(entities) else merged
