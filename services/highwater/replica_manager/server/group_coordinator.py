"""The `GroupCoordinator` service of a broker: the contract stands, there are no groups yet, and every call says so."""

from __future__ import annotations

from typing import Any, NoReturn

import grpc
import grpc.aio

from highwater.v1 import group_pb2

NO_GROUPS = (
    "this version has no consumer groups: give each consumer its partitions, and keep the offsets that it has read"
    " with what it makes of the records"
)

_SERVICE = group_pb2.DESCRIPTOR.services_by_name["GroupCoordinator"]


def add_to(server: grpc.aio.Server) -> None:
    """Answers every call of the contract with UNIMPLEMENTED and the sentence `NO_GROUPS`."""
    refusing = grpc.unary_unary_rpc_method_handler(_refuse)
    handlers = {method.name: refusing for method in _SERVICE.methods}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE.full_name, handlers),))


async def _refuse(request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> NoReturn:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, NO_GROUPS)
