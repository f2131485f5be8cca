"""Security that is configured by half is refused at start, with the cure."""

from __future__ import annotations

import pytest

from highwater.controller.settings import ControllerSettings
from highwater.errors import UserError
from highwater.fetcher.settings import FetcherSettings
from highwater.replica_manager.settings import ReplicaManagerSettings
from highwater.rpc.listeners import speaks_tls, with_tls, without_tls
from highwater.rpc.settings import load

FILES = {"ssl.ca.file": "/ca.pem", "ssl.certificate.file": "/tls.pem", "ssl.key.file": "/key.pem"}
BROKER = {
    "broker.id": "1",
    "etcd": "h:2379",
    "log.storage": "unix:/ls",
    "listeners": "CLIENT://h:9092,INTERNAL://h:9094",
    "inter.broker.listener.name": "INTERNAL",
}
CONTROLLER = {
    "controller.id": "1",
    "etcd": "h:2379",
    "listen": "ssl:h:9090",
    "advertised.listener": "ssl:h:9090",
    **FILES,
}
FETCHER = {"broker.id": "1", "listen": "unix:/f", "replica.manager": "ssl:h:9094", "log.storage": "unix:/ls"}


def test_an_address_may_say_that_tls_is_spoken_there() -> None:
    assert (speaks_tls("ssl:h:1"), speaks_tls("ssl:9092"), speaks_tls("h:1"), speaks_tls("unix:/s")) == (
        True,
        False,  # a host called ssl
        False,
        False,
    )
    assert with_tls("[::1]:1") == "ssl:[::1]:1"
    assert [without_tls(each) for each in ("ssl:[::1]:1", "ssl:1", "unix:/s")] == ["[::1]:1", "ssl:1", "unix:/s"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"ssl.certificate.file": "/tls.pem"}, "ssl.certificate.file is set without ssl.key.file: set both"),
        ({"ssl.key.file": "/key.pem"}, "ssl.key.file is set without ssl.certificate.file: set both"),
        (
            {"listener.security.protocol.map": "CLIENT:SSL"},
            "listener CLIENT is to speak TLS, and there is no certificate: set ssl.certificate.file and ssl.key.file",
        ),
        (
            {
                "listener.security.protocol.map": "CLIENT:SSL",
                "ssl.client.auth": "required",
                **{key: FILES[key] for key in ("ssl.certificate.file", "ssl.key.file")},
            },
            "nobody says whose to trust: set ssl.ca.file",
        ),
        ({"ssl.client.auth": "required", **FILES}, "no listener speaks TLS: write NAME:SSL"),
        (
            {"ssl.client.auth": "CLIENT:required", "listener.security.protocol.map": "INTERNAL:SSL", **FILES},
            "it speaks no TLS: write CLIENT:SSL",
        ),
        ({"ssl.client.auth": "requested"}, "not possible: write required, or none"),
        ({"ssl.client.auth": "CLIENT:maybe"}, "'maybe' is neither none nor required"),
        ({"ssl.client.auth": "OTHER:required"}, "there is no listener OTHER: name those of listeners"),
        ({"listener.security.protocol.map": "OTHER:SSL"}, "there is no listener OTHER: name those of listeners"),
        ({"listener.security.protocol.map": "CLIENT:SASL_SSL"}, "to speak SASL_SSL.*: write CLIENT:SSL"),
        ({"listener.security.protocol.map": "CLIENT"}, "'CLIENT' does not say what holds for a listener"),
        ({"listener.security.protocol.map": "CLIENT:SSL,client:SSL"}, "listener CLIENT stands there twice"),
        (
            {
                "listeners": "CLIENT://unix:/c,INTERNAL://h:1",
                "listener.security.protocol.map": "CLIENT:SSL",
                **FILES,
            },
            "listener CLIENT is a Unix socket, over which nobody speaks TLS",
        ),
        ({"listeners": "CLIENT://ssl:h:1,INTERNAL://h:2"}, "write CLIENT://h:1, and CLIENT:SSL in listener.security"),
        ({"log.storage": "ssl:unix:/ls"}, "nobody speaks TLS over a Unix socket: write unix:/ls"),
    ],
)
def test_half_configured_security_of_a_broker_is_refused(changes: dict[str, str], told: str) -> None:
    with pytest.raises(UserError, match=told):
        load(ReplicaManagerSettings, {**BROKER, **changes})


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"ssl.certificate.file": "", "ssl.key.file": ""}, "ssl:h:9090 is to speak TLS, and there is no certificate"),
        ({"ssl.client.auth": "required", "ssl.ca.file": ""}, "nobody says whose to trust: set ssl.ca.file"),
        (
            {"listen": "h:9090", "advertised.listener": "h:9090", "ssl.client.auth": "required"},
            "no address speaks TLS: write ssl:host:port",
        ),
        ({"advertised.listener": "h:9090"}, "not how this controller listens: write ssl:h:9090"),
        ({"listen": "h:9090"}, "not how this controller listens: write h:9090"),
    ],
)
def test_half_configured_security_of_a_controller_is_refused(changes: dict[str, str], told: str) -> None:
    load(ControllerSettings, CONTROLLER)
    with pytest.raises(UserError, match=told):
        load(ControllerSettings, {**CONTROLLER, **changes})


def test_listeners_differ() -> None:
    some = {
        **BROKER,
        **FILES,
        "listeners": "CLIENT://h:1,INTERNAL://h:2,SSL://h:3",
        "listener.security.protocol.map": "internal:ssl",
        "ssl.client.auth": "INTERNAL:required",
    }
    settings = load(ReplicaManagerSettings, some)
    assert settings.tls_listeners == {"INTERNAL", "SSL"}  # as in Kafka the name SSL says it
    assert [settings.requires_certificates(name) for name in ("CLIENT", "INTERNAL", "SSL")] == [False, True, False]
    assert not load(ReplicaManagerSettings, BROKER).tls_listeners


def test_a_file_that_cannot_be_read_ends_a_start_with_a_sentence() -> None:
    settings = load(FetcherSettings, {**FETCHER, **FILES})
    with pytest.raises(UserError, match=r"ssl.ca.file /ca.pem cannot be read \(No such file or directory\): name a"):
        settings.certificates()
    assert load(FetcherSettings, FETCHER).certificates() is None
