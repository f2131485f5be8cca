"""Topics' configurations, changed and described at the active controller.

etcd holds what a topic sets itself. A change is one guarded write of the whole; the watch brings it to the cluster,
which tells the brokers that host the topic (with LeaderAndIsr, so that log-storage gets it too) and, as metadata, all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from highwater.configuration.topic_keys import FIXED_DEFAULTS, KEYS_BEHIND
from highwater.controller.administration.absent_topics import AbsentTopics
from highwater.controller.administration.entity_configuration import EntityEntry, Source
from highwater.controller.state_machines.topic_table import Topic
from highwater.controller.term.active_controller import ActiveController
from highwater.controller.topics.topic_admin import Refusal
from highwater.controller.topics.topic_config import TOPIC_CONFIG, problem_with, too_large
from highwater.errors import ErrorCode
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.reading import CorruptMetadataError
from highwater.metadata.state.topic_configs import read_topic_config, write_topic_config
from highwater.metadata.store.etcd_errors import OutcomeUnknown, Refused, StoreError, Unavailable
from highwater.metadata.store.store import Store

RETRY_PAUSE_S = 0.1
ALTER_TIMEOUT_S = 10.0
TOLD_PATIENCE_S = 2.0  # a broker that is slow to take a configuration does not hold up the answer for longer
FROM_TOPIC = "topic"
FROM_CLUSTER = "cluster"
FROM_CONTROLLER = "controller"
FROM_BROKERS = "brokers"
FROM_BROKER_DEFAULTS = "broker-defaults"
FROM_CODE = "default"
# By the source of what is behind a topic's key; any other is a setting of the controllers.
_BEHIND = {Source.CLUSTER: FROM_CLUSTER, Source.DEFAULT_BROKER: FROM_BROKER_DEFAULTS}


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    key: str
    value: str  # "" with FROM_BROKERS: each broker has its own default
    source: str  # FROM_TOPIC: set there; else whose setting is the default
    config_source: Source

    @property
    def is_default(self) -> bool:
        return self.source != FROM_TOPIC


class Configuration:
    """Bound to one term. Raises `ControllerDeposed` where that ended meanwhile."""

    def __init__(
        self,
        active_controller: ActiveController,
        store: Store,
        keys: Keys,
        of_everyone: Callable[[str], EntityEntry],
        absent_topics: AbsentTopics,
    ) -> None:
        """`of_everyone` tells what counts of a key of the cluster, or of brokers that set nothing themselves."""
        self._active_controller = active_controller
        self._cluster = active_controller.cluster
        self._store = store
        self._keys = keys
        self._absent_topics = absent_topics
        self._of_everyone = of_everyone

    async def alter_topic(
        self, name: str, changed: Mapping[str, str], unset: Collection[str], *, validate_only: bool
    ) -> Refusal | None:
        """Sets some keys of a topic and gives others back to their defaults; those not named stay. Answers when the
        live brokers have taken it, or `TOLD_PATIENCE_S` after it was written."""
        refusal = _refuse(name, changed, unset)
        if refusal is not None:
            return refusal
        deadline = time.monotonic() + ALTER_TIMEOUT_S
        while True:
            topic = self._named(name)
            if topic is None:
                return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
            if validate_only:
                return None
            trouble = ""
            try:
                current = await read_topic_config(self._store, self._keys, name)
                config = {key: value for key, value in {**current.config, **changed}.items() if key not in unset}
                if (problem := too_large(config)) is not None:
                    return Refusal(ErrorCode.INVALID_CONFIG, f"topic {name!r}: {problem}")
                created = topic.versioned.create_revision
                # Repeated after an outcome that is not known: the same keys get the same values.
                if await write_topic_config(
                    self._store, self._keys, self._active_controller.term, name, created, current, config
                ):
                    await self._told(topic.topic_id, config)
                    return None
            except CorruptMetadataError as error:
                return Refusal(ErrorCode.INVALID_CONFIG, f"topic {name!r}: {error}")
            except (Unavailable, OutcomeUnknown, Refused) as error:
                trouble = f": {error}"
            if time.monotonic() + RETRY_PAUSE_S >= deadline or self._active_controller.ended:
                message = f"the configuration of topic {name!r} may or may not have been changed{trouble}"
                return Refusal(ErrorCode.REQUEST_TIMED_OUT, message)
            await self._active_controller.until(lambda: False, RETRY_PAUSE_S)

    async def _told(self, topic_id: bytes, config: Mapping[str, str]) -> None:
        def told() -> bool:
            topic = self._cluster.topics.identified(topic_id)
            return topic is None or (topic.config == config and self._active_controller.everyone_follows(topic))

        await self._active_controller.until(told, TOLD_PATIENCE_S)

    async def describe_topics(self, names: Collection[str]) -> dict[str, list[ConfigEntry] | Refusal]:
        """Every key that a topic may have: its own value, or whose default counts. UNKNOWN_TOPIC_OR_PARTITION only by a
        read of etcd (RULES 9.5): a controller that is cut off may have been deposed long since."""
        unknown = [name for name in names if self._named(name) is None]
        absent: frozenset[str] = frozenset()
        doubt = ErrorCode.LEADER_NOT_AVAILABLE, "is being created: ask again"
        if unknown:
            try:
                absent = await self._absent_topics.among(unknown)
            except StoreError as error:
                doubt = ErrorCode.REQUEST_TIMED_OUT, f"may or may not be there, etcd does not say: {error}"
        described: dict[str, list[ConfigEntry] | Refusal] = {}
        for name in names:
            topic = self._named(name)  # the watch may have told of it meanwhile
            if topic is not None:
                keys = sorted(TOPIC_CONFIG.keys() | topic.config.keys())
                described[name] = [self._entry(key, topic.config) for key in keys]
            elif name in absent:
                described[name] = Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
            else:
                described[name] = Refusal(doubt[0], f"topic {name!r} {doubt[1]}")
        return described

    def _named(self, name: str) -> Topic | None:
        topic = self._cluster.topics.named(name)
        return None if topic is None or topic.deletion is not None else topic

    def _entry(self, key: str, config: Mapping[str, str]) -> ConfigEntry:
        if key in config:
            return ConfigEntry(key, config[key], FROM_TOPIC, Source.TOPIC)
        if key in FIXED_DEFAULTS:
            return ConfigEntry(key, FIXED_DEFAULTS[key], FROM_CODE, Source.DEFAULT)
        behind = self._of_everyone(KEYS_BEHIND[key])
        if not behind.value:
            return ConfigEntry(key, "", FROM_BROKERS, Source.STATIC)
        return ConfigEntry(key, behind.value, _BEHIND.get(behind.source, FROM_CONTROLLER), behind.source)


def _refuse(name: str, changed: Mapping[str, str], unset: Collection[str]) -> Refusal | None:
    problem = problem_with(changed)
    unknown = sorted(set(unset) - TOPIC_CONFIG.keys())
    twice = sorted(set(unset) & changed.keys())
    if problem is None and unknown:
        problem = problem_with({unknown[0]: ""})
    if problem is not None:
        return Refusal(ErrorCode.INVALID_CONFIG, f"topic {name!r}: {problem}")
    if twice:
        return Refusal(ErrorCode.INVALID_REQUEST, f"topic {name!r}: {twice[0]} is both set and given back")
    return None
