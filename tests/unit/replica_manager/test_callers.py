"""What a broker's settings say of its callers' tokens."""

from __future__ import annotations

import pytest

from highwater.errors import UserError
from highwater.replica_manager.callers import _oidc_of
from highwater.replica_manager.settings import ReplicaManagerSettings


def settings(**given: object) -> ReplicaManagerSettings:
    needed = {"broker_id": 1, "listeners": "CLIENT://h:1", "etcd": ["h:2"], "log_storage": "h:3"}
    return ReplicaManagerSettings(**{**needed, **given})  # type: ignore[arg-type]


def test_no_tokens_of_an_issuer_unless_its_keys_are_named() -> None:
    assert _oidc_of(settings()) is None


def test_tokens_that_were_made_for_whatever_service_are_not_taken() -> None:
    keys = {"sasl_oauthbearer_jwks_endpoint_url": "https://issuer/keys"}
    with pytest.raises(UserError, match="for whatever service it was made: set the audience"):
        _oidc_of(settings(**keys))
    assert _oidc_of(settings(**keys, sasl_oauthbearer_expected_audience="highwater")) is not None
    assert _oidc_of(settings(**keys, sasl_oauthbearer_expected_issuer="https://issuer")) is not None


def test_keys_are_at_a_place_that_can_be_asked() -> None:
    with pytest.raises(UserError, match="write https://"):
        _oidc_of(settings(sasl_oauthbearer_jwks_endpoint_url="issuer/keys"))
