"""The findings of `highwater cluster --check` behind the addresses that a client is told."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from highwater.client.admin.descriptions import BrokerDescription, BrokerReach, ClusterDescription
from highwater.client.admin.reachability import check_brokers
from highwater.rpc.process.local_process import free_ports
from highwater.rpc.server import RpcServer
from highwater.v1 import broker_pb2, broker_pb2_grpc


class Broker(broker_pb2_grpc.BrokerServicer):
    def __init__(self, cluster_id: str, broker_id: int | None) -> None:
        self._answer = broker_pb2.MetadataResponse(cluster_id=cluster_id, broker_id=broker_id)

    async def Metadata(  # type: ignore[override]
        self, request: broker_pb2.MetadataRequest, context: object
    ) -> broker_pb2.MetadataResponse:
        return self._answer


@asynccontextmanager
async def serving(broker: Broker | None) -> AsyncGenerator[str]:
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    server = RpcServer([address])
    if broker is not None:
        broker_pb2_grpc.add_BrokerServicer_to_server(broker, server.grpc)
    await server.start([])
    try:
        yield address
    finally:
        await server.stop()


async def reach(address: str, timeout_s: float = 5) -> BrokerReach:
    broker = BrokerDescription(1, 7, address, "", shutting_down=False, tail_lost=False, leaders=0, replicas=0)
    described = ClusterDescription("mine", 0, 1, (broker,), 0, 0, 0, 0)
    (found,) = await check_brokers(described, timeout_s)
    assert (found.broker_id, found.address) == (1, address)
    return found


@pytest.mark.parametrize("said", [1, None], ids=["itself", "older than the question"])
async def test_the_broker_answers(said: int | None) -> None:
    async with serving(Broker("mine", said)) as address:
        found = await reach(address)
    assert found.problem is None
    assert found.seconds is not None


@pytest.mark.parametrize(
    ("broker", "problem"),
    [
        (Broker("mine", 2), "broker 2 answers there"),
        (Broker("mine", 0), "broker 0 answers there"),
        (Broker("another", 1), "a broker of another cluster answers there, another"),
        (None, "what listens there is no broker's listener for clients"),
    ],
    ids=["another broker", "broker 0", "another cluster", "no broker"],
)
async def test_somebody_else_answers(broker: Broker | None, problem: str) -> None:
    async with serving(broker) as address:
        assert await reach(address) == BrokerReach(1, address, None, problem)


async def test_nobody_answers() -> None:
    (port,) = free_ports(1)
    assert "refused" in ((await reach(f"127.0.0.1:{port}")).problem or "")
    assert "name.invalid" in ((await reach("name.invalid:9092")).problem or "")
    assert "the same listeners" in ((await reach("")).problem or "")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        found = await reach(f"127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.5)
    assert (found.problem or "").startswith("nothing answers there within 0.5 s")
