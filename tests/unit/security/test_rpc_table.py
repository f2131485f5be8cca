"""No RPC without a permission: the table of docs/security.md against the contracts, and against the guard."""

from __future__ import annotations

from rpc_table import rpcs, table

from highwater.security.acls import Operation
from highwater.security.internal_peers import CALLERS, Peer

BY_ACLS = {"Broker", "GroupCoordinator", "Controller"}
NOT_FORWARDED = {"Controller/ControlledShutdown", "Controller/DescribeReadiness"}
WRITTEN = {
    frozenset({Peer.CONTROLLER}): "a controller",
    frozenset({Peer.OWN_BROKER}): "the broker itself",
    frozenset({Peer.OWN_BROKER, Peer.ADMINISTRATOR}): "the broker itself, or a super user",
}


def test_every_rpc_of_every_server_is_in_the_table() -> None:
    assert table().keys() == rpcs()


def test_what_clients_may_call_takes_an_operation_that_there_is() -> None:
    for rpc, row in table().items():
        if rpc.split("/")[0] in BY_ACLS and rpc not in NOT_FORWARDED:
            words = row.permission.replace(",", " ").replace(";", " ").split()
            assert {each.name for each in Operation} & set(words), rpc


def test_the_guard_takes_internal_rpcs_from_those_whom_the_table_names() -> None:
    internal = {rpc for rpc in rpcs() if rpc.split("/")[0] not in {"Broker", "GroupCoordinator"}}
    assert {method.removeprefix("/highwater.v1.") for method in CALLERS} == internal
    for method, peers in CALLERS.items():
        rpc = method.removeprefix("/highwater.v1.")
        if not rpc.startswith("Controller/"):
            assert table()[rpc].permission == WRITTEN[peers]
