"""Decisions by ACLs: the tables of Kafka's StandardAuthorizer, and a brute-force reference."""

from __future__ import annotations

import timeit
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.security.acls import (
    CLUSTER_NAME,
    EVERYBODY,
    OPERATIONS_OF,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    PermissionType,
    ResourceType,
    parse_acl,
    problem_with,
)
from highwater.security.authorizer import Authorizer
from highwater.security.principal import ANONYMOUS, Principal, user

ALICE, BOB = user("alice"), user("bob")
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
DENY, ALLOW = PermissionType.DENY, PermissionType.ALLOW


def acl(text: str) -> Acl:
    """`allow alice read topic orders` or `... topic orders*`, which is a prefix."""
    permission, principal, operation, resource_type, name = text.split()
    prefixed = name.endswith("*") and len(name) > 1
    pattern = "prefixed" if prefixed else "literal"
    return parse_acl(
        resource_type, pattern, name.rstrip("*") if prefixed else name, f"User:{principal}", operation, permission
    )


def authorizer(*acls: str, everyone: bool = False, super_users: Sequence[Principal] = ()) -> Authorizer:
    made = Authorizer(super_users, allow_everyone_if_no_acl_found=everyone)
    made.changed(map(acl, acls), 1)
    return made


@pytest.mark.parametrize(
    ("acls", "principal", "operation", "name", "allowed"),
    [
        ((), ALICE, Operation.READ, "orders", False),
        (("allow alice read topic orders",), ALICE, Operation.READ, "orders", True),
        (("allow alice read topic orders",), BOB, Operation.READ, "orders", False),
        (("allow alice read topic orders",), ANONYMOUS, Operation.READ, "orders", False),
        (("allow alice read topic orders",), ALICE, Operation.WRITE, "orders", False),
        (("allow alice read topic orders",), ALICE, Operation.READ, "orders2", False),
        (("allow alice read topic orders",), ALICE, Operation.DESCRIBE, "orders", True),
        (("allow alice write topic orders",), ALICE, Operation.DESCRIBE, "orders", True),
        (("allow alice delete topic orders",), ALICE, Operation.DESCRIBE, "orders", True),
        (("allow alice alter topic orders",), ALICE, Operation.DESCRIBE, "orders", True),
        (("allow alice create topic orders",), ALICE, Operation.DESCRIBE, "orders", False),
        (("allow alice alter_configs topic orders",), ALICE, Operation.DESCRIBE_CONFIGS, "orders", True),
        (("allow alice alter-configs topic orders",), ALICE, Operation.DESCRIBE, "orders", False),
        (("allow alice all topic orders",), ALICE, Operation.ALTER, "orders", True),
        (("allow * read topic orders",), ANONYMOUS, Operation.READ, "orders", True),
        (("allow alice read topic *",), ALICE, Operation.READ, "orders", True),
        (("allow alice read topic or*",), ALICE, Operation.READ, "orders", True),
        (("allow alice read topic or*",), ALICE, Operation.READ, "o", False),
        (("allow alice read topic or*", "deny alice read topic orders"), ALICE, Operation.READ, "orders", False),
        (("allow alice read topic or*", "deny alice read topic orders"), ALICE, Operation.READ, "ore", True),
        (("allow alice read topic orders", "deny * read topic *"), ALICE, Operation.READ, "orders", False),
        (("allow alice read topic orders", "deny alice all topic o*"), ALICE, Operation.READ, "orders", False),
        # a DENY implies nothing: neither does that of READ deny DESCRIBE, nor that of DESCRIBE deny READ
        (("allow alice read topic orders", "deny alice describe topic orders"), ALICE, Operation.READ, "orders", True),
        (
            ("allow alice read topic orders", "deny alice describe topic orders"),
            ALICE,
            Operation.DESCRIBE,
            "orders",
            False,
        ),
        (("allow alice read group orders",), ALICE, Operation.READ, "orders", False),
    ],
)
def test_decisions(acls: tuple[str, ...], principal: Principal, operation: Operation, name: str, allowed: bool) -> None:
    assert authorizer(*acls).allows(principal, operation, TOPIC, name) is allowed


def test_a_super_user_may_everything_whatever_is_denied() -> None:
    made = authorizer("deny * all topic *", super_users=[ALICE])
    assert made.allows(ALICE, Operation.ALTER, TOPIC, "orders")
    assert not made.allows(BOB, Operation.ALTER, TOPIC, "orders")


def test_everyone_may_what_no_acl_is_for_where_that_is_set() -> None:
    made = authorizer("allow alice read topic orders", everyone=True)
    assert made.allows(BOB, Operation.WRITE, TOPIC, "other")
    assert not made.allows(BOB, Operation.READ, TOPIC, "orders")


def test_nobody_but_super_users_may_anything_before_the_acls_are_known() -> None:
    made = Authorizer([BOB], allow_everyone_if_no_acl_found=True)
    assert not made.allows(ALICE, Operation.READ, TOPIC, "orders")
    assert not made.allows_on_any(ALICE, Operation.WRITE, TOPIC)
    assert made.allows(BOB, Operation.READ, TOPIC, "orders")


@pytest.mark.parametrize(
    ("acls", "allowed"),
    [
        ((), False),
        (("allow alice write topic orders",), True),
        (("allow * write topic o*",), True),
        (("allow bob write topic orders",), False),
        (("allow alice write topic orders", "deny alice write topic *"), False),
        (("allow alice write topic orders", "deny * write topic or*"), False),
        (("allow alice write topic orders", "deny alice write topic orders"), False),
        (("allow alice write topic or*", "deny alice write topic orders"), True),
    ],
)
def test_an_operation_on_any_resource_of_a_type(acls: tuple[str, ...], allowed: bool) -> None:
    assert authorizer(*acls).allows_on_any(ALICE, Operation.WRITE, TOPIC) is allowed


_NAMES = st.text("ab", min_size=1, max_size=3)
_TYPES = st.sampled_from([TOPIC, GROUP])
_ACLS = st.builds(
    Acl,
    _TYPES,
    st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    st.one_of(_NAMES, st.just("*")),
    st.sampled_from([ALICE, BOB, EVERYBODY]),
    st.sampled_from([*OPERATIONS_OF[TOPIC], Operation.ALL]),
    st.sampled_from([ALLOW, DENY]),
)
_IMPLIED = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}


@given(st.lists(_ACLS, max_size=12), st.sampled_from(sorted(OPERATIONS_OF[TOPIC])), _TYPES, _NAMES, st.booleans())
def test_the_index_decides_as_a_look_at_every_acl_does(
    acls: list[Acl], operation: Operation, resource_type: ResourceType, name: str, everyone: bool
) -> None:
    made = Authorizer(allow_everyone_if_no_acl_found=everyone)
    made.changed(acls, 1)
    matching = [each for each in acls if AclFilter(resource_type, PatternType.MATCH, name).means(each)]
    for_alice = [each for each in matching if each.principal in (ALICE, EVERYBODY)]
    denied = any(each.permission is DENY and each.operation in (operation, Operation.ALL) for each in for_alice)
    allowing = {operation, Operation.ALL} | _IMPLIED.get(operation, set())
    allowed = any(each.permission is ALLOW and each.operation in allowing for each in for_alice)
    expected = (everyone and not matching) or (allowed and not denied)
    assert made.allows(ALICE, operation, resource_type, name) is expected


def test_a_decision_does_not_cost_more_for_all_other_acls() -> None:
    def cost_s(count: int) -> float:
        made = authorizer(*(f"allow user{n} read topic topic-{n:05}" for n in range(count)), "allow alice read topic x")
        return min(timeit.repeat(lambda: made.allows(ALICE, Operation.READ, TOPIC, "x"), number=500, repeat=5))

    assert cost_s(10_000) < 5 * cost_s(10)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("any", "literal", "x", "User:a", "read", "allow"), "resource type"),
        (("topic", "match", "x", "User:a", "read", "allow"), "pattern type"),
        (("topic", "literal", "x", "User:a", "read", "any"), "permission"),
        (("topic", "literal", "x", "User:a", "idempotent_write", "allow"), "no operation of a TOPIC"),
        (("topic", "literal", "", "User:a", "read", "allow"), "name has 1 to"),
        (("topic", "literal", "x" * 250, "User:a", "read", "allow"), "name has 1 to"),
        (("topic", "literal", "x\n", "User:a", "read", "allow"), "name has 1 to"),
        (("topic", "literal", "x", "User:" + "a" * 501, "read", "allow"), "principal"),
        (("cluster", "literal", "other", "User:a", "create", "allow"), CLUSTER_NAME),
        (("cluster", "prefixed", CLUSTER_NAME, "User:a", "create", "allow"), CLUSTER_NAME),
        (("topic", "literal", "x", "alice", "read", "allow"), "User:name"),
        (("queue", "literal", "x", "User:a", "read", "allow"), "none of"),
    ],
)
def test_what_is_no_acl_is_refused_with_a_sentence(words: tuple[str, ...], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        parse_acl(*words)


@pytest.mark.parametrize("resource_type", OPERATIONS_OF)
def test_every_operation_of_a_type_makes_an_acl(resource_type: ResourceType) -> None:
    name = CLUSTER_NAME if resource_type is CLUSTER else "x"
    for operation in (*OPERATIONS_OF[resource_type], Operation.ALL):
        assert not problem_with(Acl(resource_type, PatternType.LITERAL, name, ALICE, operation, ALLOW))


def test_filters_mean_what_they_leave_open() -> None:
    literal, prefixed, other = map(
        acl, ("allow alice read topic orders", "allow bob write topic or*", "deny alice all group g")
    )
    all_of_them = {literal, prefixed, other}

    def meant(**fields: object) -> set[Acl]:
        return {each for each in all_of_them if AclFilter(**fields).means(each)}  # type: ignore[arg-type]

    assert meant() == all_of_them
    assert meant(name="orders") == {literal}
    assert meant(name="orders", pattern_type=PatternType.MATCH) == {literal, prefixed}
    assert meant(pattern_type=PatternType.PREFIXED) == {prefixed}
    assert meant(principal=ALICE) == {literal, other}
    assert meant(permission=DENY) == {other}
    assert meant(operation=Operation.WRITE) == {prefixed}


def test_acls_are_taken_in_pieces_and_count_at_the_end() -> None:
    made = authorizer("allow alice read topic orders")
    pieces = 0
    for _ in made.changing([acl(f"allow bob read topic t{number}") for number in range(5_000)], 2):
        pieces += 1
        assert made.allows(ALICE, Operation.READ, TOPIC, "orders")
        assert not made.allows(BOB, Operation.READ, TOPIC, "t7")
    assert pieces >= 10
    assert made.allows(BOB, Operation.READ, TOPIC, "t7")
    assert not made.allows(ALICE, Operation.READ, TOPIC, "orders")
