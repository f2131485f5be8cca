"""Configurations of brokers, clients, users and the cluster, changed and described at the active controller.

etcd holds what was set; a change is one guarded write of an entity's whole. Services hear of it by their own watches.
What a broker was started with only it can say: it is asked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from highwater.configuration.alteration import problem_with
from highwater.configuration.dynamic_keys import BROKER_KEYS, CLUSTER_KEYS, KEYS
from highwater.configuration.entities import (
    CLUSTER,
    DEFAULT_BROKER,
    BrokerEntity,
    ConfigEntity,
    EntityKind,
    UserClientEntity,
    UserEntity,
)
from highwater.configuration.value_checks import shown
from highwater.controller.term.active_controller import ActiveController
from highwater.controller.topics.topic_admin import Refusal
from highwater.errors import ErrorCode
from highwater.metadata.schema.config_view import MOST_ENTITIES
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.reading import CorruptMetadataError
from highwater.metadata.state.dynamic_configs import WatchedConfigs, read_entity_config, write_entity_config
from highwater.metadata.store.etcd_errors import OutcomeUnknown, Refused, Unavailable
from highwater.metadata.store.store import Store

RETRY_PAUSE_S = 0.1
ALTER_TIMEOUT_S = 10.0
SEEN_PATIENCE_S = 2.0  # for the watch to tell of what was written


class Source(Enum):
    """The places that a value is from."""

    TOPIC = "DYNAMIC_TOPIC"
    BROKER = "DYNAMIC_BROKER"
    DEFAULT_BROKER = "DYNAMIC_DEFAULT_BROKER"
    CLUSTER = "CLUSTER"
    CLIENT = "DYNAMIC_CLIENT"
    USER = "DYNAMIC_USER"
    STATIC = "STATIC"
    DEFAULT = "DEFAULT"


@dataclass(frozen=True, slots=True)
class StaticValue:
    """A setting that a service was started with."""

    key: str
    value: str
    is_default: bool
    service: str = ""

    @property
    def source(self) -> Source:
        return Source.DEFAULT if self.is_default else Source.STATIC


@dataclass(frozen=True, slots=True)
class EntityEntry:
    key: str
    value: str  # "" with the source STATIC, of the cluster or of everyone: each broker has its own
    source: Source
    read_only: bool = False
    service: str = ""


class EntityConfiguration:
    """Bound to one term. Raises `ControllerDeposed` where that ended meanwhile. `static` are the controller's own
    settings."""

    def __init__(
        self,
        active_controller: ActiveController,
        store: Store,
        keys: Keys,
        configs: WatchedConfigs,
        static: Sequence[StaticValue],
    ) -> None:
        self._active_controller = active_controller
        self._store = store
        self._keys = keys
        self._configs = configs
        self._static = {each.key: each for each in static}

    async def alter(
        self, entity: ConfigEntity, changed: Mapping[str, str], unset: Collection[str], *, validate_only: bool
    ) -> Refusal | None:
        """Sets some keys and gives others back to what is behind them; those not named stay. Answers once it is
        written, and this controller has heard of it."""
        twice = sorted(set(unset) & changed.keys())
        if twice:
            return Refusal(ErrorCode.INVALID_REQUEST, f"{entity}: {shown(twice[0])} is both set and given back")
        deadline = time.monotonic() + ALTER_TIMEOUT_S
        while True:
            trouble = ""
            try:
                current = await read_entity_config(self._store, self._keys, entity)
                if problem := problem_with(entity, changed, unset, current.config):
                    return Refusal(ErrorCode.INVALID_CONFIG, f"{entity}: {problem}")
                config = {key: value for key, value in {**current.config, **changed}.items() if key not in unset}
                if refusal := self._above_most(entity, config):
                    return refusal
                if validate_only or config == current.config:
                    return None
                # Repeated after an outcome that is not known: the same keys get the same values.
                if await write_entity_config(
                    self._store, self._keys, self._active_controller.term, entity, current, config
                ):
                    await self._seen(entity, config)
                    return None
            except CorruptMetadataError as error:
                return Refusal(ErrorCode.INVALID_CONFIG, f"{entity}: {error}")
            except (Unavailable, OutcomeUnknown, Refused) as error:
                trouble = f": {error}"
            if time.monotonic() + RETRY_PAUSE_S >= deadline or self._active_controller.ended:
                message = f"the configuration of {entity} may or may not have been changed{trouble}"
                return Refusal(ErrorCode.REQUEST_TIMED_OUT, message)
            await self._active_controller.until(lambda: False, RETRY_PAUSE_S)

    def _above_most(self, entity: ConfigEntity, config: Mapping[str, str]) -> Refusal | None:
        present = self._configs.view.entities(entity.kind)
        if not config or entity in present or len(present) < MOST_ENTITIES:
            return None
        message = f"{len(present)} {entity.kind.value} have a configuration, {MOST_ENTITIES} are the most: unset some"
        return Refusal(ErrorCode.POLICY_VIOLATION, message)

    async def _seen(self, entity: ConfigEntity, config: Mapping[str, str]) -> None:
        usable = {key: value for key, value in config.items() if key in KEYS[entity.kind]}
        try:
            async with asyncio.timeout(SEEN_PATIENCE_S):
                await self._configs.until(lambda: self._configs.view.config(entity) == usable)
        except TimeoutError:
            return  # changed again already, or the watch is slow: it is written all the same

    def all_of(self, kind: EntityKind, *, pairs: bool) -> list[ConfigEntity]:
        """All that have a configuration; of users either those, or their clients (`pairs`)."""
        return [
            entity
            for entity in self._configs.view.entities(kind)
            if kind is not EntityKind.USERS or isinstance(entity, UserClientEntity) is pairs
        ]

    async def describe(self, entity: ConfigEntity) -> tuple[list[EntityEntry], Refusal | None]:
        """Returns what counts for the entity, by key, and where that is from; of clients, users and the default of
        brokers what they set themselves. With a refusal: without what only the broker itself can say."""
        own = self._configs.view.config(entity)
        match entity:
            case BrokerEntity(int(broker_id)):
                answer = await self._active_controller.describe_broker(broker_id)
                if isinstance(answer, Refusal):
                    return self._of_broker(entity, ()), answer
                return self._of_broker(entity, [StaticValue(*each) for each in answer]), None
            case BrokerEntity():
                return [EntityEntry(key, own[key], Source.DEFAULT_BROKER) for key in sorted(own)], None
            case UserEntity() | UserClientEntity():
                return [EntityEntry(key, own[key], Source.USER) for key in sorted(own)], None
        if entity.kind is EntityKind.CLIENTS:
            return [EntityEntry(key, own[key], Source.CLIENT) for key in sorted(own)], None
        return [self.of_cluster(key) for key in CLUSTER_KEYS], None

    def of_cluster(self, key: str) -> EntityEntry:
        """Returns what counts of a key of the cluster."""
        own = self._configs.view.config(CLUSTER)
        if key in own:
            return EntityEntry(key, own[key], Source.CLUSTER)
        static = self._static.get(key)
        if static is None:
            return EntityEntry(key, "", Source.STATIC)
        return EntityEntry(key, static.value, static.source)

    def of_everyone(self, key: str) -> EntityEntry:
        """Returns what counts of a key of the cluster, or of one of brokers where a broker sets nothing itself."""
        defaults = self._configs.view.config(DEFAULT_BROKER)
        if key in BROKER_KEYS and key in defaults:
            return EntityEntry(key, defaults[key], Source.DEFAULT_BROKER)
        return self.of_cluster(key)

    def _of_broker(self, entity: BrokerEntity, static: Sequence[StaticValue]) -> list[EntityEntry]:
        view = self._configs.view
        levels = (
            (view.config(entity), Source.BROKER),
            (view.config(DEFAULT_BROKER), Source.DEFAULT_BROKER),
            (view.config(CLUSTER), Source.CLUSTER),
        )
        entries: dict[tuple[str, str], EntityEntry] = {}
        for config, source in reversed(levels):
            entries |= {(key, ""): EntityEntry(key, value, source) for key, value in config.items()}
        values: dict[str, set[str]] = {}
        for each in static:
            values.setdefault(each.key, set()).add(each.value)
        for each in static:
            if (each.key, "") in entries and entries[each.key, ""].source not in (Source.STATIC, Source.DEFAULT):
                continue
            service = each.service if len(values[each.key]) > 1 else ""
            read_only = each.key not in BROKER_KEYS and each.key not in CLUSTER_KEYS
            entries[each.key, service] = EntityEntry(each.key, each.value, each.source, read_only, service)
        return [entries[key] for key in sorted(entries)]
