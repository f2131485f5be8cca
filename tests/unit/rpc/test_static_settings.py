"""What others are told of the settings that a service was started with."""

from __future__ import annotations

from pathlib import Path

from highwater.replica_manager.settings import ReplicaManagerSettings
from highwater.rpc.dynamic_settings import HIDDEN, static_settings
from highwater.rpc.settings import load


def test_secrets_are_hidden_and_what_is_none_is_told() -> None:
    settings = ReplicaManagerSettings(  # type: ignore[call-arg]
        broker_id=1,
        listeners="CLIENT://h:1",  # type: ignore[arg-type]
        etcd="h:2",  # type: ignore[arg-type]
        log_storage="h:3",
        otlp_headers="authorization=Bearer s3cret",
        tokens_allow_plaintext=True,
    )
    told = {each.key: each.value for each in static_settings(settings, "replica-manager")}
    assert told["otlp.headers"] == HIDDEN
    assert "s3cret" not in str(told)
    assert told["tokens.allow.plaintext"] == "true"
    assert told["listeners"] == "CLIENT://h:1"


def test_a_value_is_told_as_it_is_written(tmp_path: Path) -> None:
    for file in ("ca.pem", "tls.pem", "tls-key.pem"):
        (tmp_path / file).touch()
    given = {
        "broker.id": "1",
        "listeners": "CLIENT://h:1,INTERNAL://h:2",
        "advertised.listeners": "CLIENT://public:1",
        "inter.broker.listener.name": "INTERNAL",
        "listener.security.protocol.map": "CLIENT:SSL,INTERNAL:SSL",
        "ssl.ca.file": str(tmp_path / "ca.pem"),
        "ssl.certificate.file": str(tmp_path / "tls.pem"),
        "ssl.key.file": str(tmp_path / "tls-key.pem"),
        "ssl.client.auth": "CLIENT:none,INTERNAL:required",
        "etcd": "h:2,h:3",
        "log.storage": "h:4",
        "metrics.reporters": "console,csv",
        "broker.principal": "User:CN=broker-{id},O=Example",
        "controller.principals": "User:CN=controller,O=Example",
        "super.users": "User:admin;User:CN=ops,O=Example",
        "sasl.oauthbearer.expected.audience": "here,there",
        "principals.max.open.calls": "7",
        "auto.create.topics.enable": "true",
    }
    told = static_settings(load(ReplicaManagerSettings, given), "replica-manager")
    assert {each.key: each.value for each in told if not each.is_default} == given
    unset = {each.key: each.value for each in told if each.is_default}
    assert unset["sasl.oauthbearer.jwks.endpoint.url"] == ""
    fresh = {key: given[key] for key in ("broker.id", "listeners", "inter.broker.listener.name", "etcd", "log.storage")}
    for each in static_settings(load(ReplicaManagerSettings, fresh), "replica-manager"):
        assert each.key in fresh or each.value not in ("()", "[]", "{}", "None"), each.key
