"""Every RPC of the contracts, and the servers that it is sent to."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module

from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from highwater import v1

CLIENT, INTERNAL = "replica-manager, client", "replica-manager, internal"
LOG_STORAGE, FETCHER, CONTROLLER = "log-storage", "fetcher", "controller"
APPEND_SOCKET = "log-storage, append socket"

SERVED = {
    "Broker": (CLIENT, INTERNAL),
    "GroupCoordinator": (CLIENT, INTERNAL),
    "Controller": (CLIENT, INTERNAL, CONTROLLER),
    "ReplicaControl": (INTERNAL,),
    "LogStorage": (LOG_STORAGE,),
    "Fetcher": (FETCHER,),
}
"""By service: the servers that have it. That these are all is what their reflection says (`test_fuzz_servers`)."""


@dataclass(frozen=True)
class Rpc:
    service: str
    method: str
    request: Descriptor
    response: Descriptor
    client_streams: bool
    server_streams: bool

    @property
    def path(self) -> str:
        return f"/highwater.v1.{self.service}/{self.method}"

    @property
    def servers(self) -> tuple[str, ...]:
        """The append socket takes what Append does, in frames of its own."""
        served = SERVED[self.service]
        return (*served, APPEND_SOCKET) if (self.service, self.method) == ("LogStorage", "Append") else served

    def new_request(self) -> Message:
        return GetMessageClass(self.request)()


def contracts() -> Iterator[FileDescriptor]:
    """Of every file of `proto/`, from its stubs."""
    for module in pkgutil.iter_modules(v1.__path__):
        if module.name.endswith("_pb2"):
            yield import_module(f"highwater.v1.{module.name}").DESCRIPTOR


def rpcs() -> dict[str, Rpc]:
    """By path, in an order that stays."""
    found = [
        Rpc(
            service.name,
            method.name,
            method.input_type,
            method.output_type,
            method.client_streaming,
            method.server_streaming,
        )
        for contract in contracts()
        for service in contract.services_by_name.values()
        for method in service.methods
    ]
    return {rpc.path: rpc for rpc in sorted(found, key=lambda rpc: rpc.path)}


def targets() -> list[tuple[str, Rpc]]:
    """(server, RPC) of everything that is asked."""
    return [(server, rpc) for rpc in rpcs().values() for server in rpc.servers]
