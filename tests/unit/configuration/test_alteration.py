"""What is said of keys that cannot be changed."""

from __future__ import annotations

import re

import pytest

from highwater.configuration.alteration import problem_with
from highwater.configuration.entities import CLUSTER, DEFAULT_BROKER, ClientEntity, ConfigEntity


@pytest.mark.parametrize(
    ("entity", "key", "said"),
    [
        (DEFAULT_BROKER, "log.cleaner.thread", "did you mean log.cleaner.threads?"),
        (DEFAULT_BROKER, "retention.ms", "did you mean log.retention.ms?"),
        (CLUSTER, "cleanup.policy", "did you mean log.cleanup.policy?"),
        (CLUSTER, "max.message.bytes", "did you mean message.max.bytes?"),
        (ClientEntity("a"), "producer.byte.rate", "did you mean producer_byte_rate?"),
        (ClientEntity("a"), "zzz", "the known keys are consumer_byte_rate, controller_mutation_rate"),
        (DEFAULT_BROKER, "min.insync.replicas", "is of the cluster, as all its services must agree on it"),
        (CLUSTER, "log.cleaner.threads", "is of brokers: set it for one of them, or as the default of all"),
        (DEFAULT_BROKER, "listeners", "listeners is READ_ONLY: a service reads it at its start"),
        (DEFAULT_BROKER, "log.retention.hours", "is READ_ONLY: .* or set log.retention.ms in its place"),
        (CLUSTER, "etcd", "etcd is READ_ONLY"),
        (DEFAULT_BROKER, "log.dir", "log.dir is READ_ONLY"),
        (
            DEFAULT_BROKER,
            "num.io.threads",
            "means nothing here: each service is one event loop: .* queued.max.requests",
        ),
        (CLUSTER, "num.network.threads", "means nothing here: each service is one event loop"),
    ],
)
def test_a_key_that_cannot_be_changed(entity: ConfigEntity, key: str, said: str) -> None:
    for problem in (problem_with(entity, {key: "1"}, ()), problem_with(entity, {}, [key])):
        assert problem is not None
        assert re.search(said, problem), problem


def test_good_changes_are_let_through() -> None:
    assert problem_with(DEFAULT_BROKER, {"log.cleaner.threads": "2"}, ["log.roll.ms"]) is None


def test_a_bad_value_is_shown_with_its_key() -> None:
    assert problem_with(DEFAULT_BROKER, {"log.roll.ms": "0"}, ()) == (
        "log.roll.ms='0' is not between 1 and 9223372036854775807"
    )
    long = problem_with(DEFAULT_BROKER, {"log.roll.ms": "9" * 5_000}, ())
    assert long == "log.roll.ms has 5000 characters: 4096 are the most"


def test_what_an_older_version_has_set_can_be_unset() -> None:
    assert problem_with(DEFAULT_BROKER, {}, ["log.old.key"], ["log.old.key"]) is None
