"""The tables of what is behind a topic's keys agree with the services."""

from __future__ import annotations

import pytest

from highwater.configuration.dynamic_keys import BROKER_KEYS, CLUSTER_KEYS, LOG_STORAGE_KEYS
from highwater.configuration.topic_keys import FIXED_DEFAULTS, KEYS_BEHIND
from highwater.controller.topics.topic_config import TOPIC_CONFIG, problem_with
from highwater.log_storage.config import LogConfig
from highwater.log_storage.service import _log_config
from highwater.log_storage.settings import LogStorageSettings
from highwater.replica_manager.partition.topic_config import TopicConfig, parse
from highwater.rpc.dynamic_settings import with_dynamic
from highwater.rpc.settings import load

SETTINGS = load(LogStorageSettings, {"listen": "h:1", "broker.id": "1", "log.dirs": "/x"})
OF_LOGS = {key: behind for key, behind in KEYS_BEHIND.items() if behind in LOG_STORAGE_KEYS}
VALUES = {"min.cleanable.dirty.ratio": "0.25"}


def partitions(config: dict[str, str]) -> TopicConfig:
    return parse(config, min_insync_replicas=1, message_max_bytes=1 << 20, cleanup_policy="delete")


def test_each_key_of_a_topic_has_a_key_behind_it_or_a_fixed_default() -> None:
    assert KEYS_BEHIND.keys() | FIXED_DEFAULTS.keys() == TOPIC_CONFIG.keys()
    assert not KEYS_BEHIND.keys() & FIXED_DEFAULTS.keys()
    assert set(KEYS_BEHIND.values()) <= BROKER_KEYS.keys() | CLUSTER_KEYS.keys()


@pytest.mark.parametrize("key", OF_LOGS)
def test_the_key_behind_does_to_a_log_what_the_topics_does(key: str) -> None:
    value = VALUES.get(key, "12345")
    by_default = _log_config(with_dynamic(SETTINGS, {OF_LOGS[key]: value}))
    assert by_default == _log_config(SETTINGS).with_topic({key: value}) != _log_config(SETTINGS)


@pytest.mark.parametrize("key", FIXED_DEFAULTS)
def test_a_fixed_default_is_what_counts_without_the_key(key: str) -> None:
    default = {key: FIXED_DEFAULTS[key]}
    assert problem_with(default) is None
    assert partitions(default) == partitions({})
    assert LogConfig().with_topic(default) == LogConfig()
