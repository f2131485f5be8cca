"""ACLs as values, in Kafka's terms. Pure.

An ACL allows or denies one principal one operation on the resources that a pattern names: one by its name (LITERAL, of
which `*` names all), or all whose names begin with it (PREFIXED). There are no hosts: an ACL holds wherever its
principal calls from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple, TypeVar

from highwater.security.principal import Principal, parse_principal

ANY_NAME = "*"
CLUSTER_NAME = "kafka-cluster"
"""The name of the only cluster that there is, as in Kafka."""
EVERYBODY = Principal("User", "*")

MAX_ACLS = 10_000
"""Of a cluster, however many etcd would hold: each broker keeps them all in memory."""
MAX_RESOURCE_NAME = 249  # characters
MAX_PRINCIPAL_NAME = 500  # characters: a distinguished name is long


class ResourceType(IntEnum):
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


class PatternType(IntEnum):
    ANY = 1
    """In filters: whatever the pattern is."""
    MATCH = 2
    """In filters: every pattern that is for a resource of this name."""
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """The numbers are Kafka's."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class PermissionType(IntEnum):
    ANY = 1
    DENY = 2
    ALLOW = 3


OPERATIONS_OF = {
    ResourceType.TOPIC: frozenset(
        {
            *(Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER),
            *(Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS),
        }
    ),
    ResourceType.GROUP: frozenset({Operation.READ, Operation.DELETE, Operation.DESCRIBE}),
    ResourceType.CLUSTER: frozenset(
        {
            *(Operation.CREATE, Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION),
            *(Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS, Operation.IDEMPOTENT_WRITE),
        }
    ),
    ResourceType.TRANSACTIONAL_ID: frozenset({Operation.WRITE, Operation.DESCRIBE}),
}


class Acl(NamedTuple):
    """One ACL. Kafka's AclBinding, without a host."""

    resource_type: ResourceType
    pattern_type: PatternType
    name: str
    principal: Principal
    operation: Operation
    permission: PermissionType
    unreadable: str = ""
    """The key in etcd of one that cannot be read: the others are what it is taken for. Empty: it can."""

    def __str__(self) -> str:
        prefixed = "*" if self.pattern_type is PatternType.PREFIXED else ""
        unreadable = f" (etcd's key {self.unreadable} cannot be read)" if self.unreadable else ""
        return (
            f"{self.permission.name} {self.principal} {self.operation.name} on {self.resource_type.name} "
            f"{self.name}{prefixed}{unreadable}"
        )


class AclFilter(NamedTuple):
    """The ACLs that are meant. `ANY`, and None, leave a field open."""

    resource_type: ResourceType = ResourceType.ANY
    pattern_type: PatternType = PatternType.ANY
    name: str | None = None
    principal: Principal | None = None
    operation: Operation = Operation.ANY
    permission: PermissionType = PermissionType.ANY

    def means(self, acl: Acl) -> bool:
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self._means_pattern(acl)
            and self.principal in (None, acl.principal)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (PermissionType.ANY, acl.permission)
        )

    def _means_pattern(self, acl: Acl) -> bool:
        if self.pattern_type is PatternType.MATCH:
            return self.name is None or _is_for(acl, self.name)
        return self.pattern_type in (PatternType.ANY, acl.pattern_type) and self.name in (None, acl.name)


def _is_for(acl: Acl, name: str) -> bool:
    if acl.pattern_type is PatternType.PREFIXED:
        return name.startswith(acl.name)
    return acl.name in (name, ANY_NAME)


def problem_with(acl: Acl) -> str:
    """The sentence that refuses an ACL; empty: it is one."""
    operations = OPERATIONS_OF.get(acl.resource_type)
    if operations is None:
        return "the resource type is none of TOPIC, GROUP, CLUSTER and TRANSACTIONAL_ID"
    if acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        return "the pattern type is neither LITERAL nor PREFIXED"
    if acl.permission not in (PermissionType.ALLOW, PermissionType.DENY):
        return "the permission is neither ALLOW nor DENY"
    if acl.operation is not Operation.ALL and acl.operation not in operations:
        allowed = ", ".join(each.name for each in sorted(operations))
        return f"{acl.operation.name} is no operation of a {acl.resource_type.name}: take ALL or one of {allowed}"
    if not acl.name or len(acl.name) > MAX_RESOURCE_NAME or not acl.name.isprintable():
        return f"a resource's name has 1 to {MAX_RESOURCE_NAME} printable characters"
    if acl.resource_type is ResourceType.CLUSTER and (acl.name, acl.pattern_type) != (
        CLUSTER_NAME,
        PatternType.LITERAL,
    ):
        return f"the cluster's name is {CLUSTER_NAME}, LITERAL"
    if len(acl.principal.name) > MAX_PRINCIPAL_NAME or not acl.principal.name.isprintable():
        return f"a principal's name has 1 to {MAX_PRINCIPAL_NAME} printable characters"
    return ""


_Value = TypeVar("_Value", ResourceType, PatternType, Operation, PermissionType)


def parse(kind: type[_Value], text: str) -> _Value:
    """The value that a person or etcd names, in any case and with `-` for `_`. Raises `ValueError`."""
    try:
        return kind[text.strip().upper().replace("-", "_")]
    except KeyError:
        names = ", ".join(each.name for each in kind)
        raise ValueError(f"{text!r} is none of {names}") from None


def parse_acl(resource_type: str, pattern_type: str, name: str, principal: str, operation: str, permission: str) -> Acl:
    """Of six words. Raises `ValueError` where they are no ACL."""
    acl = Acl(
        parse(ResourceType, resource_type),
        parse(PatternType, pattern_type),
        name,
        parse_principal(principal),
        parse(Operation, operation),
        parse(PermissionType, permission),
    )
    if problem := problem_with(acl):
        raise ValueError(problem)
    return acl


def unreadable_acls(key: str, words: Sequence[str]) -> tuple[Acl, ...]:
    """The ACLs that one which cannot be read is taken for: it may have denied anybody anything on what it was about, so
    nobody but super users may anything there. `words` are those of its key, of which the first three name a pattern of
    resources; where they do not, it may have been about all resources of the kind, or of every kind."""
    kinds: tuple[ResourceType, ...] = tuple(OPERATIONS_OF)
    pattern, name = PatternType.LITERAL, ""
    try:
        kinds = (_kind(words[0]),)
        # Of fewer or more words than an ACL's the last may be cut short, or the name is not the third.
        if 4 <= len(words) <= 6:
            pattern, name = parse(PatternType, words[1]), words[2]
    except (ValueError, IndexError):
        pattern, name = PatternType.LITERAL, ""
    made = []
    for kind in kinds:
        whole = CLUSTER_NAME if kind is ResourceType.CLUSTER else ANY_NAME
        acl = Acl(kind, pattern, name, EVERYBODY, Operation.ALL, PermissionType.DENY, key)
        made.append(acl._replace(pattern_type=PatternType.LITERAL, name=whole) if problem_with(acl) else acl)
    return tuple(made)


def _kind(word: str) -> ResourceType:
    """Raises `ValueError`."""
    kind = parse(ResourceType, word)
    if kind not in OPERATIONS_OF:
        raise ValueError(f"{word!r} is no kind of resource")
    return kind


def in_order(acls: Iterable[Acl]) -> list[Acl]:
    """By resource, and then by principal."""
    return sorted(acls, key=lambda acl: (acl.resource_type, acl.pattern_type, *acl[2:]))
