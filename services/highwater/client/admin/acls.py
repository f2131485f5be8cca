"""ACLs, as the admin client adds, lists and removes them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from highwater.client.exceptions import InvalidRequestError, error_for
from highwater.errors import ErrorCode
from highwater.rpc.errors import from_proto
from highwater.rpc.requests.request_limits import MAX_ACLS_AT_ONCE
from highwater.security.acl_messages import from_acl, from_filter, to_acl
from highwater.security.acls import Acl, AclFilter, problem_with
from highwater.v1 import controller_pb2

Ask = Callable[[Callable[[Any], Any], Any], Awaitable[Any]]
"""One request to the controller, by a method of its stub. Raises the error of the whole response."""


async def create_acls(ask: Ask, acls: Iterable[Acl]) -> None:
    """Raises `InvalidRequestError` for one that is no ACL, before anything is added."""
    wanted = list(dict.fromkeys(acls))
    for acl in wanted:
        if problem := problem_with(acl):
            raise InvalidRequestError(f"{acl}: {problem}")
    for start in range(0, len(wanted), MAX_ACLS_AT_ONCE):
        some = wanted[start : start + MAX_ACLS_AT_ONCE]
        request = controller_pb2.CreateAclsRequest(acls=map(from_acl, some))
        response = await ask(lambda stub: stub.CreateAcls, request)
        _check(response.results)


async def describe_acls(ask: Ask, wanted: AclFilter) -> list[Acl]:
    request = controller_pb2.DescribeAclsRequest(filter=from_filter(wanted))
    response = await ask(lambda stub: stub.DescribeAcls, request)
    return [to_acl(each) for each in response.acls]


async def delete_acls(ask: Ask, filters: Iterable[AclFilter]) -> list[Acl]:
    """The ACLs that are gone now."""
    wanted = list(dict.fromkeys(filters))
    gone: dict[Acl, None] = {}
    for start in range(0, len(wanted), MAX_ACLS_AT_ONCE):
        some = wanted[start : start + MAX_ACLS_AT_ONCE]
        request = controller_pb2.DeleteAclsRequest(filters=map(from_filter, some))
        response = await ask(lambda stub: stub.DeleteAcls, request)
        _check(response.results)
        gone |= dict.fromkeys(to_acl(acl) for result in response.results for acl in result.acls)
    return list(gone)


def _check(results: Iterable[Any]) -> None:
    for result in results:
        code = from_proto(result.error)
        if code is not ErrorCode.NONE:
            raise error_for(code, result.error.message)
