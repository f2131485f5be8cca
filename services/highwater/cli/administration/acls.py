"""`highwater acls list|add|remove`: what users may do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated

import typer

from highwater.cli.shared_options import with_shared_options
from highwater.console.counted import counted
from highwater.console.output import (
    DEFAULT_BOOTSTRAP,
    MAX_BLOCK_MS,
    AsJson,
    Bootstrap,
    errors,
    json_line,
    screen,
    table,
)
from highwater.errors import UserError
from highwater.security.acls import (
    CLUSTER_NAME,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    PermissionType,
    ResourceType,
    parse,
    parse_acl,
)
from highwater.security.principal import Principal, parse_principal

app = typer.Typer(no_args_is_help=True, help="ACLs: what users may do with topics, groups and the cluster.")


@dataclass(frozen=True)
class Resources:
    """The options that say what ACLs are for."""

    topic: Annotated[list[str] | None, typer.Option("--topic", help="a topic; may be repeated. '*' is every topic")] = (
        None
    )
    group: Annotated[list[str] | None, typer.Option("--group", help="a group; may be repeated. '*' is every group")] = (
        None
    )
    transactional_id: Annotated[
        list[str] | None, typer.Option("--transactional-id", help="a transactional id; may be repeated")
    ] = None
    cluster: Annotated[bool, typer.Option("--cluster", help="the cluster itself")] = False

    def named(self) -> Iterator[tuple[ResourceType, str]]:
        yield from ((ResourceType.TOPIC, name) for name in self.topic or ())
        yield from ((ResourceType.GROUP, name) for name in self.group or ())
        yield from ((ResourceType.TRANSACTIONAL_ID, name) for name in self.transactional_id or ())
        if self.cluster:
            yield ResourceType.CLUSTER, CLUSTER_NAME


@dataclass(frozen=True)
class Rules:
    """The options that say who is let in or kept out, and from what."""

    allow_principal: Annotated[
        list[str] | None, typer.Option("--allow-principal", help="who is let in: User:alice, or User:* for everybody")
    ] = None
    deny_principal: Annotated[
        list[str] | None, typer.Option("--deny-principal", help="who is kept out, whatever else lets it in")
    ] = None
    operation: Annotated[
        list[str] | None,
        typer.Option("--operation", help="READ, WRITE, CREATE, DESCRIBE, …; may be repeated. Without it ALL"),
    ] = None
    resource_pattern_type: Annotated[
        str,
        typer.Option("--resource-pattern-type", help="literal: names as they are; prefixed: all names that begin so"),
    ] = "literal"


@app.command("list")
@with_shared_options
def list_acls(
    resources: Resources,
    principal: Annotated[str | None, typer.Option(help="only this principal's")] = None,
    resource_pattern_type: Annotated[
        str, typer.Option(help="any, literal, prefixed, or match: all that are for a resource of that name")
    ] = "any",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: AsJson = False,
) -> None:
    """Show ACLs."""
    from highwater.client.blocking import Admin

    pattern = _pattern(resource_pattern_type)
    who = None if principal is None else _principal(principal)
    wanted: list[tuple[ResourceType, str | None]] = [*resources.named()]
    found: dict[Acl, None] = {}
    with Admin(bootstrap, max_block_ms=MAX_BLOCK_MS) as admin:
        for kind, name in wanted or [(ResourceType.ANY, None)]:
            found |= dict.fromkeys(admin.describe_acls(AclFilter(kind, pattern, name, who)))
    if json:
        for acl in found:
            json_line(_words(acl))
        return
    table("", list(_COLUMNS), [list(_words(acl).values())[: len(_COLUMNS)] for acl in found])
    for key in dict.fromkeys(acl.unreadable for acl in found if acl.unreadable):
        errors.print(
            f"etcd's key {key} is an ACL that cannot be read, and is taken for the DENY of ALL to User:* above: find "
            "out what it was, add that, and remove this one",
            soft_wrap=True,
        )


@app.command("add")
@with_shared_options
def add(
    rules: Rules,
    resources: Resources,
    producer: Annotated[
        bool, typer.Option("--producer", help="what a producer needs: WRITE, DESCRIBE and CREATE on the topics")
    ] = False,
    consumer: Annotated[
        bool, typer.Option("--consumer", help="what a consumer needs: READ on the topics and the groups")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Add ACLs: one for each principal, operation and resource."""
    from highwater.client.blocking import Admin

    wanted = _named(
        rules.allow_principal,
        rules.deny_principal,
        rules.operation,
        list(resources.named()),
        rules.resource_pattern_type,
        producer=producer,
        consumer=consumer,
    )
    with Admin(bootstrap, max_block_ms=MAX_BLOCK_MS) as admin:
        admin.create_acls(wanted)
    for acl in wanted:
        screen.print(str(acl), soft_wrap=True)


@app.command("remove")
@with_shared_options
def remove(
    rules: Rules,
    resources: Resources,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Remove ACLs: those of these resources, and of them those of the principals and operations that are named."""
    from highwater.client.blocking import Admin

    named = list(resources.named())
    if not named:
        raise UserError("name what the ACLs are for: --topic, --group, --transactional-id or --cluster")
    pattern = _pattern(rules.resource_pattern_type)
    operations = [_operation(each) for each in rules.operation or ()] or [Operation.ANY]
    who: list[tuple[PermissionType, Principal | None]] = [
        *((PermissionType.ALLOW, _principal(each)) for each in rules.allow_principal or ()),
        *((PermissionType.DENY, _principal(each)) for each in rules.deny_principal or ()),
    ] or [(PermissionType.ANY, None)]
    filters = [
        AclFilter(kind, pattern, name, principal, each, permission)
        for kind, name in named
        for permission, principal in who
        for each in operations
    ]
    with Admin(bootstrap, max_block_ms=MAX_BLOCK_MS) as admin:
        gone = admin.delete_acls(filters)
    for acl in gone:
        screen.print(str(acl), soft_wrap=True)
    errors.print(f"{counted(len(gone), 'ACL')} removed")


_COLUMNS = ("resource", "name", "pattern", "principal", "operation", "permission")


def _words(acl: Acl) -> dict[str, str]:
    kind, pattern, name, principal, operation, permission, unreadable = acl
    values = (kind.name, name, pattern.name, str(principal), operation.name, permission.name)
    words = dict(zip(_COLUMNS, values, strict=True))
    return {**words, "unreadable": unreadable} if unreadable else words


_PRODUCER = {ResourceType.TOPIC: (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE)}
_CONSUMER = {ResourceType.TOPIC: (Operation.READ, Operation.DESCRIBE), ResourceType.GROUP: (Operation.READ,)}


def _named(
    allowed: Iterable[str] | None,
    denied: Iterable[str] | None,
    operations: list[str] | None,
    resources: list[tuple[ResourceType, str]],
    pattern: str,
    *,
    producer: bool,
    consumer: bool,
) -> list[Acl]:
    who = [("ALLOW", each) for each in allowed or ()] + [("DENY", each) for each in denied or ()]
    if not who:
        raise UserError("name whom the ACLs are for: --allow-principal User:name, or --deny-principal")
    if not resources:
        raise UserError("name what the ACLs are for: --topic, --group, --transactional-id or --cluster")
    if (producer or consumer) and operations:
        raise UserError("--producer and --consumer say which operations: leave --operation out")
    made: dict[Acl, None] = {}
    for kind, name in resources:
        of_kind = [
            *(_PRODUCER.get(kind, ()) if producer else ()),
            *(_CONSUMER.get(kind, ()) if consumer else ()),
        ]
        if (producer or consumer) and not of_kind:
            raise UserError(f"{'--producer' if producer else '--consumer'} says nothing of a {kind.name}: leave it out")
        for operation in [each.name for each in of_kind] or operations or ["ALL"]:
            for permission, principal in who:
                try:
                    acl = parse_acl(kind.name, pattern, name, principal, operation, permission)
                except ValueError as error:
                    raise UserError(str(error)) from None
                made[acl] = None
    return list(made)


def _pattern(text: str) -> PatternType:
    try:
        return parse(PatternType, text)
    except ValueError as error:
        raise UserError(str(error)) from None


def _operation(text: str) -> Operation:
    try:
        return parse(Operation, text)
    except ValueError as error:
        raise UserError(str(error)) from None


def _principal(text: str) -> Principal:
    try:
        return parse_principal(text)
    except ValueError as error:
        raise UserError(str(error)) from None
