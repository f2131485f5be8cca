"""Principals from certificates and tokens, and the rules that map distinguished names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from highwater.security.mapping_rules import MappingRules
from highwater.security.principal import (
    ANONYMOUS,
    CallIdentity,
    current_call,
    parse_principal,
    principal_of,
    user,
)

NAME = "CN=Alice,OU=Ops,O=Highwater,C=DE"


class Context:
    def __init__(self, auth_context: Mapping[str, Sequence[bytes]]) -> None:
        self._auth_context = auth_context

    def auth_context(self) -> Mapping[str, Sequence[bytes]]:
        return self._auth_context


CERTIFIED = Context({"transport_security_type": [b"ssl"], "x509_subject": [NAME.encode()]})


def test_everybody_is_anonymous_where_a_server_identifies_nobody() -> None:
    assert principal_of(CERTIFIED) is ANONYMOUS


def test_a_certificate_makes_its_distinguished_name_a_user() -> None:
    with_rules = current_call.set(CallIdentity(MappingRules()))
    try:
        assert principal_of(CERTIFIED) == user(NAME)
        assert principal_of(Context({"x509_common_name": [b"bob"]})) == user("CN=bob")
        assert principal_of(Context({"transport_security_type": [b"ssl"]})) is ANONYMOUS
    finally:
        current_call.reset(with_rules)


def test_a_token_goes_before_the_certificate() -> None:
    with_token = current_call.set(CallIdentity(MappingRules(), user("bob")))
    try:
        assert principal_of(CERTIFIED) == user("bob")
    finally:
        current_call.reset(with_token)


@pytest.mark.parametrize(
    ("rules", "name"),
    [
        ("DEFAULT", NAME),
        (r"RULE:^CN=([^,]+),.*$/$1/", "Alice"),
        (r"RULE:^CN=([^,]+),.*$/$1/L", "alice"),
        (r"RULE:^CN=([^,]+),.*$/$1/U", "ALICE"),
        (r"RULE:^CN=([^,]+),OU=([^,]+),.*$/$1@$2/L,DEFAULT", "alice@ops"),
        (r"RULE:^CN=nobody$/x/, DEFAULT", NAME),
        (r"RULE:^CN=([^,]+)/$1/,DEFAULT", NAME),  # a pattern is for the whole name
        (r"RULE:^CN=([^,]+),.*$/a\/$1/", "a/Alice"),
        (r"RULE:^CN=nobody$/x/", None),
    ],
)
def test_the_first_rule_that_is_for_the_name_maps_it(rules: str, name: str | None) -> None:
    assert MappingRules(rules).name_of(NAME) == name


@pytest.mark.parametrize("rules", ["", "default", "RULE:a/b", "RULE:(/x/", "RULE:a/$1/", "DEFAULT;RULE:a/b/"])
def test_what_is_no_rule_is_refused(rules: str) -> None:
    with pytest.raises(ValueError, match=r"rule|\$1"):
        MappingRules(rules)


def test_principals_are_written_as_in_kafka() -> None:
    assert str(parse_principal("User:alice")) == "User:alice"
    for wrong in ("alice", "Group:ops", "User:"):
        with pytest.raises(ValueError, match="write User:name"):
            parse_principal(wrong)
