"""ACLs to and from protobuf."""

from __future__ import annotations

from highwater.security.acls import Acl, AclFilter, Operation, PatternType, PermissionType, ResourceType, problem_with
from highwater.security.principal import parse_principal
from highwater.v1 import controller_pb2


def to_acl(message: controller_pb2.Acl) -> Acl:
    """Raises `ValueError` where it is none."""
    acl = Acl(
        ResourceType(message.resource_type or ResourceType.ANY),
        PatternType(message.pattern_type or PatternType.ANY),
        message.name,
        parse_principal(message.principal),
        Operation(message.operation or Operation.ANY),
        PermissionType(message.permission or PermissionType.ANY),
        message.unreadable,
    )
    if problem := problem_with(acl):
        raise ValueError(problem)
    return acl


def from_acl(acl: Acl) -> controller_pb2.Acl:
    return controller_pb2.Acl(
        resource_type=int(acl.resource_type),  # type: ignore[arg-type]
        pattern_type=int(acl.pattern_type),  # type: ignore[arg-type]
        name=acl.name,
        principal=str(acl.principal),
        operation=int(acl.operation),  # type: ignore[arg-type]
        permission=int(acl.permission),  # type: ignore[arg-type]
        unreadable=acl.unreadable,
    )


def to_filter(message: controller_pb2.AclFilter) -> AclFilter:
    """Raises `ValueError` where it is none."""
    return AclFilter(
        ResourceType(message.resource_type or ResourceType.ANY),
        PatternType(message.pattern_type or PatternType.ANY),
        message.name or None,
        parse_principal(message.principal) if message.principal else None,
        Operation(message.operation or Operation.ANY),
        PermissionType(message.permission or PermissionType.ANY),
    )


def from_filter(wanted: AclFilter) -> controller_pb2.AclFilter:
    return controller_pb2.AclFilter(
        resource_type=int(wanted.resource_type),  # type: ignore[arg-type]
        pattern_type=int(wanted.pattern_type),  # type: ignore[arg-type]
        name=wanted.name or "",
        principal="" if wanted.principal is None else str(wanted.principal),
        operation=int(wanted.operation),  # type: ignore[arg-type]
        permission=int(wanted.permission),  # type: ignore[arg-type]
    )
