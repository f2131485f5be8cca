"""What a stream keeps of decisions, and for how long."""

from __future__ import annotations

from typing import Any

import pytest

from highwater.errors import ErrorCode
from highwater.replica_manager.server.metadata_answers import _creation_refusal
from highwater.security import access as module
from highwater.security.access import Access, Authorization
from highwater.security.acls import Operation, ResourceType, parse_acl
from highwater.security.authorizer import Authorizer
from highwater.security.principal import Principal, user

ALICE = user("alice")
ORDERS = b"o" * 16
MAY_WRITE = parse_acl("topic", "literal", "orders", "User:alice", "write", "allow")


class Counting(Authorizer):
    """Counts how often it is asked."""

    asked = 0

    def permitted(self, principal: Principal, resource_type: ResourceType, name: str) -> int:
        self.asked += 1
        return super().permitted(principal, resource_type, name)


def opened() -> tuple[Counting, dict[bytes, str], Access]:
    authorizer, topics = Counting(), {ORDERS: "orders"}
    authorizer.changed([MAY_WRITE], 5)
    return authorizer, topics, Access(authorizer, ALICE, topics.get)


def test_a_stream_asks_once_for_each_topic_until_acls_change() -> None:
    authorizer, _, access = opened()
    for _ in range(100):
        assert access.topic_error(Operation.WRITE, ORDERS) is ErrorCode.NONE
        assert access.topic_error(Operation.READ, ORDERS) is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert access.may_topic(Operation.DESCRIBE, "orders")
    assert authorizer.asked == 2  # by id, and by name
    authorizer.changed([], 6)
    assert access.topic_error(Operation.WRITE, ORDERS) is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert not access.may_topic(Operation.DESCRIBE, "orders")
    authorizer.changed([MAY_WRITE], 7)
    assert access.topic_error(Operation.WRITE, ORDERS) is ErrorCode.NONE


def test_a_topic_that_nobody_knows_is_refused_and_not_remembered() -> None:
    _, topics, access = opened()
    other = b"x" * 16
    assert access.topic_error(Operation.WRITE, other) is ErrorCode.UNKNOWN_TOPIC_ID
    topics[other] = "secrets"
    assert access.topic_error(Operation.WRITE, other) is ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_a_topics_name_is_told_to_whoever_may_describe_it() -> None:
    authorizer, _, access = opened()
    assert access.topic_refusal(Operation.READ, ORDERS).startswith("User:alice may not READ topic 'orders'")
    authorizer.changed([], 6)
    refusal = access.topic_refusal(Operation.READ, ORDERS)
    assert refusal.startswith(f"User:alice may not READ the topic of id {ORDERS.hex()}: ")


def test_what_was_decided_is_forgotten_where_etcd_goes_through_a_revision_again() -> None:
    """It was restored from a backup, say."""
    authorizer, _, access = opened()
    assert access.topic_error(Operation.WRITE, ORDERS) is ErrorCode.NONE
    authorizer.changed([], authorizer.revision)
    assert access.topic_error(Operation.WRITE, ORDERS) is ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KEPT", 10)
    _, topics, access = opened()
    for number in range(100):
        topics[number.to_bytes(16, "big")] = f"t{number}"
        access.topic_error(Operation.READ, number.to_bytes(16, "big"))
        access.may_topic(Operation.READ, f"t{number}")
        assert len(access._kept) <= 11
        assert len(access._kept_ids) <= 11


def test_a_long_name_is_not_kept() -> None:
    authorizer, _, access = opened()
    for _ in range(2):
        assert not access.may_group(Operation.READ, "g" * 250)
    assert authorizer.asked == 2
    assert not access._kept


def test_calls_of_one_principal_share_decisions_and_principals_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    authorization = Authorization(Authorizer(), lambda _: None)
    who = ALICE
    monkeypatch.setattr(module, "principal_of", lambda context: who)
    first = authorization.access(None)
    assert authorization.access(None) is first
    for number in range(module.MAX_PRINCIPALS + 5):
        who = user(f"u{number}")
        assert authorization.access(None).principal == who
        assert len(authorization._accesses) <= module.MAX_PRINCIPALS


def test_whoever_listens_is_told_until_it_leaves() -> None:
    authorization = Authorization(Authorizer(), lambda _: None)
    told: list[Any] = []
    leave = authorization.on_change(lambda: told.append(1))
    for tell in authorization.listening():
        tell()
    leave()
    leave()
    assert not authorization.listening()
    assert told == [1]


def test_nobody_makes_a_topic_by_metadata_that_it_may_not_describe() -> None:
    authorizer = Authorizer()
    words = (("cluster", "kafka-cluster", "create"), ("topic", "orders", "describe"))
    authorizer.changed([parse_acl(kind, "literal", name, "User:alice", op, "allow") for kind, name, op in words], 1)
    alice = Access(authorizer, user("alice"), lambda topic_id: None)
    assert _creation_refusal(alice, "orders") is None
    refused = _creation_refusal(alice, "secrets")
    assert refused is not None
    assert refused[0] is ErrorCode.TOPIC_AUTHORIZATION_FAILED
