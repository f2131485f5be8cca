"""The table of every RPC in docs/security.md, and all RPCs that there are."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from google.protobuf.descriptor import FileDescriptor

from highwater.v1 import broker_pb2, controller_pb2, fetcher_pb2, group_pb2, log_storage_pb2, replica_control_pb2

PAGE = Path(__file__).parents[3] / "docs" / "security.md"
CONTRACTS: tuple[FileDescriptor, ...] = tuple(
    module.DESCRIPTOR
    for module in (broker_pb2, controller_pb2, fetcher_pb2, group_pb2, log_storage_pb2, replica_control_pb2)
)


class Row(NamedTuple):
    listener: str
    permission: str


def rpcs() -> set[str]:
    """All RPCs, `Broker/Produce`, by the contracts' descriptors."""
    return {
        f"{service.name}/{method.name}"
        for contract in CONTRACTS
        for service in contract.services_by_name.values()
        for method in service.methods
    }


def table() -> dict[str, Row]:
    found = {}
    for line in PAGE.read_text().split("| RPC | listener | permission |")[1].split("\n\n")[0].splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        if cells[0].startswith("`"):
            found[cells[0].strip("`")] = Row(*cells[1:])
    return found
