"""The tables of dynamic and read-only keys agree with the settings of the services."""

from __future__ import annotations

import sys

import pytest
from pydantic import ValidationError

from highwater.configuration.dynamic_keys import (
    BROKER_KEYS,
    CLIENT_KEYS,
    CLUSTER_KEYS,
    FETCHER_KEYS,
    KEYS,
    LOG_STORAGE_KEYS,
    REPLICA_MANAGER_KEYS,
    REPLICATION_QUOTA_KEYS,
)
from highwater.configuration.kafka_keys import MEANINGLESS_KEYS
from highwater.configuration.static_keys import INSTEAD, READ_ONLY_KEYS
from highwater.controller.settings import ControllerSettings
from highwater.fetcher.settings import FetcherSettings
from highwater.log_storage.settings import LogStorageSettings
from highwater.replica_manager.settings import ReplicaManagerSettings
from highwater.rpc.dynamic_settings import with_dynamic
from highwater.rpc.settings import ServiceSettings, load

SERVICES: dict[type[ServiceSettings], dict[str, str]] = {
    ControllerSettings: {
        "listen": "h:1",
        "etcd": "h:1",
        "controller.id": "1",
        "advertised.listener": "h:1",
    },
    FetcherSettings: {"listen": "h:1", "broker.id": "1", "log.storage": "h:1", "replica.manager": "h:1"},
    LogStorageSettings: {"listen": "h:1", "broker.id": "1", "log.dirs": "/x"},
    ReplicaManagerSettings: {"listeners": "A://h:1", "broker.id": "1", "log.storage": "h:1", "etcd": "h:1"},
}
NUMBERS = ["-2", "-1", "0", "1", "3", "4", "5", "11", "12", "1023", "1024", str((1 << 20) - 1), str(1 << 20)]
NUMBERS += [str(2**31 - 1), str(2**31), str(2**63 - 1), "0.0", "0.5", "0.99", "0.999", "1.0", "1.1", "", "x", "true"]
TEXTS = ["false", "TRUE", "delete", "compact,delete", "drop", "INFO", "DEBUG", "LOUD"]
# Bounds that a value has while services run, beyond those of the settings.
NARROWER = {"log.cleaner.threads", "message.max.bytes", "num.partitions", "num.replica.fetchers"}


def fields(kind: type[ServiceSettings]) -> set[str]:
    return {name.replace("_", ".") for name in kind.model_fields}


def test_every_setting_is_dynamic_or_read_only() -> None:
    """A new setting goes to one of the two tables: to `READ_ONLY_KEYS` where nothing applies a change of it."""
    every = set().union(*map(fields, SERVICES))
    dynamic = (BROKER_KEYS.keys() | CLUSTER_KEYS.keys()) - REPLICATION_QUOTA_KEYS.keys()
    assert every - dynamic == READ_ONLY_KEYS
    assert dynamic <= every
    assert not BROKER_KEYS.keys() & CLUSTER_KEYS.keys()
    assert INSTEAD.keys() <= READ_ONLY_KEYS
    assert set(INSTEAD.values()) <= BROKER_KEYS.keys()
    assert not MEANINGLESS_KEYS.keys() & every


def test_a_key_is_a_setting_of_the_service_that_it_is_listed_for() -> None:
    assert FETCHER_KEYS.keys() <= fields(FetcherSettings)
    assert LOG_STORAGE_KEYS.keys() <= fields(LogStorageSettings)
    assert REPLICA_MANAGER_KEYS.keys() <= fields(ReplicaManagerSettings)


@pytest.mark.parametrize("kind", SERVICES, ids=lambda kind: kind.__name__)
def test_a_value_is_taken_where_the_setting_takes_it(kind: type[ServiceSettings]) -> None:
    static = load(kind, SERVICES[kind])
    for key, check in {**BROKER_KEYS, **CLUSTER_KEYS}.items():
        name = key.replace(".", "_")
        if key not in fields(kind) or key == "log.level":
            continue
        for value in [*NUMBERS, *TEXTS]:
            if check(value) is not None:
                continue
            changed = with_dynamic(static, {key: value})
            assert changed == kind(**{**{k.replace(".", "_"): v for k, v in SERVICES[kind].items()}, name: value}), key
    for key in fields(kind) & (LOG_STORAGE_KEYS.keys() | FETCHER_KEYS.keys()) - NARROWER:
        for value in NUMBERS:
            try:
                kind(**{**{k.replace(".", "_"): v for k, v in SERVICES[kind].items()}, key.replace(".", "_"): value})
            except ValidationError:
                assert BROKER_KEYS[key](value) is not None, (key, value)


def test_what_is_set_goes_before_the_start_and_falls_back_to_it() -> None:
    static = load(LogStorageSettings, {**SERVICES[LogStorageSettings], "log.segment.bytes": "5000"})
    changed = with_dynamic(static, {"log.segment.bytes": "7000", "log.retention.ms": "5", "min.insync.replicas": "2"})
    assert (changed.log_segment_bytes, changed.retention_ms) == (7000, 5)
    assert with_dynamic(static, {}) == static
    assert with_dynamic(static, {"log.segment.bytes": "many", "log.dirs": "/y"}) == static


@pytest.mark.parametrize(
    ("kind", "key", "value", "problem"),
    [
        ("brokers", "log.cleaner.threads", "0", "is not between 1 and 64"),
        ("brokers", "log.cleaner.io.max.bytes.per.second", "0", "is not above 0"),
        ("brokers", "log.cleaner.io.buffer.load.factor", "1.5", "is above 0.99"),
        ("brokers", "log.level", "LOUD", "is not one of DEBUG, INFO, WARNING, ERROR, CRITICAL"),
        ("cluster", "message.max.bytes", str(1 << 40), f"is not between 1024 and {127 << 20}"),
        ("cluster", "log.cleanup.policy", "drop", "is not delete, compact, or both with a comma between"),
        ("clients", "producer_byte_rate", "fast", "is not an integer"),
        ("users", "request_percentage", "1e999", f"is above {sys.float_info.max:g}"),
        ("users", "request_percentage", "nan", "is not a number"),
    ],
)
def test_a_bad_value_is_told_with_its_range(kind: str, key: str, value: str, problem: str) -> None:
    table = {each.value: known for each, known in KEYS.items()}[kind]
    assert table[key](value) == problem


def test_quotas_are_of_clients_and_users_alike() -> None:
    assert {each.value for each, known in KEYS.items() if known is CLIENT_KEYS} == {"clients", "users"}
