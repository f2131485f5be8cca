"""Decisions by ACLs, as Kafka's StandardAuthorizer makes them. Pure.

    a super user                                     everything
    a DENY of the operation, or of ALL               no
    an ALLOW of it, of ALL, or of what implies it    yes
    no ACL is for the resource                       `allow.everyone.if.no.acl.found`
    otherwise                                        no

READ, WRITE, DELETE and ALTER imply DESCRIBE, and ALTER_CONFIGS implies DESCRIBE_CONFIGS; a DENY implies nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from highwater.security.acls import ANY_NAME, EVERYBODY, Acl, Operation, PatternType, PermissionType, ResourceType
from highwater.security.principal import Principal

AT_ONCE = 480
"""ACLs of one piece."""
_Masks = tuple[int, int]  # bits of the operations that are allowed and denied
_NOTHING: _Masks = (0, 0)
_ALL_BITS = sum(1 << each for each in Operation if each > Operation.ALL)
_IMPLIED_BY = {
    Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
    Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
}
_IMPLIES = {
    operation: 1 << operation | sum(1 << each for each, by in _IMPLIED_BY.items() if operation in by)
    for operation in Operation
} | {Operation.ALL: _ALL_BITS}


class AclIndex:
    """All ACLs of a cluster, found by resource: a decision costs a look-up for each length that prefixes have, and none
    for each ACL. Made anew when ACLs have changed."""

    def __init__(self, acls: Iterable[Acl] = ()) -> None:
        self.acls = frozenset(acls)
        self._rules: dict[tuple[ResourceType, PatternType, str], dict[Principal, _Masks]] = {}
        self._lengths: dict[ResourceType, tuple[int, ...]] = {}

    def build(self) -> Iterator[None]:
        """A piece at a time; it finds nothing before the end."""
        lengths: dict[ResourceType, set[int]] = {}
        for number, acl in enumerate(self.acls, 1):
            if number % AT_ONCE == 0:
                yield
            rules = self._rules.setdefault((acl.resource_type, acl.pattern_type, acl.name), {})
            allowed, denied = rules.get(acl.principal, _NOTHING)
            if acl.permission is PermissionType.ALLOW:
                allowed |= _IMPLIES[acl.operation]
            else:
                denied |= _ALL_BITS if acl.operation is Operation.ALL else 1 << acl.operation
            rules[acl.principal] = allowed, denied
            if acl.pattern_type is PatternType.PREFIXED:
                lengths.setdefault(acl.resource_type, set()).add(len(acl.name))
        self._lengths = {kind: tuple(sorted(each)) for kind, each in lengths.items()}

    def of(self, resource_type: ResourceType, name: str) -> Iterable[Mapping[Principal, _Masks]]:
        """The rules that are for a resource, each by principal."""
        find = self._rules.get
        if (rules := find((resource_type, PatternType.LITERAL, name))) is not None:
            yield rules
        if name != ANY_NAME and (rules := find((resource_type, PatternType.LITERAL, ANY_NAME))) is not None:
            yield rules
        for length in self._lengths.get(resource_type, ()):
            if length > len(name):
                break
            if (rules := find((resource_type, PatternType.PREFIXED, name[:length]))) is not None:
                yield rules

    def masks_of(self, resource_type: ResourceType, principal: Principal) -> Iterable[tuple[str, PatternType, _Masks]]:
        """The rules of a principal, and of everybody, on each pattern of a type, at the cost of all patterns."""
        for (kind, pattern_type, name), rules in self._rules.items():
            if kind is resource_type:
                for each in (principal, EVERYBODY):
                    if (masks := rules.get(each)) is not None:
                        yield name, pattern_type, masks


class Authorizer:
    """Decides for one broker. Until it is told ACLs nobody but super users may do anything: it fails closed."""

    def __init__(
        self, super_users: Collection[Principal] = (), *, allow_everyone_if_no_acl_found: bool = False
    ) -> None:
        self._super_users = frozenset(super_users)
        self._allow_everyone = allow_everyone_if_no_acl_found
        self._index = AclIndex()
        self.revision = 0
        """Of the ACLs that it decides by, in etcd; 0: it knows none yet."""
        self.generation = 0
        """Counts the changes: etcd that was restored goes through the same revisions again."""

    @property
    def loaded(self) -> bool:
        return self.revision > 0

    @property
    def acls(self) -> frozenset[Acl]:
        return self._index.acls

    def changed(self, acls: Iterable[Acl], revision: int) -> None:
        """These are all ACLs now."""
        for _ in self.changing(acls, revision):
            pass

    def changing(self, acls: Iterable[Acl], revision: int) -> Iterator[None]:
        """The same a piece at a time: what was known before counts until the end."""
        index = AclIndex(acls)
        yield from index.build()
        self._index = index
        self.revision = revision
        self.generation += 1

    def is_super_user(self, principal: Principal) -> bool:
        return principal in self._super_users

    def permitted(self, principal: Principal, resource_type: ResourceType, name: str) -> int:
        """The operations that the principal may on the resource, a bit for each: `1 << operation`."""
        if principal in self._super_users:
            return _ALL_BITS
        if not self.loaded:
            return 0
        allowed = denied = 0
        found = False
        for rules in self._index.of(resource_type, name):
            found = True
            for who in (principal, EVERYBODY):
                of_rule = rules.get(who, _NOTHING)
                allowed |= of_rule[0]
                denied |= of_rule[1]
        if not found and self._allow_everyone:
            return _ALL_BITS
        return allowed & ~denied

    def allows(self, principal: Principal, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        return bool(self.permitted(principal, resource_type, name) >> operation & 1)

    def allows_on_any(self, principal: Principal, operation: Operation, resource_type: ResourceType) -> bool:
        """Tells whether there may be a resource of the type on which the principal may do this (Kafka's
        authorizeByResourceType): an ALLOW that no DENY for the same names, or for names that they begin with,
        takes back."""
        if principal in self._super_users:
            return True
        if not self.loaded:
            return False
        bit = 1 << operation
        allowed: list[tuple[str, PatternType]] = []
        denied: list[tuple[str, PatternType]] = []
        for name, pattern_type, masks in self._index.masks_of(resource_type, principal):
            if masks[0] & bit:
                allowed.append((name, pattern_type))
            if masks[1] & bit:
                denied.append((name, pattern_type))
        if (ANY_NAME, PatternType.LITERAL) in denied:
            return False
        if self._allow_everyone:
            return True
        prefixes = tuple(name for name, pattern_type in denied if pattern_type is PatternType.PREFIXED)
        literal = {name for name, pattern_type in denied if pattern_type is PatternType.LITERAL}
        return any(
            not name.startswith(prefixes) and not (pattern_type is PatternType.LITERAL and name in literal)
            for name, pattern_type in allowed
        )
