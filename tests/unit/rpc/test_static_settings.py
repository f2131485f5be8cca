"""What others are told of the settings that a service was started with."""

from __future__ import annotations

from highwater.replica_manager.settings import ReplicaManagerSettings
from highwater.rpc.dynamic_settings import HIDDEN, static_settings


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
