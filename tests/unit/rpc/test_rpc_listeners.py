"""The replica-manager's listeners as they are set: what is meant, and what is refused with a sentence."""

from __future__ import annotations

import pytest

from highwater.errors import UserError
from highwater.replica_manager.settings import ReplicaManagerSettings
from highwater.rpc.listeners import advertised_addresses
from highwater.rpc.settings import load

REQUIRED = {"broker.id": "1", "etcd": "127.0.0.1:1", "log.storage": "unix:/ls"}


def given(**settings: str) -> ReplicaManagerSettings:
    named = {key.replace("_", "."): value for key, value in settings.items()}
    return load(ReplicaManagerSettings, {**REQUIRED, **named})


def test_the_only_listener_is_the_internal_one() -> None:
    settings = given(listeners="plaintext://127.0.0.1:9092")
    assert (settings.listeners, settings.internal_listener) == ({"PLAINTEXT": "127.0.0.1:9092"}, "PLAINTEXT")


def test_of_several_the_internal_one_is_named() -> None:
    settings = given(
        listeners="CLIENT://0.0.0.0:9092, INTERNAL://unix:/run/highwater/rm",
        advertised_listeners="CLIENT://broker-1.example:9092",
        inter_broker_listener_name="internal",
    )
    assert settings.listeners == {"CLIENT": "0.0.0.0:9092", "INTERNAL": "unix:/run/highwater/rm"}
    assert settings.internal_listener == "INTERNAL"
    bound = {"CLIENT": "0.0.0.0:9092", "INTERNAL": "unix:/run/highwater/rm"}
    assert advertised_addresses(settings.listeners, settings.advertised_listeners, bound) == {
        "CLIENT": "broker-1.example:9092",
        "INTERNAL": "unix:/run/highwater/rm",
    }


def test_a_port_of_0_stands_for_the_bound_one() -> None:
    listeners, bound = {"A": "127.0.0.1:0", "B": "0.0.0.0:0"}, {"A": "127.0.0.1:4001", "B": "0.0.0.0:4002"}
    advertised = advertised_addresses(listeners, {"B": "broker-1:0"}, bound)
    assert advertised == {"A": "127.0.0.1:4001", "B": "broker-1:4002"}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"listeners": ""}, r"listeners: .*there is none: write NAME://host:port"),
        ({"listeners": "127.0.0.1:9092"}, r"listeners: .*is not a listener: write NAME://host:port"),
        ({"listeners": "my listener://127.0.0.1:9092"}, "is not a listener"),
        ({"listeners": "A://9092"}, "is not an address"),
        ({"listeners": "A://h:1,a://h:2"}, "two listeners A: give every listener a name of its own"),
        ({"listeners": "A://0.0.0.0:9092"}, r"advertised\.listeners: .*nobody can connect to 0\.0\.0\.0:9092: give"),
        ({"listeners": "A://[::]:9092"}, "nobody can connect to .*A://host:port"),
        ({"listeners": "A://h:1", "advertised.listeners": "A://0.0.0.0:1"}, "nobody can connect to"),
        ({"listeners": "A://h:1", "advertised.listeners": "B://h:1"}, r"no listener B: name those of listeners \(A\)"),
        (
            {"listeners": "A://h:1,B://h:2", "advertised.listeners": "B://h:1", "inter.broker.listener.name": "A"},
            "listeners A and B both have the address h:1: give each one of its own",
        ),
        ({"listeners": "A://h:1,B://h:2"}, r"inter\.broker\.listener\.name: .*say which listener .*one of A, B"),
        (
            {"listeners": "A://h:1,B://h:2", "inter.broker.listener.name": "C"},
            r"inter\.broker\.listener\.name: .*no listener C: name one of listeners \(A, B\)",
        ),
        ({"listen": "h:1", "listeners": "A://h:1"}, "listen: there is no such key"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, str], says: str) -> None:
    with pytest.raises(UserError, match=says) as raised:
        load(ReplicaManagerSettings, {**REQUIRED, **settings})
    assert "\n" not in str(raised.value)
