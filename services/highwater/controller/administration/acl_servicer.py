"""The gRPC edge of a controller's ACLs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from highwater.controller.administration.acl_administration import AclAdministration
from highwater.controller.topics.topic_admin import Refusal
from highwater.errors import ErrorCode
from highwater.metadata.schema.controller_term import ControllerTerm
from highwater.rpc.errors import to_proto
from highwater.security.acl_messages import from_acl, to_acl, to_filter
from highwater.security.acls import Acl
from highwater.v1 import common_pb2, controller_pb2

_Value = TypeVar("_Value")
_Message = TypeVar("_Message")


async def create_acls(
    administration: AclAdministration, term: ControllerTerm, request: controller_pb2.CreateAclsRequest
) -> controller_pb2.CreateAclsResponse:
    """Raises `ControllerDeposed`."""
    acls, errors = _read(_to_be_added, request.acls)
    refusal = await administration.create(term, acls) if acls else None
    if refusal is not None:
        return controller_pb2.CreateAclsResponse(error=to_proto(*refusal))
    return controller_pb2.CreateAclsResponse(
        results=[controller_pb2.CreateAclResult(error=errors.get(index)) for index in range(len(request.acls))]
    )


async def describe_acls(
    administration: AclAdministration, request: controller_pb2.DescribeAclsRequest
) -> controller_pb2.DescribeAclsResponse:
    filters, errors = _read(to_filter, [request.filter])
    if errors:
        return controller_pb2.DescribeAclsResponse(error=errors[0])
    found = await administration.describe(filters[0])
    if isinstance(found, Refusal):
        return controller_pb2.DescribeAclsResponse(error=to_proto(*found))
    return controller_pb2.DescribeAclsResponse(acls=map(from_acl, found))


async def delete_acls(
    administration: AclAdministration, term: ControllerTerm, request: controller_pb2.DeleteAclsRequest
) -> controller_pb2.DeleteAclsResponse:
    """Raises `ControllerDeposed`."""
    filters, errors = _read(to_filter, request.filters)
    found = await administration.delete(term, filters) if filters else []
    if isinstance(found, Refusal):
        return controller_pb2.DeleteAclsResponse(error=to_proto(*found))
    deleted = iter(found)
    return controller_pb2.DeleteAclsResponse(
        results=[_deleted(errors.get(index), deleted) for index in range(len(request.filters))]
    )


def _to_be_added(message: controller_pb2.Acl) -> Acl:
    """Raises `ValueError` where it is no ACL."""
    if message.unreadable:
        raise ValueError("unreadable says that an ACL in etcd cannot be read: leave it out")
    return to_acl(message)


def _deleted(error: common_pb2.Error | None, deleted: Iterator[list[Acl]]) -> controller_pb2.DeleteAclsResult:
    if error is not None:
        return controller_pb2.DeleteAclsResult(error=error)
    return controller_pb2.DeleteAclsResult(acls=map(from_acl, next(deleted)))


def _read(
    read: Callable[[_Message], _Value], messages: Iterable[_Message]
) -> tuple[list[_Value], dict[int, common_pb2.Error]]:
    """The values of messages, and by their place the errors of those that are none."""
    found: list[_Value] = []
    errors: dict[int, common_pb2.Error] = {}
    for index, message in enumerate(messages):
        try:
            found.append(read(message))
        except ValueError as error:
            errors[index] = to_proto(ErrorCode.INVALID_REQUEST, str(error))
    return found, errors
